"""Tasks, and the functions that make an artifact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bertender.core.artifact import Artifact

if TYPE_CHECKING:
    from bertender.compression.records import CompressionReport
    from bertender.pipeline.calls import ArtifactLike, PathLike, TaskLike
    from bertender.tasks.task import Task

__all__ = [
    "compress",
    "distill",
    "distill_general",
    "export",
    "finetune",
    "import_model",
    "load_task",
    "pretrain",
    "prune",
    "quantize",
]


def load_task(task: str | None = None, /, **settings: Any) -> Task:
    """Load a task: its texts, its labels and its metric.

    Args:
        task: a name from `bertender tasks`; none for files of your own.
        settings: the options that the commands have for the task, such as `train`, `dev`,
            `text_column`, `select` and `max_train`.

    Raises:
        UnknownNameError: `bertender tasks` does not list it.
        DataError: a file is wrong; its row and column are named.

    Example:
        task = bertender.load_task(train="train.csv", dev="dev.csv")
        print(task.labels, len(task.train))
    """
    from bertender.tasks.loading import load_task as load
    from bertender.tasks.task import TaskConfig

    by_name = {} if task is None else {"task": task}
    return load(TaskConfig.parse({**by_name, **settings}))


def import_model(
    source: PathLike,
    task: str | Mapping[str, Any] | None = None,
    *,
    out: PathLike,
    labels: Sequence[str] | None = None,
    force: bool = False,
) -> Artifact:
    """Write a finished model from elsewhere as an artifact.

    Every function takes such a model as it is; this writes it once, with the names of its labels
    and the data to judge it by.

    Args:
        source: a folder that `save_pretrained` wrote, a folder or file of ONNX with its tokenizer,
            or a hub's NAME or NAME@REVISION.
        task: a name or the settings of `load_task`, whose labels become the model's; `dev` alone
            will do.
        out: where the artifact goes.
        labels: names of the labels in the order of the logits; by default those of config.json.
        force: replace a finished artifact there.

    Raises:
        NotAnArtifactError: there is no model.
        ModelError: it has no classification head, or its weights are a pickle.

    Example:
        teacher = bertender.import_model("theirs", {"dev": "dev.csv"}, out="runs/imported")
        print(teacher.card.task.labels)
    """
    from bertender.pipeline.calls import imported

    settings = {"task": task} if isinstance(task, str) else dict(task or {})
    return imported(source, out, labels, settings, force=force)


def pretrain(corpus: PathLike, *, out: PathLike, force: bool = False, **settings: Any) -> Artifact:
    """Pre-train a small encoder on plain text.

    Args:
        corpus: a file or folder of plain text, or what else `bertender pretrain --corpus` takes.
        out: where the artifact goes.
        force: replace a finished artifact there.
        settings: the options of `bertender pretrain`.

    Example:
        encoder = bertender.pretrain("corpus.txt", out="runs/encoder", layers=4, hidden_size=64)
    """
    return _make("pretrain", [], None, {"corpus": corpus, **settings}, out, force=force)


def distill_general(
    teacher: ArtifactLike, corpus: PathLike, *, out: PathLike, force: bool = False, **settings: Any
) -> Artifact:
    """Distil an encoder into a smaller one on plain text, before any task.

    Args:
        teacher: an artifact, a folder of an encoder or its name.
        corpus: as in `pretrain`.
        out: where the artifact goes.
        force: replace a finished artifact there.
        settings: the options of `bertender distill-general`.

    Example:
        small = bertender.distill_general("runs/encoder", "corpus.txt", out="runs/small", layers=2)
    """
    chosen = {"teacher": teacher, "corpus": corpus, **settings}
    return _make("distill-general", [], None, chosen, out, force=force)


def finetune(task: TaskLike, *, out: PathLike, force: bool = False, **settings: Any) -> Artifact:
    """Fine-tune an encoder on a task: the teacher.

    Args:
        task: a name, a `Task`, or the settings of `load_task`.
        out: where the artifact goes.
        force: replace a finished artifact there.
        settings: the options of `bertender finetune`; `teacher` is the encoder to start from.

    Example:
        files = {"train": "train.csv", "dev": "dev.csv"}
        start = {"teacher": "runs/encoder", "learning_rate": 1e-3}
        teacher = bertender.finetune(files, out="runs/teacher", **start)
    """
    return _make("finetune", [], task, settings, out, force=force)


def distill(
    teacher: ArtifactLike,
    task: TaskLike | None = None,
    *,
    out: PathLike,
    force: bool = False,
    **settings: Any,
) -> Artifact:
    """Train a smaller student on a teacher's outputs.

    Args:
        teacher: the artifact to learn from.
        task: a name, a `Task`, or the settings of `load_task`; by default the teacher's task.
        out: where the artifact goes.
        force: replace a finished artifact there.
        settings: the options of `bertender distill`.

    Example:
        small = {"layers": 2, "learning_rate": 1e-3}
        student = bertender.distill("runs/teacher", out="runs/student", method="pkd", **small)
    """
    return _make("distill", [teacher], task, settings, out, force=force)


def prune(
    artifact: ArtifactLike,
    task: TaskLike | None = None,
    *,
    out: PathLike,
    force: bool = False,
    **settings: Any,
) -> Artifact:
    """Cut a model's least important heads and neurons, then train what remains.

    Args:
        artifact: the classifier to prune.
        task: as in `distill`.
        out: where the artifact goes.
        force: replace a finished artifact there.
        settings: the options of `bertender prune`.

    Example:
        pruned = bertender.prune("runs/student", out="runs/pruned", heads=0.25, ffn=0.25)
    """
    return _make("prune", [artifact], task, settings, out, force=force)


def export(
    artifact: ArtifactLike,
    task: TaskLike | None = None,
    *,
    out: PathLike,
    force: bool = False,
    **settings: Any,
) -> Artifact:
    """Write a model as ONNX, and prove that it predicts the same.

    Args:
        artifact: the classifier to export.
        task: as in `distill`; the proof reads its texts.
        out: where the artifact goes.
        force: replace a finished artifact there.
        settings: the options of `bertender export`.

    Raises:
        ParityError: the graph does not predict as the model does; nothing is written.

    Example:
        onnx = bertender.export("runs/student", out="runs/onnx")
    """
    return _make("export", [artifact], task, settings, out, force=force)


def quantize(
    artifact: ArtifactLike,
    task: TaskLike | None = None,
    *,
    out: PathLike,
    force: bool = False,
    **settings: Any,
) -> Artifact:
    """Write an 8-bit model, and prove that it stays near.

    Args:
        artifact: what `export` has written; for schemes that train, the classifier itself.
        task: as in `distill`; settings are chosen on its texts.
        out: where the artifact goes.
        force: replace a finished artifact there.
        settings: the options of `bertender quantize`.

    Raises:
        ParityError, GateError: the gate refuses the model; nothing is written.

    Example:
        int8 = bertender.quantize("runs/onnx", out="runs/int8", scheme="dynamic")
    """
    return _make("quantize", [artifact], task, settings, out, force=force)


def compress(
    teacher: ArtifactLike,
    task: TaskLike | None = None,
    *,
    out: PathLike,
    force: bool = False,
    **settings: Any,
) -> CompressionReport:
    """Make the best model that holds constraints on its size, time and score.

    The report that comes back has every candidate, predicted or measured, and which was chosen.

    Args:
        teacher: the artifact to learn from.
        task: as in `distill`.
        out: directory that gets the artifact `model`, the report and all candidates.
        force: replace a finished artifact that is there and that no earlier run of it has made.
        settings: the options of `bertender compress`.

    Raises:
        ConfigError: no candidate can hold the constraints; the nearest one is named.

    Example:
        small = {"max_mb": 5, "layers": [1, 2], "epochs": 1, "students": [], "processes": 1}
        report = bertender.compress("runs/teacher", out="runs/compressed", **small)
        print(report.chosen, report.verdict)
    """
    from pathlib import Path

    from bertender.compression.compress import Compression
    from bertender.compression.config import CompressConfig
    from bertender.pipeline.calls import opened, plain, task_of

    config, source = CompressConfig.parse(plain(settings)), opened(teacher)
    return Compression(source, task_of([source], task), config, Path(out), force=force).run()


def _make(*call: Any, force: bool) -> Artifact:
    from bertender.pipeline.calls import make

    return make(*call, force=force)
