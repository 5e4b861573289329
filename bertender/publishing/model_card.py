"""The model card of an artifact: the README.md shown by a hub, with its metadata.

All figures are from the artifact's own card or from a saved comparison; figures that were not
measured are left out. A README.md is not part of an artifact: it affects no output, and no digest
includes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from bertender.comparison.records import (
    Comparison,
    ComparisonRow,
    measure_size,
    read_comparison,
)
from bertender.comparison.table import MEGABYTE, NOISY, is_noisy, marked, number, short
from bertender.core.artifact import IMPORT_STAGE, Artifact, lineage
from bertender.core.card import CARD_NAME, TaskRecord
from bertender.core.config import Config
from bertender.core.errors import DataError
from bertender.core.findings import ScoreFindings
from bertender.core.progress import visible
from bertender.metrics.metric import CONFIDENCE
from bertender.models.onnx_session import ONNX_NAME
from bertender.problems import PROBLEMS

README_NAME = "README.md"
SOMEWHERE = "OWNER/NAME"
"""Placeholder for the repository in a card that has none yet."""
TAG = "bertender"
OWN_FAMILY = "bertender-"
"""Prefix of families that transformers does not know."""
SENTENCE_FILES = "modules.json"
"""File in folders of sentence-transformers."""

PIPELINES: Mapping[str, str] = {
    "single_label_classification": "text-classification",
    "multi_label_classification": "text-classification",
    "regression": "text-classification",
    "token_classification": "token-classification",
    "question_answering": "question-answering",
    "multiple_choice": "multiple-choice",
    "sentence_embedding": "sentence-similarity",
    "ranking": "text-ranking",
    "masked_language_model": "fill-mask",
}
"""Kind of problem -> the hub's name of its task; several heads have no such name."""
LIBRARIES: Mapping[str, str] = {"torch": "transformers", "onnx": "onnx", "bag-of-words": TAG}
"""Kind of artifact -> the hub's name of its library; bundles name their own."""
IN_TRANSFORMERS = frozenset({"text-classification", "token-classification", "question-answering"})
"""Tasks with a pipeline in transformers."""

PIPELINE_SETTINGS: Mapping[str, str] = {
    "multi_label_classification": ", top_k=None",
    "regression": ', function_to_apply="none"',
}
"""Kind of problem -> arguments for the pipeline, which by default shows one label only and takes a
number for a logit."""


class ModelCardConfig(Config):
    """Settings of a model card."""

    panel: ClassVar[str] = "Model card"

    comparison: Path | None = Field(
        None,
        description="saved comparison (compare --out) with a row of the artifact: score with "
        "interval, and time",
    )
    base_model: str | None = Field(
        None, description="hub name of the encoder that it comes from, where no file records it"
    )
    license: str | None = Field(
        None, description="licence by the hub's name, as apache-2.0; unknown by default"
    )


@dataclass(frozen=True)
class Measured:
    """An artifact's row of a saved comparison."""

    comparison: Comparison
    row: ComparisonRow


@dataclass(frozen=True)
class HeldOutScore:
    """A held-out score, and the texts that it is of."""

    metric: str
    task: str
    """Name of the task of the texts."""
    value: float
    n: int | None = None
    interval: tuple[float, float] | None = None
    undefined: str | None = None

    @classmethod
    def of_row(cls, measured: Measured) -> HeldOutScore:
        """Return the score of a row of a comparison."""
        score, task = measured.row.score, measured.comparison.circumstances.task
        interval = score.low, score.high
        return cls(score.metric, task, score.value, score.n, interval, score.undefined)

    @classmethod
    def of_findings(cls, scores: ScoreFindings, task: TaskRecord) -> HeldOutScore:
        """Return the score on a card, whose task's metric and name older findings lack."""
        metric = scores.metric or task.metric
        interval = _wilson(metric, scores.score, scores.n)
        name = scores.task or task.name
        return cls(metric, name, scores.score, scores.n, interval, scores.undefined)

    def line(self, own_task: str, of: str = "") -> str:
        """Return a line of a table.

        Args:
            own_task: task of the artifact; another one is named.
            of: model of the score, if it is not the artifact's own.
        """
        texts = "" if self.task == own_task else f" of task {_code(self.task)}"
        between = f" [{self.interval[0]:.3f}, {self.interval[1]:.3f}]" if self.interval else ""
        value = f"{number(self.value)}{between}" + (f", n = {self.n}" if self.n else "")
        return f"| {self.metric}, held-out texts{texts}{of} | {self.undefined or value} |"


def model_card(artifact: Artifact, config: ModelCardConfig, repository: str = SOMEWHERE) -> str:
    """Return the text of an artifact's README.md, metadata included.

    Args:
        artifact: artifact, whose card has the findings.
        config: facts that the findings lack.
        repository: its present or future name on a hub.

    Raises:
        DataError: the comparison cannot be read, or has no row for this artifact.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    measured = _measured(artifact, config.comparison)
    task, name = artifact.card.task, repository.rpartition("/")[2]
    pipeline = PIPELINES.get(task.problem_type)
    score = _own_score(artifact, measured)
    results = None
    if score is not None and score.undefined is None and pipeline is not None:
        results = [
            EvalResult(
                task_type=pipeline,
                dataset_type=score.task,
                dataset_name=score.task,
                metric_type=score.metric,
                metric_value=round(score.value, 4),
            )
        ]
    data = ModelCardData(
        license=config.license,
        library_name=_library(artifact),
        pipeline_tag=pipeline,
        base_model=config.base_model or base_model(artifact),
        tags=[TAG, artifact.card.stage, artifact.card.precision],
        metrics=[score.metric if score else task.metric],
        model_name=name,
        eval_results=results,
    )
    lines = [
        f"# {name}",
        "",
        *_summary(artifact),
        *_section("Measured", _figures(artifact, measured)),
        *_section("Use", _uses(artifact, repository, pipeline)),
        *_section("Limits", _limits(artifact)),
        *_section("Made from", _ancestors(artifact, config)),
    ]
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n" + "\n".join(lines) + "\n"))


def base_model(artifact: Artifact) -> str | None:
    """Return the hub name of the model from which an artifact's first ancestor started.

    A recorded name with a slash may also be a folder: it counts as a hub name if it was imported
    from a commit, or is in the hub's cache on this machine.
    """
    from huggingface_hub import try_to_load_from_cache

    from bertender.core.hub import CONFIG_NAME, hub_cache

    known = [each for each in lineage(artifact) if isinstance(each, Artifact)]
    config = known[-1].card.config
    source = config.get("source") or config.get("teacher")
    if not isinstance(source, str):
        return None
    name = source.rpartition("@")[0] or source
    if known[-1].card.stage == IMPORT_STAGE:
        return name if config.get("revision") else None
    if name.count("/") > 1 or name.startswith((".", "/")):
        return None
    cached = try_to_load_from_cache(name, CONFIG_NAME, cache_dir=hub_cache())
    return name if isinstance(cached, str) else None


def _measured(artifact: Artifact, path: Path | None) -> Measured | None:
    """Return the artifact's row of a saved comparison; None without a comparison."""
    if path is None:
        return None
    comparison = read_comparison(path)
    rows = [row for row in comparison.rows if row.digest == artifact.digest]
    if not rows:
        listed = ", ".join(f"{row.name} ({row.digest[:12]})" for row in comparison.rows)
        raise DataError(
            f"comparison={path}: no row is of {artifact.place} ({artifact.digest[:12]}); its rows "
            f"are {listed}. Measure it: bertender compare {artifact.place} --out FILE."
        )
    return Measured(comparison, rows[0])


def _library(artifact: Artifact) -> str | None:
    """Return the hub's name for the library that opens an artifact."""
    if artifact.card.family.startswith(OWN_FAMILY) and artifact.card.kind == "torch":
        return TAG
    if SENTENCE_FILES in artifact.card.files and artifact.card.kind == "torch":
        return "sentence-transformers"
    return LIBRARIES.get(artifact.card.kind)


def _summary(artifact: Artifact) -> Iterator[str]:
    """Yield the first paragraph: what the model does, and in which form."""
    card = artifact.card
    problem = PROBLEMS.get(card.task.problem_type)
    does = problem.summary if problem else card.task.problem_type.replace("_", " ")
    yield (
        f"Task {_code(card.task.name)}: {does}. Family {_code(card.family)}, {card.kind}, "
        f"{card.precision}, made by `bertender {card.stage}`."
    )


def _section(title: str, lines: Iterator[str]) -> list[str]:
    """Return a section; empty if it has no lines."""
    own = [*lines]
    return ["", f"## {title}", "", *own] if own else []


def _own_score(artifact: Artifact, measured: Measured | None) -> HeldOutScore | None:
    """Return the held-out score of the artifact itself; None if it was not measured."""
    if measured is not None:
        return HeldOutScore.of_row(measured)
    scores = artifact.card.findings.scores
    return None if scores is None else HeldOutScore.of_findings(scores, artifact.card.task)


def _figures(artifact: Artifact, measured: Measured | None) -> Iterator[str]:
    """Yield a table of score, size and latency, and their conditions."""
    yield "| Figure | Value |"
    yield "| --- | --- |"
    if measured is not None:
        yield HeldOutScore.of_row(measured).line(artifact.card.task.name)
    else:
        yield from _recorded_score(artifact)
    size = measure_size(artifact, artifact.card.findings.parameters)
    if size.millions is not None:
        yield f"| parameters | {short(size.millions)} million |"
    yield f"| size on disk | {short(size.artifact_size_bytes / MEGABYTE)} MB |"
    parity = artifact.card.findings.parity
    if parity is not None and parity.agreement is not None:
        yield (
            f"| predictions equal to those of {_code(parity.reference)} | "
            f"{parity.agreement:.4f} over {parity.texts} texts |"
        )
    if measured is not None:
        yield from _time(measured)


def _recorded_score(artifact: Artifact) -> Iterator[str]:
    """Yield the score of an artifact, or that of its nearest ancestor with one."""
    known = [each for each in lineage(artifact) if isinstance(each, Artifact)]
    scored = next((each for each in known if each.card.findings.scores is not None), None)
    if scored is None or (scores := scored.card.findings.scores) is None:
        return
    of = "" if scored is artifact else f" of {_code(scored.name)}, which it was made from"
    yield HeldOutScore.of_findings(scores, scored.card.task).line(artifact.card.task.name, of)
    if scores.chosen_on == "dev":
        yield "| settings were chosen on | these same texts, which flatters the score |"
    if scores.constant:
        words = scores.constant.words.replace("|", "\\|")
        yield f"| on these texts | it {words} |"


def _wilson(metric: str, score: float, n: int | None) -> tuple[float, float] | None:
    """Return the 95 % interval of an accuracy; None for other metrics, whose interval does not
    follow from value and count."""
    if metric != "accuracy" or not n:
        return None
    from scipy.stats import binomtest  # scipy takes a second to import

    interval = binomtest(round(score * n), n).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)


def _time(measured: Measured) -> Iterator[str]:
    """Yield the latency of one text, and the machine of the measurement."""
    conditions = measured.comparison.circumstances
    noisy = is_noisy(measured.comparison)
    (time,) = marked((short(measured.row.latency.single.p50_ms),), noisy)
    runs = measured.row.runtime or measured.row.kind
    busy = f"; {NOISY} is of a busy machine" if noisy else ""
    yield f"| one text, median, tokenisation included | {time} ms |"
    yield (
        f"| timed in | {runs}, {conditions.threads} threads, {conditions.environment.cpu_model}, "
        f"texts of {short(conditions.lengths.mean_words)} words on average{busy} |"
    )


def _uses(artifact: Artifact, repository: str, pipeline: str | None) -> Iterator[str]:
    """Yield the ways to run the model, each as a code block."""
    card = artifact.card
    if bundle := card.findings.bundle:
        yield f"It opens as {bundle.opens_as}."
        yield from (f"- {note}" for note in bundle.notes)
    elif card.kind == "onnx":
        yield from _block("python", _onnxruntime(artifact, repository))
        yield from _block("sh", [f"bertender serve {repository}"])
    elif card.task.labels:
        yield from _block("python", _in_python(artifact, repository, pipeline))
    if card.task.calibration and not card.findings.bundle:  # a bundle's notes say this
        how = card.task.calibration.words(f"`{CARD_NAME}`")
        yield f"Its probabilities are {how}. bertender does so; other libraries do not."
    if card.kind == "torch" and card.task.labels:
        yield from _block(
            "sh", [f"bertender export {repository} --out onnx", "bertender serve onnx"]
        )


def _in_python(artifact: Artifact, repository: str, pipeline: str | None) -> list[str]:
    """Return the lines that run a PyTorch model, with its library or only with bertender."""
    card, kind = artifact.card, artifact.card.task.problem_type
    if SENTENCE_FILES in card.files:
        return [
            "from sentence_transformers import SentenceTransformer",
            f'vectors = SentenceTransformer("{repository}").encode(["a text of yours"])',
        ]
    if _library(artifact) == TAG or pipeline not in IN_TRANSFORMERS:
        more = ', "another one"' if len(card.task.text_columns) > 1 else ","
        return [
            "import bertender",
            f'model = bertender.open_model("{repository}")',
            f'logits = model.logits([("a text of yours"{more})])',
        ]
    asked = '"a text of yours"'
    if pipeline == "question-answering":
        asked = 'question="Who?", context="a text of yours"'
    elif len(card.task.text_columns) > 1:
        asked = '{"text": "a text of yours", "text_pair": "another one"}'
    return [
        "from transformers import pipeline",
        f'model = pipeline("{pipeline}", model="{repository}")',
        f"print(model({asked}{PIPELINE_SETTINGS.get(kind, '')}))",
    ]


def _onnxruntime(artifact: Artifact, repository: str) -> Iterator[str]:
    """Yield the lines that run a graph in ONNX Runtime, with the session options of bertender."""
    findings, is_pair = artifact.card.findings, len(artifact.card.task.text_columns) > 1
    yield "import onnxruntime"
    yield "from huggingface_hub import snapshot_download"
    yield "from transformers import AutoTokenizer"
    yield ""
    yield f'folder = snapshot_download("{repository}")'
    options = []
    if findings.session_config:
        yield "options = onnxruntime.SessionOptions()"
        for key, value in findings.session_config.items():
            yield f"options.add_session_config_entry({json.dumps(key)}, {json.dumps(value)})"
        options.append("options")
    if findings.left_out_optimizers:
        options.append(f"disabled_optimizers={[*findings.left_out_optimizers]!r}")
    more = "".join(f", {each}" for each in options)
    yield f'session = onnxruntime.InferenceSession(f"{{folder}}/{ONNX_NAME}"{more})'
    limit = artifact.card.max_length
    cut = f", max_length={limit}" if limit else ""
    texts = '"a text of yours", "another one"' if is_pair else '"a text of yours"'
    yield "tokenizer = AutoTokenizer.from_pretrained(folder)"
    yield f'tokens = tokenizer({texts}, truncation=True{cut}, return_tensors="np")'
    yield "names = [each.name for each in session.get_inputs()]"
    yield "outputs = session.run(None, {name: tokens[name] for name in names})"


def _block(language: str, lines: Iterator[str] | Sequence[str]) -> Iterator[str]:
    yield f"```{language}"
    yield from lines
    yield "```"


def _limits(artifact: Artifact) -> Iterator[str]:
    """Yield the model's limits, as far as its card knows them."""
    card = artifact.card
    problem = PROBLEMS.get(card.task.problem_type)
    if problem is not None and problem.names_labels and card.task.labels:
        yield f"- Its labels, and no others: {', '.join(map(_code, card.task.labels))}."
    if card.max_length:
        windows = card.findings.lengths is not None and card.findings.lengths.windows
        read = "read in several windows" if windows else "cut there"
        yield f"- It reads {card.max_length} tokens of a text. Longer texts are {read}."
    else:
        yield "- Texts longer than its tokenizer's limit are cut."
    if card.findings.lengths is not None:
        yield from (f"- {line}." for line in card.findings.lengths.lines())
    yield "- Its figures are of one data set. On other texts it was not measured."


def _ancestors(artifact: Artifact, config: ModelCardConfig) -> Iterator[str]:
    """Yield the ancestors of a model, the nearest first, and missing statements."""
    known = [each for each in lineage(artifact) if isinstance(each, Artifact)]
    for each in known:
        card = each.card
        yield (
            f"- `bertender {card.stage}`: {card.kind}, {card.precision}, seed {card.seed}, digest "
            f"`{each.digest[:12]}`"
        )
    if base := config.base_model or base_model(artifact):
        yield f"- base model: [{base}](https://huggingface.co/{base})"
    versions = ", ".join(f"{name} {version}" for name, version in artifact.card.versions.items())
    yield f"- versions: {versions}"
    yield f"- licence: {config.license or 'unknown; nobody has stated one'}"


def _code(text: str) -> str:
    """Return a text as inline code of Markdown, whatever characters it has."""
    shown = visible(text)
    if "`" not in shown and "|" not in shown:
        return f"`{shown}`"
    return "`` " + shown.replace("``", "` `").replace("|", "\\|") + " ``"


def stated_places(value: Any) -> Any:
    """Return plain values with absolute paths shortened to file names.

    The card of a published artifact names the files that it was made from, without their folders.
    """
    if isinstance(value, str):
        return Path(value).name if value.startswith("/") else value
    if isinstance(value, Mapping):
        return {key: stated_places(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [stated_places(each) for each in value]
    return value
