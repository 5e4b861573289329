"""The Python functions of bertender, from paths or objects to artifacts or records.

Each function runs the stage of the same name with the settings of its command: a config, keywords,
or both; unknown settings are errors, as in the command. Slow imports are inside the functions,
since `classify` needs none of them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, Unpack, cast

from bertender.core.artifact import Artifact, check_not_finished, copy_artifact
from bertender.core.config import Config, Record
from bertender.core.errors import BertenderError as BertenderError  # a name of the package face
from bertender.core.errors import ConfigError
from bertender.core.files import check_savable, scratch_folder
from bertender.scoring.scorer import Scorer as Scorer  # likewise
from bertender.tasks.task import Task, TaskConfig, in_labels_of
from bertender.tasks.teacher_files import is_teacher_file

if TYPE_CHECKING:
    from bertender.comparison.calibration import CalibrateConfig
    from bertender.comparison.records import CompareConfig, Comparison
    from bertender.compression.config import CompressConfig
    from bertender.compression.report import CompressionReport
    from bertender.gate.artifacts import Verification, VerifyConfig
    from bertender.models.classifier import Classifier
    from bertender.models.sentence_files import PoolingName
    from bertender.recipes.recipe import Recipe, StepOutcome
    from bertender.scoring.config import ScoreConfig
    from bertender.scoring.score import ScoreRun
    from distill.distillation.config import DistillConfig, GeneralConfig
    from distill.finetuning.config import MultiTaskConfig
    from distill.pretraining.config import PretrainConfig
    from distill.pruning.config import PruneConfig
    from export.config import BundleConfig, ExportConfig
    from quantize.config import QuantizeConfig
    from serve.client.endpoint import Classification
    from serve.config import DeployConfig, LocalServeConfig
    from serve.deploy import Deployment
    from serve.server.server import Server

logger = logging.getLogger(__name__)

PathLike: TypeAlias = str | os.PathLike[str]
ArtifactLike: TypeAlias = Artifact | PathLike
TaskLike: TypeAlias = Task | str | Mapping[str, Any]


def load_task(task: str | None = None, /, **settings: Any) -> Task:
    """Load a task: its texts, its labels and its metric.

    Args:
        task: a name from `bertender tasks`; none for your own files.
        settings: the commands' options for the task, such as `train`, `dev`, `text_column`,
            `select` and `max_train`.

    Raises:
        UnknownNameError: `bertender tasks` does not list the name.
        DataError: a file is wrong; the message names row and column.

    Example:
        task = bertender.load_task(train="train.csv", dev="dev.csv")
        print(task.labels, len(task.train))
    """
    from bertender.tasks.loading import load_task as load

    by_name = {} if task is None else {"task": task}
    return load(TaskConfig.parse({**by_name, **plain(settings)}))


def import_model(
    source: PathLike,
    task: str | Mapping[str, Any] | None = None,
    *,
    out: PathLike,
    labels: Sequence[str] | None = None,
    pooling: PoolingName | None = None,
    force: bool = False,
) -> Artifact:
    """Write a model that was trained elsewhere as an artifact.

    Every function takes such a model directly; importing writes it once, with its label names and
    the data to evaluate it on.

    Args:
        source: a folder that `save_pretrained` wrote, a folder or file of ONNX with its tokenizer,
            or a hub's NAME or NAME@REVISION.
        task: a name or the settings of `load_task`, whose labels become the model's; `dev`
            alone is enough. Where config.json states no problem type, or the model has one output,
            `problem_type` defines the meaning of its outputs.
        out: directory of the artifact.
        labels: names of the labels in the order of the logits; by default those of config.json.
        pooling: `mean`, `cls` or `lasttoken`, to make an encoder without a head output text
            vectors.
        force: replace a finished artifact there.

    Raises:
        NotAnArtifactError: there is no model.
        ModelError: it has no classification head, or its weights are a pickle.

    Example:
        teacher = bertender.import_model("theirs", {"dev": "dev.csv"}, out="runs/imported")
        print(teacher.card.task.labels)
    """
    from bertender.models.importing import import_model as imported
    from bertender.recipes.recorded_task import recorded_task
    from bertender.tasks.loading import problem_type_named

    settings, out = _task_settings(task), Path(_at_home(out))
    check_not_finished(out, force)
    with scratch_folder() as folder:
        made = imported(
            *(_at_home(source), folder / out.name),
            labels=labels,
            pooling=pooling,
            problem_type=problem_type_named(settings),
        )
        if {"task", "train", "dev"} & settings.keys():
            judged = recorded_task(made, settings)
            judged.check_problem(made)
            made = made.of_task(judged.record())
        elif settings.keys() - {"problem_type"}:
            made = _with_columns(made, settings)
        return copy_artifact(made, out)


def _with_columns(artifact: Artifact, settings: Mapping[str, Any]) -> Artifact:
    """Return a model without data with its text columns: two if it reads pairs."""
    if unread := settings.keys() - {"text_column", "pair_column", "problem_type"}:
        raise ConfigError(
            f"{', '.join(sorted(unread))}: for data, and none are named. Give --dev FILE besides, "
            "or leave it out."
        )
    config = TaskConfig.parse(settings)
    first = settings.get("text_column", artifact.card.task.text_columns[0])
    columns = (str(first), *([config.pair_column] if config.pair_column else []))
    record = artifact.card.task.model_copy(update={"text_columns": columns})
    return replace(artifact, card=artifact.card.model_copy(update={"task": record}))


def pretrain(
    corpus: PathLike,
    config: PretrainConfig | None = None,
    *,
    out: PathLike,
    force: bool = False,
    **settings: Any,
) -> Artifact:
    """Pre-train a small encoder on plain text.

    Args:
        corpus: a file or folder of plain text, or another value of `bertender pretrain --corpus`.
        config: settings of the stage, as an object.
        out: directory of the artifact.
        force: replace a finished artifact there.
        settings: the options of `bertender pretrain`.

    Example:
        encoder = bertender.pretrain("corpus.txt", out="runs/encoder", layers=4, hidden_size=64)
    """
    return make("pretrain", [], None, config, {"corpus": corpus, **settings}, out, force)


def distill_general(
    teacher: ArtifactLike,
    corpus: PathLike,
    config: GeneralConfig | None = None,
    *,
    out: PathLike,
    force: bool = False,
    **settings: Any,
) -> Artifact:
    """Distil an encoder into a smaller one on plain text, before any task.

    Args:
        teacher: an artifact, an encoder's folder or its name.
        corpus: corpus as for `pretrain`.
        config: settings of the stage, as an object.
        out: directory of the artifact.
        force: replace a finished artifact there.
        settings: the options of `bertender distill-general`.

    Example:
        small = bertender.distill_general("runs/encoder", "corpus.txt", out="runs/small", layers=2)
    """
    chosen = {"teacher": teacher, "corpus": corpus, **settings}
    return make("distill-general", [], None, config, chosen, out, force)


def finetune(
    task: TaskLike,
    config: MultiTaskConfig | None = None,
    *,
    out: PathLike,
    force: bool = False,
    **settings: Any,
) -> Artifact:
    """Fine-tune an encoder on a task: the teacher.

    Args:
        task: a name, a `Task`, or the settings of `load_task`.
        config: settings of the stage, as an object.
        out: directory of the artifact.
        force: replace a finished artifact there.
        settings: the options of `bertender finetune`; `teacher` is the encoder to start from.

    Example:
        files = {"train": "train.csv", "dev": "dev.csv"}
        start = {"teacher": "runs/encoder", "learning_rate": 1e-3}
        teacher = bertender.finetune(files, out="runs/teacher", **start)
    """
    return make("finetune", [], task, config, settings, out, force)


def distill(
    teacher: ArtifactLike,
    task: TaskLike | None = None,
    config: DistillConfig | None = None,
    *,
    out: PathLike,
    force: bool = False,
    **settings: Any,
) -> Artifact:
    """Train a smaller student on a teacher's outputs.

    Args:
        teacher: the artifact to learn from, or a data file with probabilities or labels.
        task: a name, a `Task`, or the settings of `load_task`; by default the teacher's task. For a
            data file, a held-out file with true labels is enough: `{"dev": "dev.csv"}`.
        config: settings of the stage, as an object.
        out: directory of the artifact.
        force: replace a finished artifact there.
        settings: the options of `bertender distill`.

    Example:
        small = {"layers": 2, "learning_rate": 1e-3}
        student = bertender.distill("runs/teacher", out="runs/student", method="pkd", **small)
    """
    return make("distill", [teacher], task, config, settings, out, force)


def prune(
    artifact: ArtifactLike,
    task: TaskLike | None = None,
    config: PruneConfig | None = None,
    *,
    out: PathLike,
    force: bool = False,
    **settings: Any,
) -> Artifact:
    """Cut a model's least important heads and neurons, then train what remains.

    Args:
        artifact: the classifier to prune.
        task: task as for `distill`.
        config: settings of the stage, as an object.
        out: directory of the artifact.
        force: replace a finished artifact there.
        settings: the options of `bertender prune`.

    Example:
        pruned = bertender.prune("runs/student", out="runs/pruned", heads=0.25, ffn=0.25)
    """
    return make("prune", [artifact], task, config, settings, out, force)


def export(
    artifact: ArtifactLike,
    task: TaskLike | None = None,
    config: ExportConfig | None = None,
    *,
    out: PathLike,
    force: bool = False,
    **settings: Any,
) -> Artifact:
    """Write a model as ONNX, and check that it predicts the same.

    Args:
        artifact: the classifier to export.
        task: task as for `distill`; the parity check reads its texts.
        config: settings of the stage, as an object.
        out: directory of the artifact.
        force: replace a finished artifact there.
        settings: the options of `bertender export`.

    Raises:
        ParityError: the graph's predictions differ from the model's; nothing is written.

    Example:
        onnx = bertender.export("runs/student", out="runs/onnx")
    """
    return make("export", [artifact], task, config, settings, out, force)


def quantize(
    artifact: ArtifactLike,
    task: TaskLike | None = None,
    config: QuantizeConfig | None = None,
    *,
    out: PathLike,
    force: bool = False,
    **settings: Any,
) -> Artifact:
    """Quantize a model to 8 bits or fewer, and check it against the float model.

    Args:
        artifact: an artifact of `export`; for schemes that train, the classifier itself.
        task: task as for `distill`; settings are chosen on its texts.
        config: settings of the stage, as an object.
        out: directory of the artifact.
        force: replace a finished artifact there.
        settings: the options of `bertender quantize`.

    Raises:
        ParityError, GateError: the gate refuses the model; nothing is written.

    Example:
        int8 = bertender.quantize("runs/onnx", out="runs/int8", scheme="dynamic")
    """
    return make("quantize", [artifact], task, config, settings, out, force)


def bundle(
    artifact: ArtifactLike,
    task: TaskLike | None = None,
    config: BundleConfig | None = None,
    *,
    out: PathLike,
    force: bool = False,
    **settings: Any,
) -> Artifact:
    """Write a model in the layout of another program, and check it there.

    Args:
        artifact: the graph to bundle; a torch classifier is exported first.
        task: task as for `distill`; the check reads its texts.
        config: settings of the stage, as an object.
        out: directory of the bundle.
        force: replace a finished artifact there.
        settings: the options of `bertender bundle`.

    Raises:
        ModelError: the program has no kernels for the artifact, or no support for its kind.
        ParityError: the bundle's predictions differ from the artifact's; nothing is written.

    Example:
        folder = bertender.bundle("runs/onnx", out="runs/page", to="browser")
    """
    return make("bundle", [artifact], task, config, settings, out, force)


def calibrate(
    artifact: ArtifactLike,
    task: TaskLike | None = None,
    config: CalibrateConfig | None = None,
    *,
    out: PathLike,
    force: bool = False,
    **settings: Any,
) -> Artifact:
    """Write a copy of a model with calibrated probabilities.

    Args:
        artifact: a model of labels, sets of labels, tags or choices.
        task: task as for `distill`; its validation texts calibrate, and its held-out texts
            evaluate.
        config: settings of the stage, as an object.
        out: directory of the artifact.
        force: replace a finished artifact there.
        settings: the options of `bertender calibrate`.

    Raises:
        ConfigError: there are no validation texts, or the model has no probabilities.

    Example:
        files = {"train": "fresh.csv", "dev": "dev.csv", "select": 0.5}
        calibrated = bertender.calibrate("runs/int8", files, out="runs/calibrated")
        print(calibrated.card.task.calibration)
    """
    return make("calibrate", [artifact], task, config, settings, out, force)


def compress(
    teacher: ArtifactLike,
    task: TaskLike | None = None,
    config: CompressConfig | None = None,
    *,
    out: PathLike,
    force: bool = False,
    **settings: Any,
) -> CompressionReport:
    """Make the best model within limits on its size, latency and score.

    The returned report has every candidate, predicted or measured, and the chosen one.

    Args:
        teacher: the artifact to learn from.
        task: task as for `distill`.
        config: settings of `compress`, as an object.
        out: directory for the artifact `model`, the report and all candidates.
        force: replace a finished artifact there that no earlier compression has made.
        settings: the options of `bertender compress`.

    Raises:
        ConfigError: no candidate can be within the limits; the message names the nearest one.

    Example:
        small = {"max_mb": 5, "layers": [1, 2], "epochs": 1, "students": [], "processes": 1}
        report = bertender.compress("runs/teacher", out="runs/compressed", **small)
        print(report.chosen, report.verdict)
    """
    from bertender.compression.compress import Compression
    from bertender.compression.config import CompressConfig

    chosen, source = CompressConfig.parse(_merged(config, settings)), opened(teacher)
    own = in_labels_of(task_of([source], task), source)
    return Compression(source, own, chosen, Path(_at_home(out)), force=force).run()


def verify(
    reference: ArtifactLike,
    candidate: ArtifactLike,
    task: TaskLike | None = None,
    config: VerifyConfig | None = None,
    *,
    out: PathLike | None = None,
    **settings: Any,
) -> Verification:
    """Check that a model predicts as its reference does.

    Args:
        reference: the artifact with the right predictions.
        candidate: the artifact to check.
        task: task as for `distill`, by default the reference's; its held-out texts are compared.
        config: settings of the stage, as an object.
        out: a JSON file for the result.
        settings: the options of `bertender verify`.

    Raises:
        ParityError: the predictions differ; the message has every failed check.

    Example:
        parity = bertender.verify("runs/student", "runs/int8")
        print(parity.agreement, parity.max_abs_difference)
    """
    made = _report("verify", [reference, candidate], task, config, settings, out)
    return cast("Verification", made)


def compare(
    artifacts: Sequence[ArtifactLike],
    task: TaskLike | None = None,
    config: CompareConfig | None = None,
    *,
    out: PathLike | None = None,
    **settings: Any,
) -> Comparison:
    """Measure the size, score and speed of models against each other.

    Args:
        artifacts: artifacts to compare; changes and speedups are relative to the first.
        task: task as for `distill`, by default the first artifact's; its held-out texts are read.
        config: settings of the stage, as an object.
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
    return cast("Comparison", _report("compare", artifacts, task, config, settings, out))


def open_model(
    artifact: ArtifactLike,
    *,
    threads: int = 0,
    max_length: int | None = None,
    runtime: str = "onnxruntime",
) -> Classifier:
    """Open a model of any kind for predictions in this process.

    Its `logits` raise DataError for texts that a data file could not have either.

    Args:
        artifact: a torch or onnx classifier, or a bag of words.
        threads: threads of the runtime; 0 takes OMP_NUM_THREADS, or the runtime's default if it is
            not set.
        max_length: longest input in tokens; by default the artifact's, as in training.
        runtime: runtime for an onnx artifact: onnxruntime, openvino and openvino-bf16, which are an
            extra, or onnxruntime-cuda, which needs a GPU.

    Raises:
        RuntimeMissingError: the runtime is not installed, or does not support this machine; the
            message says what to install.
        ConfigError: the artifact is quantized, and the runtime would convert it back to floats; or
            a number is not allowed.
        ModelError: the files are not a model that this machine can run.

    Example:
        model = bertender.open_model("runs/int8")
        logits = model.logits([("a text of yours",), ("another one",)])  # (batch, labels)
        print([model.labels[best] for best in logits.argmax(axis=1)])
    """
    from bertender.models.classifier import open_classifier

    return open_classifier(
        opened(artifact), threads=threads, max_length=max_length, runtime=runtime
    ).checking()


def score(
    artifact: ArtifactLike,
    source: PathLike,
    config: ScoreConfig | None = None,
    *,
    out: PathLike,
    force: bool = False,
    **settings: Any,
) -> ScoreRun:
    """Write the predictions for any number of texts, in parts; an interrupted run continues.

    Args:
        artifact: a classifier of any kind.
        source: a file of texts, a folder of files, or a pattern.
        config: settings of `score`, as an object.
        out: folder for the parts.
        force: start again over the parts of another command.
        settings: the options of `bertender score`.

    Raises:
        ConfigError: the folder has the parts of another command, or other files.
        DataError: a file is wrong; the message names row and column.

    Example:
        run = bertender.score("runs/int8", "dev.csv", out="runs/scored", format="parquet")
        print(run.texts, run.complete)
    """
    from bertender.scoring.config import ScoreConfig
    from bertender.scoring.score import score as scored

    chosen = ScoreConfig.parse(_merged(config, settings))
    place = Path(_at_home(out))
    return scored(opened(artifact), _at_home(source), place, chosen, force)


def serve(
    artifact: ArtifactLike | Mapping[str, ArtifactLike],
    config: LocalServeConfig | None = None,
    **settings: Any,
) -> AbstractContextManager[Server]:
    """Serve a model over HTTP and gRPC: ready inside the block, stopped after it.

    Args:
        artifact: an onnx classifier, served as the model `classifier`; or several by model name.
        config: settings of `serve`, as an object.
        settings: the options of `bertender serve`; port 0 takes any free port. `profile` is a file
            of `tune`, with values for settings that are not set here.

    Raises:
        ServingError: the server cannot start.

    Example:
        with bertender.serve("runs/int8", http_port=0, metrics_port=0) as server:
            print(server.http_url, server.metrics_url)
    """
    from serve.config import LocalServeConfig
    from serve.profiles import with_profile
    from serve.repository import check_name
    from serve.server.server import serving

    chosen = LocalServeConfig.parse(_merged(config, settings))
    if not isinstance(artifact, Mapping):
        artifact = {"classifier": artifact}
    # they are verified when the repository is written
    models = {name: opened(each, verify=False) for name, each in artifact.items()}
    for name in models:
        check_name(name)
    chosen, taken = with_profile(chosen, [each.card for each in models.values()])
    if taken:
        logger.info("%s", taken)
    return serving(models, chosen)


class AccessFiles(TypedDict, total=False):
    """Files with which a client verifies a server and authenticates itself."""

    ca_file: PathLike
    client_certificate: PathLike
    client_key: PathLike
    api_key_file: PathLike


def classify(
    texts: Sequence[str | tuple[str, ...]],
    url: str = "http://127.0.0.1:8000",
    *,
    model: str = "classifier",
    batch_size: int | None = None,
    timeout_s: float = 60.0,
    retries: int | None = None,
    **access: Unpack[AccessFiles],
) -> list[Classification]:
    """Send texts to a served model; loads no model library.

    Args:
        texts: texts, or pairs of texts.
        url: `http://host:port` or `grpc://host:port`, `https://` or `grpcs://` with TLS; the
            default is that of `bertender serve`.
        model: its name on the server.
        batch_size: texts per request; the default and maximum is the model's limit.
        timeout_s: longest wait for one request in seconds, including retries.
        retries: how often to send a request again if the server rejects it for now, or nothing
            listens there; by default until `timeout_s` is over, and 3 times for the first request.
        access: `ca_file`, `client_certificate`, `client_key` and `api_key_file`, as in the options
            of `bertender classify`.

    Raises:
        DataError: `texts` is not a sequence of texts or pairs, or a text is empty.
        ServingError: no endpoint responds there (UnreachableError) or not in time (DeadlineError),
            or the server rejects the request for now (OverloadedError) or refuses it.

    Example:
        with bertender.serve("runs/int8", http_port=0, metrics_port=0) as server:
            results = bertender.classify(["a text of yours", "another one"], server.http_url)
        print(results[0].label, results[0].score)
    """
    from bertender.text.batch import to_examples
    from serve.client.access import AccessConfig
    from serve.client.endpoint import classify as ask

    return ask(
        to_examples(texts),
        url,
        model=model,
        batch_size=batch_size,
        timeout_s=timeout_s,
        retries=retries,
        access=AccessConfig.parse(access),
    )


def deploy(
    artifact: ArtifactLike, to: PathLike, config: DeployConfig | None = None, **settings: Any
) -> Deployment:
    """Replace a served model by an artifact, if its predictions are still those of its creation.

    The artifact is tested next to the served model, which responds meanwhile and stays if the
    artifact fails.

    Args:
        artifact: an onnx classifier with golden texts.
        to: address of a running `bertender serve` on this machine, or the directory of a model
            repository.
        config: settings of `deploy`, as an object.
        settings: the options of `bertender deploy`; an address needs `admin_token_file`.

    Raises:
        ConfigError: the address, the token or the name of the model is wrong.
        ModelError, ArtifactError: the artifact cannot be served, or has no golden texts.
        BusyError: another process deploys there.
        DeploymentError: the artifact is for another task, does not load, or its predictions differ
            from those of its creation.
        ServingError: the server has died meanwhile.

    Example:
        closed = {"http_port": 0, "metrics_port": 0, "admin_token_file": "token"}
        with bertender.serve("runs/onnx", **closed) as server:
            done = bertender.deploy("runs/int8", server.http_url, admin_token_file="token")
        print(done.state, done.version, done.golden.texts)
    """
    from serve.config import DeployConfig
    from serve.deploy import deploy as replace_served

    chosen = DeployConfig.parse(_merged(config, settings))
    source = opened(artifact, verify=False)  # checked when its files are copied
    return replace_served(source, _at_home(to), chosen)


def run_recipe(
    recipe: PathLike | Recipe,
    *,
    out: PathLike | None = None,
    fresh: bool = False,
    force: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> list[StepOutcome]:
    """Run the steps of a recipe, reusing steps that are already built.

    Args:
        recipe: a name from `bertender recipes`, or a .yaml file.
        out: directory for the artifact or JSON file of each step; by default `runs/RECIPE`. A
            recipe with several tasks has a folder there for each, and `averages.json`.
        fresh: build every step again.
        force: replace finished artifacts there that no run of a recipe has made.
        settings: `STEP.KEY` -> value, and `task.KEY` -> value, to change in the recipe.

    Raises:
        BertenderError: any error of a step, with the name of the step before the message.

    Example:
        fewer = {"student.layers": 1}
        steps = bertender.run_recipe("recipe.yaml", out="runs/recipe", settings=fewer)
        print([(step.output, step.reused) for step in steps])
    """
    from bertender.recipes.recipe import Recipe, Setting, load_recipe, recipes_of, save_averages
    from bertender.recipes.recipe import run_recipe as run

    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(_at_home(recipe))
    parted = ((*place.partition("."), value) for place, value in plain(settings or {}).items())
    chosen = chosen.with_settings(Setting(step, key, value) for step, _, key, value in parted)
    directory = Path(_at_home(out or Path("runs") / chosen.name))
    found = {
        folder.name: [*run(own, folder, fresh=fresh, force=force)]
        for folder, own in recipes_of(chosen, directory, force=force).items()
    }
    save_averages(found, directory)
    return [outcome for outcomes in found.values() for outcome in outcomes]


def make(
    name: str,
    sources: Sequence[ArtifactLike],
    task: TaskLike | None,
    config: Config | None,
    settings: Mapping[str, Any],
    out: PathLike,
    force: bool,
) -> Artifact:
    """Run a stage that writes an artifact; with `force`, over a finished one."""
    from bertender.recipes.stages import STAGES

    stage, whole, out = STAGES[name], _merged(config, settings), Path(_at_home(out))
    if stage.file_setting and sources and is_teacher_file(sources[0]):
        whole[stage.file_setting], sources = os.fspath(cast(PathLike, sources[0])), sources[1:]
    chosen = stage.parse(whole)
    stage.check_out(chosen, out, force)
    artifacts = [opened(source) for source in sources]
    loaded = None
    if stage.needs_task:
        brings = stage.brings_labels(chosen)
        loaded = task_to_score(task) if brings else task_of(artifacts, task)
    return stage.make(artifacts, loaded, chosen, out)


def task_to_score(task: TaskLike | None) -> Task:
    """Return the task for a stage whose teacher is a file; a held-out file is enough.

    Raises:
        ConfigError: there are no gold labels to score by.
    """
    from bertender.tasks.loading import load_task as load

    if isinstance(task, Task):
        return task
    settings = _task_settings(task)
    if not {"task", "dev"} & settings.keys():
        raise ConfigError(
            "the teacher is a file, and no gold labels are named to score the student by: on the "
            "labels that it learned, a score would be agreement with the teacher, and not how "
            "often it is right. Give --dev FILE with texts and true labels, or --task NAME."
        )
    return load(TaskConfig.parse(settings), has_model=True)


def _report(
    name: str,
    sources: Sequence[ArtifactLike],
    task: TaskLike | None,
    config: Config | None,
    settings: Mapping[str, Any],
    out: PathLike | None,
) -> Artifact | Record:
    """Run a stage that reports; the report is saved at `out`, if given."""
    from bertender.recipes.stages import STAGES

    stage, out = STAGES[name], None if out is None else Path(_at_home(out))
    check_savable("--out", out, "JSON")
    chosen = stage.parse(_merged(config, settings))
    artifacts = [opened(source) for source in sources]
    loaded = task_of(artifacts, task)
    with scratch_folder() as folder:
        place = out or folder / "report.json"
        return stage.run(artifacts, loaded, chosen, place)


def opened(source: ArtifactLike, *, verify: bool = True) -> Artifact:
    """Return an artifact, loading it from a path, by default with a check of its digests."""
    if isinstance(source, Artifact):
        return source
    from bertender.models.importing import open_artifact

    return open_artifact(_at_home(source), verify=verify)


def _at_home(place: PathLike) -> str:
    # by pathlib "./a" would be a hub's "a", and "~a" an error where no user has that name
    return os.path.expanduser(os.fspath(place))  # noqa: PTH111


def task_of(artifacts: Sequence[Artifact], task: TaskLike | None) -> Task:
    """Return the given task, or else the one that the first artifact records.

    Raises:
        ConfigError: there is neither a task nor an artifact.
    """
    from bertender.recipes.recorded_task import task_of_models
    from bertender.tasks.loading import load_task as load
    from bertender.tasks.named import TASKS

    if isinstance(task, Task):
        return task
    settings = _task_settings(task)
    if artifacts:
        return task_of_models(artifacts, settings)
    if not {"task", "train", "dev"} & settings.keys():
        raise ConfigError(  # training on a default task would be a mistake
            "no data: give your files with --train FILE and --dev FILE (CSV, TSV, JSONL or "
            "Parquet; --text-column and --label-column name their columns), or --task NAME: "
            f"{', '.join(TASKS)}."
        )
    return load(TaskConfig.parse(settings))


def _task_settings(task: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the settings of a task, which its name may stand for."""
    return {"task": task} if isinstance(task, str) else plain(task or {})


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as in a command or recipe: artifacts and paths as strings."""

    def named(value: Any) -> Any:
        if isinstance(value, Artifact):
            return str(value.path)
        if isinstance(value, list | tuple):
            return [named(each) for each in value]
        return os.fspath(value) if isinstance(value, os.PathLike) else value

    return {name: named(value) for name, value in settings.items()}


def _merged(config: Config | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the explicit settings of a config, overridden by those of keywords."""
    explicit = config.model_fields_set if config is not None else ()
    return {**{name: getattr(config, name) for name in explicit}, **plain(settings)}
