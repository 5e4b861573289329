"""The Python backend of the Triton model `classifier`: text in; label, score and logits out.

Triton hands requests over as they come, and gets each response when it is complete; `batches` has
what happens in between. Triton starts this class in a Python process of its own (the stub).
Neither PyTorch nor transformers is loaded there.
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

OF_TRITON = {"LATE": "ALREADY_EXISTS"}
"""Code of a refusal -> attribute of Triton's TritonError, where that has none of the name: one that
no request has for any other reason, by which the door knows it."""


class TritonPythonModel:
    """Python backend of Triton: `initialize` once an instance, `execute` once a merged batch."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the artifact, its digests checked, and run it, so that loading proves it.

        What another Triton model runs is proved there, by its own warm-up.

        Raises:
            DamagedArtifactError: a file of the artifact is missing or changed.
            RuntimeMissingError: the runtime is not installed.
            ModelError: the runtime or the tokenizer cannot open it, or this process would end at
                the first request.
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
        """Take requests on, or refuse them; each gets its response through its sender."""
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
            except Exception as error:  # of one request; the others of this call must not notice
                reason = f"the request cannot be read: {error}"
                self.model.refuse(Request((), respond), Refusal("INTERNAL", reason))
            else:
                self.model.ask(inputs, wishes, respond, each.is_cancelled)

    def finalize(self) -> None:
        """Respond to what still waits, and stop."""
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
    """Raise ModelError where the stub that runs this, of a Triton that somebody else has started,
    was compiled for another NumPy. `bertender serve` gives its own the one that it needs."""
    if is_for_numpy_1(stub) and not np.__version__.startswith("1."):
        raise ModelError(
            f"this Triton's Python stub was compiled for NumPy 1, and ends at its first request "
            f"with numpy {np.__version__}. Install 'numpy<2' for the Python that it runs, or take "
            "a newer Triton."
        )


def mark_candidate(workspace: str | None, model: str) -> None:
    """Mark this process in the server's workspace where its model is a candidate, which may die.

    The process of a model that has died has no command line any more that would tell which it was.
    """
    if not workspace:
        return
    mark = Path(workspace, f"{CANDIDATE_PREFIX}{os.getpid()}")
    if model.endswith(CANDIDATE_SUFFIX):
        mark.touch()
    else:
        mark.unlink(missing_ok=True)  # numbers of processes are used again


REGION_WORD = 1
"""Index among a stub's arguments: the name of its region in shared memory."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the kernel's folder, nothing is made here


def close_region(command: bytes, folder: Path = SHARED_MEMORY) -> None:
    """Let no other user read a stub's region of shared memory, before it has a text.

    `bertender serve` makes it so from the start; another Triton does not. A later version may name
    the region in another place: nothing but a file of the folder is closed.

    Args:
        command: the stub's program and arguments, each with a zero byte at its end.
        folder: of the regions.
    """
    program, *words = map(os.fsdecode, command.split(b"\0"))
    if Path(program).name != STUB_NAME or len(words) <= REGION_WORD:
        return
    name = words[REGION_WORD].removeprefix("/")
    with suppress(OSError):  # it has gone, or is of another user
        if "/" not in name and (folder / name).is_file():
            (folder / name).chmod(0o600)
