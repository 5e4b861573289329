"""A classifier in ONNX Runtime, as most endpoints have it: tokenise, pad, run.

Nothing of bertender is in it, so that it is what it would be without.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime

from benchmarks.plain_servers.tokenizer import PlainTokenizer

__all__ = ["ARTIFACT_VARIABLE", "LENGTH_VARIABLE", "PlainModel"]

ARTIFACT_VARIABLE, LENGTH_VARIABLE = "PLAIN_MODEL_ARTIFACT", "PLAIN_MODEL_MAX_LENGTH"
"""Environment variables that tell a server process which model to run."""


class PlainModel:
    """Texts to logits, all of a call in one run.

    Args:
        artifact: folder with model.onnx and tokenizer.json.
        max_length: tokens that a text is cut at.
        padded_length: tokens that every text is padded to; None for the longest of the call.
        threads: of a run; by default the cores that this process may use.
    """

    def __init__(
        self,
        artifact: Path,
        max_length: int,
        padded_length: int | None,
        threads: int | None = None,
    ) -> None:
        threads = threads or len(os.sched_getaffinity(0))
        os.environ["RAYON_NUM_THREADS"] = str(threads)
        self.tokenizer = PlainTokenizer(artifact, max_length, padded_length)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(
            str(artifact / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self.inputs = [node.name for node in self.session.get_inputs()]

    def logits(self, texts: Sequence[str | tuple[str, ...]]) -> npt.NDArray[np.float32]:
        """Return the logits (batch, labels) of some texts, or pairs of them."""
        arrays = self.tokenizer.arrays(texts)
        taken = {name: arrays[name] for name in self.inputs}
        return np.asarray(self.session.run(["logits"], taken)[0], np.float32)
