"""The Python functions of bertender: paths or objects go in, artifacts or records come out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bertender.core.artifact import Artifact
from bertender.core.config import load_place
from bertender.core.errors import ConfigError
from bertender.text.batch import to_examples

if TYPE_CHECKING:
    from bertender.comparison.records import Comparison
    from bertender.compression.report import CompressionReport
    from bertender.gate.verify import Verification
    from bertender.models.predictor import Classifier
    from bertender.recipes.calls import ArtifactLike, PathLike, TaskLike
    from bertender.recipes.recipe import Recipe, StepOutcome
    from bertender.tasks.task import Task
    from serve.client.served_model import Classification
    from serve.deploy import Deployment
    from serve.server.server import TritonServer

# --- from bertender.api.making
# Tasks, and the functions that make an artifact.


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
    from bertender.recipes.calls import imported

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
    from bertender.recipes.calls import opened, plain, task_of

    config, source = CompressConfig.parse(plain(settings)), opened(teacher)
    return Compression(source, task_of([source], task), config, Path(out), force=force).run()


def _make(*call: Any, force: bool) -> Artifact:
    from bertender.recipes.calls import make

    return make(*call, force=force)


# --- from bertender.api.measuring
# Functions that open and measure models.


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
    from bertender.recipes.calls import opened

    return open_classifier(
        opened(artifact), threads=threads, max_length=max_length, runtime=runtime
    )


def _report(*call: Any) -> object:
    from bertender.recipes.calls import report

    return report(*call)


# --- from bertender.api.recipes
# The function that runs a recipe.


def run_recipe(
    recipe: PathLike | Recipe,
    *,
    out: PathLike | None = None,
    fresh: bool = False,
    force: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> list[StepOutcome]:
    """Run the steps of a recipe; what is built already is reused.

    Args:
        recipe: a name from `bertender recipes`, or a .yaml file.
        out: directory that gets an artifact or a JSON file for each step; by default
            `runs/RECIPE`.
        fresh: build every step again.
        force: replace finished artifacts that no run of a recipe has made there.
        settings: `STEP.KEY` -> value, and `task.KEY` -> value, to change in the recipe.

    Raises:
        BertenderError: whatever a step raises, with the name of the step before the message.

    Example:
        fewer = {"student.layers": 1}
        steps = bertender.run_recipe("recipe.yaml", out="runs/recipe", settings=fewer)
        print([(step.output, step.reused) for step in steps])
    """
    from bertender.recipes.calls import changes
    from bertender.recipes.recipe import Recipe, load_recipe
    from bertender.recipes.recipe import run_recipe as run

    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(os.fspath(recipe))
    chosen = chosen.with_settings(changes(settings or {}))
    return list(run(chosen, Path(out or Path("runs") / chosen.name), fresh=fresh, force=force))


# --- from bertender.api.serving
# Functions that serve a model, ask a served one, and replace it.


def serve(
    artifact: ArtifactLike | Mapping[str, ArtifactLike], **settings: Any
) -> AbstractContextManager[TritonServer]:
    """Serve a model through Triton Inference Server: ready inside the block, stopped after it.

    Args:
        artifact: an onnx classifier, as the model `classifier`; or several by the names of models.
        settings: the options of `bertender serve`; a port 0 takes any free one. Those that are
            not set are of this machine's profile, as there.

    Raises:
        ServingError: the server cannot start.

    Example:
        with bertender.serve("runs/int8", http_port=0, metrics_port=0) as server:
            print(server.http_url, server.metrics_url)
    """
    from bertender.recipes.calls import opened, plain

    config = load_place("serve.config:LocalServeConfig").parse(plain(settings))
    if not isinstance(artifact, Mapping):
        artifact = {"classifier": artifact}
    # they are verified when the repository is written
    models = {name: opened(each, verify=False) for name, each in artifact.items()}
    for name in models:
        load_place("serve.repository.write:check_name")(name)
    cards = [each.card for each in models.values()]
    config, _ = load_place("serve.profiles:with_profile")(config, cards)
    serving = load_place("serve.server.server:serving")(models, config)
    return cast("AbstractContextManager[TritonServer]", serving)


def classify(
    texts: Sequence[str | tuple[str, ...]],
    url: str = "http://127.0.0.1:8000",
    *,
    batch_size: int | None = None,
    timeout_s: float = 60.0,
    retries: int | None = None,
    **settings: Any,
) -> list[Classification]:
    """Ask a served model about texts; loads no model library.

    Args:
        texts: a text or a pair of texts each.
        url: `http://host:port` or `grpc://host:port`, `https://` or `grpcs://` with TLS; the
            default is that of `bertender serve`.
        batch_size: texts of a request; by default, and at most, what the model takes.
        timeout_s: longest wait for one request in seconds, its retries included.
        retries: how often a request is sent again where the server rejects it for now, or nothing
            listens there; by default until `timeout_s` is over, and 3 times for the first.
        settings: `model`, its name on the server; `ca_file`, `client_certificate`, `client_key` and
            `api_key_file`; as the options of `bertender classify`.

    Raises:
        DataError: `texts` is not a sequence of texts or pairs, or a text is empty.
        ServingError: no endpoint responds there (UnreachableError), not in time (DeadlineError),
            or the server rejects the request for now (OverloadedError), or refuses it.

    Example:
        with bertender.serve("runs/int8", http_port=0, metrics_port=0) as server:
            results = bertender.classify(["a text of yours", "another one"], server.http_url)
        print(results[0].label, results[0].score)
    """
    examples = to_examples(texts)
    sending = {"batch_size": batch_size, "timeout_s": timeout_s, "retries": retries}
    if "model" in settings:
        sending["model"] = settings.pop("model")
    files = load_place("serve.client.access:AccessConfig").parse(settings)
    predictions = load_place("serve.client.endpoint:classify")(
        examples, url, **sending, access=files
    )
    return cast("list[Classification]", predictions)


def deploy(artifact: ArtifactLike, to: PathLike, **settings: Any) -> Deployment:
    """Let an artifact take the place of a served model, once it predicts as when it was made.

    It is tried next to the served model, which responds meanwhile and stays if it fails.

    Args:
        artifact: an onnx classifier with golden texts.
        to: address of a running `bertender serve` of this machine, or the directory of a model
            repository.
        settings: the options of `bertender deploy`; an address needs `admin_token_file`.

    Raises:
        ConfigError: the address, the token or the name of the model is wrong; or the artifact is
            of another task.
        ModelError, ArtifactError: the artifact cannot be served, or has no golden texts.
        BusyError: another process deploys there.
        DeploymentError: the artifact does not load, or predicts otherwise than when it was made.

    Example:
        closed = {"http_port": 0, "metrics_port": 0, "admin_token_file": "token"}
        with bertender.serve("runs/onnx", **closed) as server:
            done = bertender.deploy("runs/int8", server.http_url, admin_token_file="token")
        print(done.state, done.version, done.golden.texts)
    """
    from bertender.recipes.calls import opened, plain

    config = load_place("serve.config:DeployConfig").parse(plain(settings))
    source = opened(artifact, verify=False)  # checked when its files are placed
    deployment = load_place("serve.deploy:deploy")(source, os.fspath(to), config)
    return cast("Deployment", deployment)
