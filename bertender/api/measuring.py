"""Functions that open and measure models."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError

if TYPE_CHECKING:
    from bertender.measure.comparison import Comparison
    from bertender.measure.verify import Verification
    from bertender.models.predictor import Classifier
    from bertender.pipeline.calls import ArtifactLike, PathLike, TaskLike

__all__ = ["compare", "open_model", "verify"]


def verify(
    reference: ArtifactLike,
    candidate: ArtifactLike,
    task: TaskLike | None = None,
    *,
    out: PathLike | None = None,
    **settings: Any,
) -> Verification:
    """Check that a model predicts as its reference does.

    Args:
        reference: the artifact that is taken as right.
        candidate: the artifact to check.
        task: as in `distill`, by default the reference's; its held-out texts are compared.
        out: a JSON file for the result.
        settings: the options of `bertender verify`.

    Raises:
        ParityError: it does not; every check that failed is named.

    Example:
        parity = bertender.verify("runs/student", "runs/int8")
        print(parity.agreement, parity.max_abs_difference)
    """
    return cast("Verification", _report("verify", [reference, candidate], task, settings, out))


def compare(
    artifacts: Sequence[ArtifactLike],
    task: TaskLike | None = None,
    *,
    out: PathLike | None = None,
    **settings: Any,
) -> Comparison:
    """Measure the size, score and speed of models against each other.

    Args:
        artifacts: what to compare; changes and speedups are against the first.
        task: as in `distill`, by default the first artifact's; its held-out texts are read.
        out: a JSON file for the result, which `bertender compare --saved` shows as a table.
        settings: the options of `bertender compare`.

    Raises:
        MachineBusyError: other work disturbs the times, and `noisy` is not set.

    Example:
        models = ["runs/teacher", "runs/student", "runs/int8"]
        comparison = bertender.compare(models, out="runs/table.json", threads=1, processes=1)
        for row in comparison.rows:
            print(row.name, row.score.value)
    """
    if isinstance(artifacts, str | os.PathLike | Artifact) or not artifacts:
        raise ConfigError(f"artifacts={artifacts!r} is not a list of models. Give [one, another].")
    return cast("Comparison", _report("compare", artifacts, task, settings, out))


def open_model(
    artifact: ArtifactLike,
    *,
    threads: int = 0,
    max_length: int | None = None,
    runtime: str = "onnxruntime",
) -> Classifier:
    """Open a model of any kind, to predict in this process.

    Args:
        artifact: a torch or onnx classifier, or a bag of words.
        threads: of the runtime; 0 takes OMP_NUM_THREADS, and its default where it is not set.
        max_length: longest input in tokens; by default the artifact's, at which it was trained.
        runtime: what runs an onnx artifact: onnxruntime, openvino and openvino-bf16, which are an
            extra, or onnxruntime-cuda, which needs a GPU.

    Raises:
        RuntimeMissingError: the runtime is not installed, or the machine lacks what it needs; the
            message names what to install.
        ConfigError: the artifact is quantized, and the runtime would turn it back into floats.
        ModelError: the files are not a model that this machine can run.

    Example:
        model = bertender.open_model("runs/int8")
        logits = model.logits([("a text of yours",), ("another one",)])  # (batch, labels)
        print([model.labels[best] for best in logits.argmax(axis=1)])
    """
    from bertender.models.opening import open_classifier
    from bertender.pipeline.calls import opened

    return open_classifier(
        opened(artifact), threads=threads, max_length=max_length, runtime=runtime
    )


def _report(*call: Any) -> object:
    from bertender.pipeline.calls import report

    return report(*call)
