"""The Python functions of bertender: paths or objects go in, artifacts or records come out.

Each runs the stage of its name with the settings of its command; an unknown setting is refused as
there. What takes seconds to load is imported inside of the functions: `classify` only asks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from bertender.core.table import load_place

if TYPE_CHECKING:
    from bertender.measure.comparison import Comparison
    from bertender.measure.parity import Parity
    from bertender.models.predictor import Classifier
    from bertender.pipeline.calls import ArtifactLike, PathLike, TaskLike
    from bertender.pipeline.recipe import Recipe
    from bertender.pipeline.runner import StepOutcome
    from bertender.tasks.task import Task
    from serve.client import Answer
    from serve.server import TritonServer

__all__ = [
    "classify",
    "compare",
    "distill",
    "distill_general",
    "export",
    "finetune",
    "load_task",
    "open_model",
    "pretrain",
    "prune",
    "quantize",
    "run_recipe",
    "serve",
    "verify",
]


def load_task(task: str | None = None, /, **settings: Any) -> Task:
    """Load a task: its texts, its labels and its metric.

    Args:
        task: a name from `bertender tasks`; none for files of your own.
        settings: the options that the commands have for the task, such as `train`, `dev`,
            `text_column`, `select` and `max_train`.

    Raises:
        UnknownNameError: there is no such task.
        DataError: a file is wrong; its row and column are named.

    Example:
        task = bertender.load_task(train="train.csv", dev="dev.csv")
        print(task.labels, len(task.train))
    """
    from bertender.tasks.registry import load_task as load
    from bertender.tasks.task import TaskConfig

    named = {} if task is None else {"task": task}
    return load(TaskConfig.parse({**named, **settings}))


def pretrain(corpus: PathLike, *, out: PathLike, **settings: Any) -> Artifact:
    """Pre-train a small encoder on plain text.

    Args:
        corpus: a file or folder of plain text, or what else `bertender pretrain --corpus` takes.
        out: where the artifact goes.
        settings: the options of `bertender pretrain`.

    Example:
        encoder = bertender.pretrain("corpus.txt", out="runs/encoder", layers=4, hidden_size=64)
    """
    return _make("pretrain", [], None, {"corpus": corpus, **settings}, out)


def distill_general(
    teacher: ArtifactLike, corpus: PathLike, *, out: PathLike, **settings: Any
) -> Artifact:
    """Distil an encoder into a smaller one on plain text, before any task.

    Args:
        teacher: an artifact, a folder of an encoder or its name.
        corpus: as in `pretrain`.
        out: where the artifact goes.
        settings: the options of `bertender distill-general`.

    Example:
        small = bertender.distill_general("runs/encoder", "corpus.txt", out="runs/small", layers=2)
    """
    chosen = {"teacher": teacher, "corpus": corpus, **settings}
    return _make("distill-general", [], None, chosen, out)


def finetune(task: TaskLike, *, out: PathLike, **settings: Any) -> Artifact:
    """Fine-tune an encoder on a task: the teacher.

    Args:
        task: a name, a `Task`, or the settings of `load_task`.
        out: where the artifact goes.
        settings: the options of `bertender finetune`; `teacher` is the encoder to start from.

    Example:
        files = {"train": "train.csv", "dev": "dev.csv"}
        start = {"teacher": "runs/encoder", "learning_rate": 1e-3}
        teacher = bertender.finetune(files, out="runs/teacher", **start)
    """
    return _make("finetune", [], task, settings, out)


def distill(
    teacher: ArtifactLike, task: TaskLike | None = None, *, out: PathLike, **settings: Any
) -> Artifact:
    """Train a smaller student on a teacher's outputs.

    Args:
        teacher: the artifact to learn from.
        task: a name, a `Task`, or the settings of `load_task`; by default the teacher's task.
        out: where the artifact goes.
        settings: the options of `bertender distill`.

    Example:
        small = {"layers": 2, "learning_rate": 1e-3}
        student = bertender.distill("runs/teacher", out="runs/student", method="pkd", **small)
    """
    return _make("distill", [teacher], task, settings, out)


def prune(
    artifact: ArtifactLike, task: TaskLike | None = None, *, out: PathLike, **settings: Any
) -> Artifact:
    """Cut a model's least important heads and neurons, then train what remains.

    Args:
        artifact: the classifier to prune.
        task: as in `distill`.
        out: where the artifact goes.
        settings: the options of `bertender prune`.

    Example:
        pruned = bertender.prune("runs/student", out="runs/pruned", heads=0.25, ffn=0.25)
    """
    return _make("prune", [artifact], task, settings, out)


def export(
    artifact: ArtifactLike, task: TaskLike | None = None, *, out: PathLike, **settings: Any
) -> Artifact:
    """Write a model as ONNX, and prove that it predicts the same.

    Args:
        artifact: the classifier to export.
        task: as in `distill`; the proof reads its texts.
        out: where the artifact goes.
        settings: the options of `bertender export`.

    Raises:
        ParityError: the graph does not predict as the model does; nothing is written.

    Example:
        onnx = bertender.export("runs/student", out="runs/onnx")
    """
    return _make("export", [artifact], task, settings, out)


def quantize(
    artifact: ArtifactLike, task: TaskLike | None = None, *, out: PathLike, **settings: Any
) -> Artifact:
    """Write an 8-bit model, and prove that it stays near.

    Args:
        artifact: what `export` has written; for schemes that train, the classifier itself.
        task: as in `distill`; settings are chosen on its texts.
        out: where the artifact goes.
        settings: the options of `bertender quantize`.

    Raises:
        ParityError, GateError: the gate refuses the model; nothing is written.

    Example:
        int8 = bertender.quantize("runs/onnx", out="runs/int8", scheme="dynamic")
    """
    return _make("quantize", [artifact], task, settings, out)


def verify(
    reference: ArtifactLike,
    candidate: ArtifactLike,
    task: TaskLike | None = None,
    *,
    out: PathLike | None = None,
    **settings: Any,
) -> Parity:
    """Check that a model predicts as its reference does.

    Args:
        reference: the artifact that is right.
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
    return cast("Parity", _report("verify", [reference, candidate], task, settings, out))


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
    artifact: ArtifactLike, *, threads: int = 0, max_length: int | None = None
) -> Classifier:
    """Open a model of any kind, to predict in this process.

    Args:
        artifact: a torch or onnx classifier, or a bag of words.
        threads: of ONNX Runtime; 0 takes its default.
        max_length: longest input in tokens; by default the tokenizer's own limit.

    Example:
        model = bertender.open_model("runs/int8")
        logits = model.logits([("a text of yours",), ("another one",)])  # (batch, labels)
        print([model.labels[best] for best in logits.argmax(axis=1)])
    """
    from bertender.models.predictor import open_classifier
    from bertender.pipeline.calls import opened

    return open_classifier(opened(artifact), threads=threads, max_length=max_length)


def serve(artifact: ArtifactLike, **settings: Any) -> AbstractContextManager[TritonServer]:
    """Serve a model through Triton Inference Server: ready inside the block, gone after it.

    Args:
        artifact: an onnx classifier.
        settings: the options of `bertender serve`; a port 0 takes any free one.

    Raises:
        ServingError: the server cannot start.

    Example:
        with bertender.serve("runs/int8", http_port=0, grpc_port=0, metrics_port=0) as server:
            print(server.http_url, server.grpc_url, server.metrics_url)
    """
    from bertender.pipeline.calls import opened, plain

    config = load_place("serve.config:ServeConfig").parse(plain(settings))
    serving = load_place("serve.server:serving")(opened(artifact), config)
    return cast("AbstractContextManager[TritonServer]", serving)


def classify(
    texts: Sequence[str | tuple[str, ...]],
    url: str = "http://127.0.0.1:8000",
    *,
    batch_size: int | None = None,
    timeout_s: float = 60.0,
) -> list[Answer]:
    """Ask a served model about texts; loads no model library.

    Args:
        texts: a text or a pair of texts each.
        url: `http://host:port` or `grpc://host:port`; the default is that of `bertender serve`.
        batch_size: texts of a request; by default, and at most, what the model takes.
        timeout_s: longest wait for one request, in seconds.

    Raises:
        ServingError: nothing answers there, or the server refuses.

    Example:
        with bertender.serve("runs/int8", http_port=0, grpc_port=0, metrics_port=0) as server:
            answers = bertender.classify(["a text of yours", "another one"], server.http_url)
        print(answers[0].label, answers[0].score)
    """
    examples = [(each,) if isinstance(each, str) else tuple(each) for each in texts]
    ask = load_place("serve.client:classify")
    return cast("list[Answer]", ask(examples, url, batch_size=batch_size, timeout_s=timeout_s))


def run_recipe(
    recipe: PathLike | Recipe,
    *,
    out: PathLike | None = None,
    fresh: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> list[StepOutcome]:
    """Run the steps of a recipe; what is built already is reused.

    Args:
        recipe: a name from `bertender recipes`, or a .yaml file.
        out: directory that gets an artifact or a JSON file for each step; by default
            `runs/RECIPE`.
        fresh: build every step anew.
        settings: `STEP.KEY` -> value, and `task.KEY` -> value, to change in the recipe.

    Raises:
        BertenderError: whatever a step raises, with the name of the step before the message.

    Example:
        fewer = {"student.layers": 1}
        steps = bertender.run_recipe("recipe.yaml", out="runs/recipe", settings=fewer)
        print([(step.output, step.reused) for step in steps])
    """
    from bertender.pipeline.calls import changes
    from bertender.pipeline.recipe import Recipe, load_recipe
    from bertender.pipeline.runner import run_recipe as run

    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(os.fspath(recipe))
    chosen = chosen.with_settings(changes(settings or {}))
    return list(run(chosen, Path(out or Path("runs") / chosen.name), fresh=fresh))


def _make(*call: Any) -> Artifact:
    from bertender.pipeline.calls import make

    return make(*call)


def _report(*call: Any) -> object:
    from bertender.pipeline.calls import report

    return report(*call)
