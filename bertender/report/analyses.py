"""Analyses of a model's layers and heads: the settings and results of `analyse`, and their display
in a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from bertender.core.artifact import Artifact
from bertender.core.config import Config, Record, parts_of, read_record
from bertender.core.errors import ConfigError, DataError, ModelError
from bertender.core.files import check_parent, save_result, save_text
from bertender.report import charts
from bertender.report.attention import PATTERNS
from bertender.report.charts import Figure

AnalysisName = Literal["importance", "masking", "attention", "similarity"]
ANALYSES: tuple[AnalysisName, ...] = ("importance", "masking", "attention", "similarity")


class AnalyseConfig(Config):
    """Settings of `analyse`."""

    panel: ClassVar[str] = "Analysis"
    main: ClassVar[tuple[str, ...]] = ("only", "texts")

    only: Annotated[tuple[AnalysisName, ...], BeforeValidator(parts_of)] = Field(
        ANALYSES,
        min_length=1,
        description="analyses by commas: importance of heads (gradient), masking (the score "
        "without each head, and with each head alone in its layer), attention (patterns, and its "
        "share on special tokens and punctuation), similarity (SelfSim and IntraSim of each layer)",
    )
    texts: int = Field(
        200,
        ge=1,
        description="held-out texts to read, at most; masking reads them twice for each head",
    )


ANALYSIS_NAME = "analysis.json"
PICTURES = (
    *("importance", "without-one", "one-alone", "patterns", "attention-on"),
    "similarity",
)
"""Names of the pictures, without suffix."""

Map = tuple[tuple[float, ...], ...]
"""A row per layer, from the lowest, with a value per head."""


class Masking(Record):
    """Scores without some heads (Michel et al. 2019, arXiv 1905.10650, section 3)."""

    metric: str
    score: float | None = Field(
        description="of the whole model on the same texts; None where the metric is undefined"
    )
    without: tuple[tuple[float | None, ...], ...] = Field(
        description="with one head masked; likewise"
    )
    alone: tuple[tuple[float | None, ...], ...] = Field(
        description="with all other heads of its layer masked; None in layers of one head too"
    )


class AttentionOfHead(Record):
    """Attention of a head on all texts."""

    patterns: dict[str, float] = Field(description="share of the texts, by pattern")
    on: dict[str, float] = Field(description="share of the attention, by kind of token")


class SimilarityFindings(Record):
    """Similarities of hidden states, the embeddings first, then each layer."""

    words: int = Field(description="tokens that are in five texts at least")
    anisotropy: tuple[float, ...] = Field(description="mean cosine of random words")
    self_similarity: tuple[float, ...] | None = Field(
        None, description="SelfSim less anisotropy; None where no word is in five texts"
    )
    intra_similarity: tuple[float, ...] | None = Field(
        None, description="IntraSim less anisotropy; None where no text has two words"
    )


class Analysis(Record):
    """The analyses of a model; None for those not requested."""

    name: str
    artifact: str
    digest: str
    family: str
    task: str
    texts: int = Field(description="held-out texts that were read")
    versions: dict[str, str]
    importance: Map | None = Field(
        None, description="of heads by the gradient of the loss, over the norm of their layer"
    )
    masking: Masking | None = None
    attention: tuple[tuple[AttentionOfHead, ...], ...] | None = Field(
        None, description="a row each layer"
    )
    similarity: SimilarityFindings | None = None


def check_analysable(artifact: Artifact) -> None:
    """Raise ModelError if an artifact has no heads that PyTorch can analyse."""
    if artifact.card.kind != "torch":
        raise ModelError(
            f"{artifact.place} is of kind {artifact.card.kind!r}, and only PyTorch models are "
            "analysed. Give the model that it was made from; `bertender show` lists it."
        )


def check_folder(out: Path) -> None:
    """Raise ConfigError if `out` cannot be a folder of analyses: it is a file, or a folder with
    other files and without an analysis."""
    check_parent("--out", out, ANALYSIS_NAME)
    there = [each for each in out.iterdir() if each.name[0] != "."] if out.is_dir() else []
    if there and not (out / ANALYSIS_NAME).is_file():
        raise ConfigError(
            f"--out {out} holds other files than an analysis. Give a new folder, or that of an "
            "earlier analysis."
        )


def save_analysis(analysis: Analysis, out: Path) -> list[str]:
    """Write an analysis and its pictures into a folder; return the names of the files."""
    out.mkdir(parents=True, exist_ok=True)
    for name in PICTURES:  # an earlier analysis may have had other pictures
        (out / f"{name}.svg").unlink(missing_ok=True)
    save_result(analysis, out / ANALYSIS_NAME)  # first: `check_folder` knows a folder by it
    names = []
    for name, figure in figures_of(analysis).items():
        save_text(charts.svg({**figure.spec, "title": figure.title}), out / f"{name}.svg")
        names.append(f"{name}.svg")
    return [ANALYSIS_NAME, *names]


def read_analysis(folder: Path) -> Analysis:
    """Read a saved analysis.

    Raises:
        DataError: there is no saved analysis.
    """
    path = folder / ANALYSIS_NAME if folder.is_dir() else folder
    try:
        return read_record(Analysis, path)
    except ValueError as reason:
        raise DataError(
            f"{path} is not a saved analysis ({reason}). Give the --out of `bertender analyse`."
        ) from None


def analysis_lines(analysis: Analysis) -> Iterator[str]:
    """Yield the main figures of an analysis, for a terminal."""
    yield f"{analysis.name}, on {analysis.texts} held-out texts of {analysis.task}"
    if masking := analysis.masking:
        every = [score for layer in masking.without for score in layer if score is not None]
        if masking.score is None or not every:
            yield f"{masking.metric} is undefined on these texts, so that no head has a cost"
        else:
            yield (
                f"{masking.metric} {masking.score:.3f}; without one head {min(every):.3f} to "
                f"{max(every):.3f}; {sum(score >= masking.score for score in every)} of "
                f"{len(every)} heads cost nothing when masked"
            )
    if analysis.attention is not None:
        shares = by_layer(analysis.attention)
        mean = {name: sum(own[name] for own in shares) / len(shares) for name in PATTERNS}
        yield ", ".join(f"{name} {share:.0%}" for name, share in mean.items())


def figures_of(analysis: Analysis) -> dict[str, Figure]:
    """Return the charts of an analysis by file name."""
    figures: dict[str, Figure] = {}
    if analysis.importance is not None:
        figures["importance"] = Figure(
            "Importance of heads",
            "How much the loss would change with a gate on the head, as a share of the norm of its "
            "layer. The stronger the colour, the more important.",
            charts.heat_map(analysis.importance, "importance"),
        )
    masking = analysis.masking
    if masking is not None and masking.score is not None:
        by = masking.metric
        figures["without-one"] = Figure(
            f"Change of {by} without one head",
            f"The whole model has {masking.score:.3f}. Orange heads are missed, blue ones cost "
            "score.",
            charts.heat_map(changes(masking.without, masking.score), "change"),
        )
        figures["one-alone"] = Figure(
            f"Change of {by} with one head alone in its layer",
            "All other heads of the layer are masked. Where a head's cell is pale, it does the "
            "work of its layer alone.",
            charts.heat_map(changes(masking.alone, masking.score), "change"),
        )
    if analysis.attention is not None:
        figures["patterns"] = Figure(
            "Patterns of attention",
            "Share of the maps, over the heads of a layer and the texts.",
            charts.shares(by_layer(analysis.attention), "share of the maps"),
        )
        kinds = [*analysis.attention[0][0].on]
        figures["attention-on"] = Figure(
            "Attention on special tokens and punctuation",
            "Share of the attention, the mean over the heads of a layer.",
            charts.lines(
                {
                    kind: [
                        sum(head.on[kind] for head in layer) / len(layer)
                        for layer in analysis.attention
                    ]
                    for kind in kinds
                },
                1,
                "share of the attention",
            ),
        )
    if similarity := analysis.similarity:
        lines = {"anisotropy": similarity.anisotropy}
        if similarity.self_similarity is not None:
            lines["SelfSim, adjusted"] = similarity.self_similarity
        if similarity.intra_similarity is not None:
            lines["IntraSim, adjusted"] = similarity.intra_similarity
        figures["similarity"] = Figure(
            "Similarity of hidden states",
            "SelfSim: of one word in different texts, the less, the more context is in it. "
            "IntraSim: of the words of a text. Both less the mean similarity of random words. "
            "Layer 0 is the embeddings.",
            charts.lines(lines, 0, "cosine similarity"),
        )
    return figures


def changes(scores: Sequence[Sequence[float | None]], whole: float) -> list[list[float | None]]:
    """Return scores minus that of the whole model."""
    return [[None if each is None else each - whole for each in layer] for layer in scores]


def by_layer(attention: Sequence[Sequence[AttentionOfHead]]) -> list[dict[str, float]]:
    """Return the share of each pattern over the heads of each layer."""
    return [
        {name: sum(head.patterns[name] for head in layer) / len(layer) for name in PATTERNS}
        for layer in attention
    ]
