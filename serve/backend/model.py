"""The Python backend of the Triton model `classifier`: text in; label, score and logits out.

Triton passes requests on as they arrive, and gets each response when it is complete; see `batches`.
Triton starts this class in a separate Python process (the stub), which loads neither PyTorch nor
transformers.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertender.core.errors import DataError, ModelError
from serve.backend.fair_queue import Refusal, Request, Tensors
from serve.backend.metrics import MetricsThread
from serve.backend.opening import open_served_model
from serve.config import BackendParameters
from serve.server.supervisor import STUB_NAME
from serve.server.wheels import is_for_numpy_1
from serve.wire import (
    CANDIDATE_PREFIX,
    CANDIDATE_SUFFIX,
    WORKSPACE_VARIABLE,
    Wishes,
)

OF_TRITON = {"LATE": "UNSUPPORTED"}
"""Attribute of TritonError by code of a refusal, where Triton lacks the code. No request has this
error for another reason, so that the door recognises it."""


class TritonPythonModel:
    """Triton's Python backend: `initialize` runs once per instance, `execute` per merged batch."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the artifact, check its digests, and run it once.

        A graph in another Triton model is run there, by its own warm-up.

        Raises:
            DamagedArtifactError: a file of the artifact is missing or changed.
            RuntimeMissingError: the runtime is not installed.
            ModelError: the runtime or the tokenizer cannot be opened, or this process would crash
                at the first request.
        """
        check_numpy(Path("/proc/self/exe"))
        self.triton = importlib.import_module("triton_python_backend_utils")  # only in the stub
        close_region(Path("/proc/self/cmdline").read_bytes())
        config = json.loads(args["model_config"])
        parameters = BackendParameters.from_model_config(config)
        self.model = open_served_model(
            Path(args["model_repository"], args["model_version"], parameters.artifact),
            parameters,
            int(config["max_batch_size"]),
            int(config["instance_group"][0]["count"]),
        )
        workspace = os.environ.get(WORKSPACE_VARIABLE)
        mark_candidate(workspace, config["name"])
        labels = {"model": config["name"], "version": args["model_version"]}
        queue = self.model.queue
        self.metrics = MetricsThread(self.triton, labels, self.model.tally, lambda: queue.texts)

    def execute(self, requests: Sequence[Any]) -> None:
        """Accept or refuse requests; each gets its response through its sender."""
        for each in requests:
            respond = partial(self._respond, each.get_response_sender())
            try:
                wishes = Wishes.parse(each.parameters())
                inputs = [
                    self.triton.get_input_tensor_by_name(each, name).as_numpy()
                    for name in self.model.input_names
                ]
            except DataError as error:
                self.model.refuse(Request((), respond), Refusal("INVALID_ARG", str(error)))
            except Exception as error:  # an error of one request must not affect others
                reason = f"the request cannot be read: {error}"
                self.model.refuse(Request((), respond), Refusal("INTERNAL", reason))
            else:
                self.model.ask(inputs, wishes, respond, each.is_cancelled)

    def finalize(self) -> None:
        """Respond to waiting requests, and stop."""
        self.model.close()
        self.metrics.stop()

    def _respond(self, sender: Any, response: Tensors | Refusal) -> None:
        if isinstance(response, Refusal):
            code = getattr(self.triton.TritonError, OF_TRITON.get(response.code, response.code))
            content = {"error": self.triton.TritonError(response.reason, code)}
        else:
            tensors = [self.triton.Tensor(*each) for each in response.items()]
            content = {"output_tensors": tensors}
        final = self.triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        sender.send(self.triton.InferenceResponse(**content), flags=final)


def check_numpy(stub: Path) -> None:
    """Raise ModelError where the stub of a Triton that bertender has not started was compiled for
    another NumPy. `bertender serve` gives its own stub the right one."""
    if is_for_numpy_1(stub) and not np.__version__.startswith("1."):
        raise ModelError(
            f"this Triton's Python stub was compiled for NumPy 1, and ends at its first request "
            f"with numpy {np.__version__}. Install 'numpy<2' for the Python that it runs, or take "
            "a newer Triton."
        )


def mark_candidate(workspace: str | None, model: str) -> None:
    """Mark this process in the server's workspace if its model is a candidate, which may die.

    A dead process has no command line that would tell its model.
    """
    if not workspace:
        return
    mark = Path(workspace, f"{CANDIDATE_PREFIX}{os.getpid()}")
    if model.endswith(CANDIDATE_SUFFIX):
        mark.touch()
    else:
        mark.unlink(missing_ok=True)  # process ids are reused


REGION_WORD = 1
"""Index of the name of the shared memory region in a stub's arguments."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the kernel's folder, nothing is made here


def close_region(command: bytes, folder: Path = SHARED_MEMORY) -> None:
    """Close a stub's shared memory region to other users, before it has any text.

    `bertender serve` does so from the start; another Triton does not. A later version may have the
    name at another index, so only files of the folder are closed.

    Args:
        command: the stub's program and arguments, each with a zero byte at its end.
        folder: folder of the regions.
    """
    program, *words = map(os.fsdecode, command.split(b"\0"))
    if Path(program).name != STUB_NAME or len(words) <= REGION_WORD:
        return
    name = words[REGION_WORD].removeprefix("/")
    with suppress(OSError):  # it is gone, or belongs to another user
        if "/" not in name and (folder / name).is_file():
            (folder / name).chmod(0o600)
