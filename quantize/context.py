"""Context of a quantization, the input of every scheme: its texts, scores and float graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedModel

from bertender.comparison.accuracy import (
    encoded_buckets,
    evaluate,
    evaluate_all,
    score_findings,
    word_count,
)
from bertender.core.artifact import Artifact
from bertender.core.errors import DataError
from bertender.core.files import scratch_folder
from bertender.core.findings import (
    ChoiceScores,
    ScoreFindings,
    SensitivityFindings,
    TrainingFindings,
)
from bertender.core.progress import track
from bertender.gate.judge import TOLERANCES, check_parity, labelled_sample
from bertender.models.classifier import Classifier
from bertender.models.runtimes import RUNTIMES
from bertender.problems.problem import Problem
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.tasks.task import Split, Task
from bertender.text.batch import Batch, Encode, Example
from quantize.config import QuantizeConfig
from quantize.graph import Inventory, Product, open_watched, take_inventory
from quantize.integers import Histogram, Integers8, Range, Target

FloatArray = npt.NDArray[np.float32]
ROWS = 256
"""Most rows of an activation, tokens or pooled states, for measuring its products."""
BINS = 2048
TOKENS_PER_BATCH = 2048
FITTED_TEXTS = 128
"""Training texts for smoothing activations and rounding weights."""


@dataclass(frozen=True)
class Batches:
    """Texts as batches of similar length, which can be iterated more than once."""

    encode: Encode
    examples: Sequence[Example]
    description: str = "calibrate"
    problem: Problem[Any] = SINGLE_LABEL

    def __post_init__(self) -> None:
        if not self.examples:
            raise DataError(
                "no texts to calibrate on, at least 1 is needed: the task has no training "
                "examples. Give a task with some, by --task or --train."
            )

    def __iter__(self) -> Iterator[Batch]:
        buckets = encoded_buckets(self.encode, self.examples, TOKENS_PER_BATCH)
        for bucket in track(buckets, self.description, len(buckets)):
            yield self.encode([self.examples[row] for row in bucket])

    def of_two_lengths(self) -> Batch:
        """Return the longest text and its first word, as a batch of mixed lengths."""
        longest = max(self.examples, key=word_count)
        shortest, _ = self.problem.edge_examples([longest], 1)
        return self.encode([longest, shortest])


def observed(
    graph: Path, tensors: Sequence[str], batches: Batches
) -> Iterator[Mapping[str, FloatArray]]:
    """Yield, for each batch, the values of some tensors of a graph at positions with text.

    Values at padding are left out. One batch is in memory at a time.
    """
    names = list(dict.fromkeys(tensors))
    with scratch_folder() as folder:
        session = open_watched(graph, names, folder)
        inputs = [node.name for node in session.get_inputs()]
        for batch in batches:
            arrays = session.run(names, {name: batch.arrays[name] for name in inputs})
            real = batch.arrays["attention_mask"].astype(bool)
            yield {name: at_tokens(array, real) for name, array in zip(names, arrays, strict=True)}


def at_tokens(values: Any, mask: Any) -> Any:
    """Return the values of an activation at positions with text; all of one without tokens.

    Args:
        values: array or tensor: (batch, seq, ...); (seq, batch, ...), as in XLNet; (batch * seq,
            inputs), as in GPT-2; or without tokens, as a pooled (batch, inputs).
        mask: (batch, seq), of the same library.
    """
    if values.ndim == 2:
        tokens = mask.reshape(-1)
        return values[tokens] if len(values) == len(tokens) else values
    for real in (mask, mask.T):
        if values.shape[:2] == real.shape:
            return values[real]
    return values


def observed_rows(
    context: QuantizationContext, products: Sequence[Product]
) -> Iterator[tuple[str, FloatArray]]:
    """Yield the activations of products on training texts, batch by batch: (tokens, inputs)."""
    inputs = {each.activation: each.inputs for each in products}
    texts = context.texts(FITTED_TEXTS, "observe activations")
    for values in observed(context.graph, [*inputs], texts) if inputs else ():
        for name, array in values.items():
            yield name, array.reshape(-1, inputs[name])


def spaced(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return ROWS of the rows at most, evenly spaced."""
    return np.asarray(rows[np.linspace(0, len(rows) - 1, min(ROWS, len(rows))).astype(int)])


def histograms(graph: Path, tensors: Sequence[str], batches: Batches) -> dict[str, Histogram]:
    """Count the values of some tensors of a float graph, without padding.

    It passes over the texts twice: the first pass finds each tensor's smallest and largest value,
    the second counts its values in between.
    """
    lows, highs = dict.fromkeys(tensors, np.inf), dict.fromkeys(tensors, -np.inf)
    for values in observed(graph, tensors, batches):
        for name, array in values.items():
            lows[name] = min(lows[name], float(array.min()))
            highs[name] = max(highs[name], float(array.max()))
    counts = {name: np.zeros(BINS, dtype=np.int64) for name in tensors}
    for values in observed(graph, tensors, batches):
        for name, array in values.items():
            counts[name] += np.histogram(array, BINS, (lows[name], highs[name]))[0]
    return {name: Histogram(lows[name], highs[name], counts[name]) for name in tensors}


@dataclass(frozen=True)
class Written:
    """Report of a scheme on its written graph."""

    quantized: tuple[str, ...]
    """Nodes that now multiply integers."""
    float_nodes: Mapping[str, str] = field(default_factory=dict)
    """Node that remains in float -> reason."""
    ranges: Mapping[str, Range] = field(default_factory=dict)
    """Ranges of static activations, by tensor name."""
    products_of_4_bits: int | None = None
    weight_bits: Mapping[str, int] | None = None
    """Bits of weights that are stored with fewer than 8 and multiplied in 8, by node."""
    tables_of_4_bits: int | None = None
    fused_attentions: int | None = None
    """Number of fused attentions; None if `fused_attention` is off."""
    sensitivity: SensitivityFindings | None = None
    """Findings if parts may return to float."""
    training: TrainingFindings | None = None
    thresholds: Mapping[str, float] | None = None
    """Thresholds of labels, fitted to a trained model, which has them in its biases."""
    fitted: Mapping[str, float] | None = None
    """Decoding parameters fitted to a trained model; None for the source's."""
    reference: Classifier | None = None
    """Model that the graph must agree with; None for the source."""
    float_graph: Path | None = None
    """Graph to compare its products with; None for the float graph."""
    score: float | None = None
    """Score on the validation texts, if the scheme needed it."""
    tolerance: str | None = None
    """A row of TOLERANCES, if it is not the precision's own."""


@dataclass(frozen=True)
class QuantizationContext:
    """Context of a quantization, the input of every scheme."""

    source: Artifact
    task: Task
    config: QuantizeConfig
    target: Target
    graph: Path
    """The float graph; not there yet for a torch source."""
    work: Path
    """Folder for a training's checkpoints."""
    folder: Path
    """Folder for temporary files."""
    classifier: Classifier
    """The float model."""
    write_onnx: Callable[[Artifact, Path], object] | None = None
    """Writes a torch artifact's graph into a directory."""
    smoothing_db: Mapping[str, float] = field(default_factory=dict)
    """Smoothed activations of the float graph -> reduction of their noise."""
    integer_weights: Mapping[str, Integers8] = field(default_factory=dict)
    """Weights -> their integers, (inputs, outputs); other weights are rounded to the nearest."""
    fitted: Mapping[str, float] | None = None
    """Decoding parameters of new graphs; None for the source's."""

    @cached_property
    def inventory(self) -> Inventory:
        return take_inventory(self.graph)

    def opened(self, graph: Path) -> Classifier:
        """Return a classifier for another graph, in the runtime of the gates."""
        predictor, problem = RUNTIMES[self.config.runtime].open(graph), self.classifier.problem
        if self.fitted is not None:
            problem = problem.with_fitted(self.fitted)
        return replace(self.classifier, predictor=predictor, problem=problem)

    @property
    def float_nodes(self) -> dict[str, str]:
        """Nodes that stay in float in every scheme -> reason."""
        tables = self.inventory.tables if self.config.no_embeddings else ()
        return {**self.inventory.float_nodes, **dict.fromkeys(tables, "left by --no-embeddings")}

    @property
    def tables(self) -> list[str]:
        """The table look-ups to quantize."""
        return [] if self.config.no_embeddings else [*self.inventory.tables]

    def texts(self, count: int, description: str) -> Batches:
        """Return some training texts, drawn with the seed."""
        examples = self.drawn(count).examples
        return Batches(self.classifier.encode, examples, description, self.task.problem)

    def drawn(self, count: int) -> Split:
        """Return some training examples with labels, drawn with the seed."""
        split = self.task.calibration
        rows = np.random.default_rng(self.config.seed).permutation(len(split))[:count]
        return Split(
            tuple(split.examples[row] for row in rows), tuple(split.label_ids[row] for row in rows)
        )

    @cached_property
    def score_before(self) -> float:
        """The float model's score on the validation texts."""
        return self.score_of(self.classifier)

    def score_of(self, classifier: Classifier) -> float:
        """Return a classifier's score on the validation texts."""
        return evaluate(classifier, self.task.choices, self.task.metric)[0].value

    def score(self, graph: Path) -> float:
        """Return a graph's score on the validation texts."""
        return self.score_of(self.opened(graph))

    def drop(self, score: float) -> float:
        """Return the points lost, rounded so that 0.5 is not above a bound of 0.5."""
        return round(100 * (self.score_before - score), 6)

    def held_out_scores(self, graph: Path, score: float, **more: Any) -> ScoreFindings:
        """Return the held-out scores before and after, evaluated once at the end, and the choice's.

        Args:
            graph: graph to keep.
            score: its score on the validation texts.
            more: other fields of ScoreFindings.
        """
        held_out, metric = self.task.dev, self.task.metric
        after, predictions = evaluate_all(self.opened(graph), held_out, metric)
        before = self.score_before
        if self.task.chosen_on == "selection":
            before = evaluate(self.classifier, held_out, metric)[0].value
        choice = ChoiceScores(before=self.score_before, after=score, n=len(self.task.choices))
        more |= {"score_before": before, "choice": choice}
        return score_findings(self.task, after, predictions, **more)

    def agrees(self, graph: Path, tolerance: str) -> bool:
        """Return whether a graph passes the parity gate by a row of TOLERANCES."""
        config = self.config
        examples, truth = labelled_sample(
            self.task, self.task.choices, config.parity_texts, config.seed
        )
        return check_parity(
            self.classifier,
            self.opened(graph),
            examples,
            TOLERANCES[tolerance],
            truth=truth,
            seed=config.seed,
        ).passed


class Writer:
    """Writes the graph of a row of SCHEMES."""

    def check(self, model: PreTrainedModel) -> None:
        """Raise ModelError if the scheme cannot quantize a torch model, or its graph.

        It is for the plan of a recipe, which has the model before there is a graph.
        """

    def write(self, context: QuantizationContext, target: Path) -> Written:
        """Quantize the float graph, or the float model, into the graph `target`."""
        raise NotImplementedError
