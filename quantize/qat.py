"""Quantization-aware training, and a graph with the learned scales.

Zafrir et al. 2019 (Q8BERT, arXiv 1910.06188), section 2: the weights and activations of every
linear layer, and embedding tables, are rounded in the forward pass; the gradient ignores the
rounding (straight-through). Ranges of activations are moving averages, those of weights their
current largest value. By default the loss includes the float model's logits besides the labels. The
graph is written with the learned ranges, so that it computes the same as the fake-quantized model.
Departures, for ONNX Runtime's kernels: activations are unsigned with a zero point, weights have a
scale for each output, biases remain in float.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.utils import parametrize
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from bertender.comparison.accuracy import (
    TOKENS_PER_BATCH,
    encoded_buckets,
    predict,
    predict_outputs,
)
from bertender.comparison.fitting import epoch_score, fit_decoding, fit_thresholds
from bertender.core.artifact import Artifact, new_artifact
from bertender.core.errors import ModelError
from bertender.models.classifier import (
    Classifier,
    TorchPredictor,
    load_torch_classifier,
    model_inputs,
)
from bertender.models.graphs import move_graph
from bertender.models.onnx_session import FEWER_BITS, ONNX_NAME
from bertender.models.runtimes import saturates
from bertender.text.batch import Example
from bertender.text.tokenizer import load_tokenizer
from bertender.training.examples import TensorBatch, TokenDataset, token_dataset
from bertender.training.heads import head_of
from bertender.training.loop import TrainingReport, train, training_findings
from bertender.training.steps import LossParts
from quantize.context import QuantizationContext, Writer, Written, at_tokens
from quantize.integers import INTEGERS, Integers, Range
from quantize.post_training import write_with_ranges

DECAY = 0.9999
"""Decay of the moving averages, as in the paper."""
TEACHER_LOGITS = "teacher_logits"
ORIGINAL = "parametrizations.weight.original"
"""PyTorch's name of the weight behind a parametrization."""
LEAST_SCALE = float(torch.finfo(torch.float32).tiny)

RowRounding = Callable[[nn.Embedding, torch.Tensor, torch.Tensor], torch.Tensor]
"""(table, row indices, these rows) -> quantized rows, with the gradient of the rows"""


class Qat(Writer):
    """Training with 8-bit errors."""

    def check(self, model: PreTrainedModel) -> None:
        if any(isinstance(each, nn.LSTM) for each in model.modules()):
            raise ModelError(
                f"a {model.config.model_type!r} model has an LSTM, and schemes that train round "
                "linear layers alone. Export it, and quantize it with --scheme dynamic."
            )

    def write(self, context: QuantizationContext, target: Path) -> Written:
        start = start_of(context)
        shared = len({*start.paths.values()}) < len(start.paths)
        if shared and saturates() and context.target.has_8_bit_weights:
            raise ModelError(FEWER_BITS)  # this CPU cannot open the model
        integers = INTEGERS[context.target.weights]
        weights = {
            path: RoundedWeight(integers, axis_of_inputs(start.model.get_submodule(path)))
            for path in start.paths.values()
        }
        trained = train_graph(start, weights, start.tables, target)
        return trained.report(write_with_ranges(trained.context, target, trained.ranges))


@dataclass(frozen=True)
class Start:
    """A float model before training."""

    context: QuantizationContext
    """Context with the graph of the untrained model, which shows what can be quantized."""
    model: PreTrainedModel

    @cached_property
    def paths(self) -> dict[str, str]:
        """Product's node -> path of its layer in the model."""
        known = {name for name, _ in self.model.named_modules()}
        return {each.node: each.module(known) for each in self.context.inventory.products}

    @property
    def tables(self) -> dict[str, RowRounding]:
        """Functions that round the rows of each embedding to 8 bits, by its path."""
        names = (self.context.inventory.tables[lookup] for lookup in self.context.tables)
        return dict.fromkeys(map(path_of_table, names), round_rows)


@dataclass(frozen=True)
class Trained:
    """A model trained with rounding errors."""

    context: QuantizationContext
    """Context with the float graph of the trained weights."""
    model: FakeQuantized
    paths: Mapping[str, str]
    """Product's node -> path of its layer in the model."""
    training: TrainingReport
    thresholds: Mapping[str, float] | None
    """Thresholds that are now part of the biases, by label; None without any."""
    fitted: Mapping[str, float]
    """Decoding parameters of the trained model."""

    @property
    def ranges(self) -> dict[str, Range]:
        """The learned range of each product's activation, by tensor name."""
        learned, products = self.model.ranges(), self.context.inventory.products
        return {each.activation: learned[self.paths[each.node]] for each in products}

    def report(self, written: Written) -> Written:
        """Return a scheme's report on the trained model's quantized graph; ends the training."""
        classifier = self.context.classifier
        self.model.fuse()
        predictor = TorchPredictor(self.model.student)
        problem = classifier.problem.with_fitted(self.fitted)
        return replace(
            written,
            training=training_findings({"labels": self.training}),
            thresholds=self.thresholds,
            fitted=self.fitted,
            reference=replace(
                classifier, name="fake-quantized", predictor=predictor, problem=problem
            ),
            tolerance="fake-quantized",
            float_graph=self.context.graph,
        )


def path_of_table(name: str) -> str:
    """Return an embedding's path in the model, given the name of its table in the graph."""
    return name.removesuffix(".weight")


def start_of(context: QuantizationContext) -> Start:
    """Load the float model, and export it to find what can be quantized."""
    assert context.write_onnx is not None
    folder = context.folder / "before"
    folder.mkdir()
    context.write_onnx(context.source, folder)
    model = load_torch_classifier(context.source, attn_implementation="eager")
    return Start(replace(context, graph=folder / ONNX_NAME), model)


def train_graph(
    start: Start,
    weights: Mapping[str, WeightRounding],
    tables: Mapping[str, RowRounding],
    target: Path,
) -> Trained:
    """Train a model with the errors of its quantized form, and export it.

    Args:
        start: start, whose model is trained in place.
        weights: path of each layer to quantize -> rounding of its weight. tables: path of each
            embedding to quantize -> function that rounds its rows.
        target: path of the quantized graph; its companion files are written next to it.
    """
    context, config = start.context, start.context.config
    fake = FakeQuantized(start.model, weights, tables, context.target.activations)
    fake.eval()
    with fake.widening(), torch.inference_mode(), parametrize.cached():
        for batch in context.texts(config.calibration_texts, "find ranges"):
            fake({name: torch.from_numpy(array) for name, array in batch.arrays.items()})
    head = head_of(context.task.problem)

    def objective(model: nn.Module, batch: TensorBatch, step: int) -> LossParts:
        logits = head.joined(model(batch), batch)
        parts = {"hard": head.hard_loss(logits, batch)}
        if soft := config.soft_labels:
            parts["soft"] = soft * head.soft_loss(logits, batch[TEACHER_LOGITS], batch, 1.0)
        return parts

    report = train(
        fake,
        _examples(context),
        objective,
        config,
        context.work,
        description="quantize",
        at_epoch_end=lambda each: score_while_training(context, each),
    )
    fake.eval()
    fitting = (fake.student, load_tokenizer(context.source.path), context.task)
    with parametrize.cached():
        thresholds = fit_thresholds(*fitting) if context.task.problem.has_thresholds else None
        fitted = fit_decoding(*fitting)
    graph = _export(context, fake, target)
    return Trained(replace(context, graph=graph), fake, start.paths, report, thresholds, fitted)


def _examples(context: QuantizationContext) -> TokenDataset:
    """Return the training examples, with the float model's logits if these are learned."""
    split, problem_type = context.task.train, context.task.problem_type
    tokenizer = load_tokenizer(context.source.path, context.config.max_length)
    examples = token_dataset(split, tokenizer, problem_type)
    if not context.config.soft_labels:
        return examples
    if examples.counts is not None:  # the logits of each example's rows
        found = predict_outputs(context.classifier, split.examples)
        known = [torch.from_numpy(each.logits) for each in found]
        return examples.with_columns(**{TEACHER_LOGITS: known})
    if not context.task.problem.per_token:
        logits = torch.from_numpy(predict(context.classifier, split.examples))
        return examples.with_columns(**{TEACHER_LOGITS: logits})
    classifier = replace(context.classifier, encode=context.task.problem.encoder(tokenizer))
    columns = {**examples.columns, TEACHER_LOGITS: _token_logits(classifier, split.examples)}
    return TokenDataset(columns, examples.padding.with_others(**{TEACHER_LOGITS: 0}))


def _token_logits(classifier: Classifier, examples: Sequence[Example]) -> list[torch.Tensor]:
    """Return the logits (seq, labels) of each token row of some examples, in their order.

    `predict` gives those of words alone, and later parts of words are learned too.
    """
    found: dict[int, Sequence[torch.Tensor]] = {}
    for bucket in encoded_buckets(classifier.encode, examples, TOKENS_PER_BATCH):
        batch = classifier.encode([examples[number] for number in bucket])
        logits = torch.from_numpy(classifier.predictor.logits(batch))  # (rows, seq, labels)
        real = torch.from_numpy(batch.arrays["attention_mask"]).bool()
        if not torch.isfinite(logits[real]).all():
            raise ModelError(
                f"{classifier.name} predicts with NaN or infinite logits. Train it again."
            )
        rows = [own[mask] for own, mask in zip(logits, real, strict=True)]
        found.update(zip(bucket, batch.by_example(rows), strict=True))
    return [row for number in range(len(examples)) for row in found[number]]


def score_while_training(context: QuantizationContext, fake: FakeQuantized) -> dict[str, float]:
    """Return the score of the model as it will be exported, by metric; its mode is kept.

    In train mode, ranges would follow the held-out texts and their padding.
    """
    training = fake.training
    fake.eval()
    try:
        with parametrize.cached():  # weights are rounded once, not for each batch
            tokenizer = load_tokenizer(context.source.path)
            return epoch_score(fake.student, tokenizer, context.task, context.config)
    finally:
        fake.train(training)


def _export(context: QuantizationContext, fake: FakeQuantized, target: Path) -> Path:
    """Export the trained weights; companion files are written next to `target`."""
    assert context.write_onnx is not None
    model = load_torch_classifier(context.source)
    model.load_state_dict(fake.trained_weights())
    card, path = context.source.card, context.folder / "trained"
    with new_artifact(
        path,
        kind="torch",
        family=card.family,
        task=card.task,
        stage="quantize",
        config=context.config,
        seed=context.config.seed,
        max_length=card.max_length,
        parent=context.source,
    ) as draft:
        model.save_pretrained(draft.directory)
        load_tokenizer(context.source.path).save_pretrained(draft.directory)
    context.write_onnx(Artifact.load(path), target.parent)
    return move_graph(target, context.folder)


def rounded(
    values: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | float, integers: Integers
) -> torch.Tensor:
    """Return quantized values with the gradient of the float values."""
    steps = (values / scale).round() + zero_point
    left = (steps.clamp(integers.lowest, integers.highest) - zero_point) * scale
    return straight_through(values, left)


def straight_through(values: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
    """Return exactly the quantized values, with the gradient of the float values."""
    return left.detach() + (values - values.detach())


def rounded_range(
    values: torch.Tensor, low: torch.Tensor, high: torch.Tensor, integers: Integers
) -> torch.Tensor:
    """Round values to the integers that span a range, which is extended to include 0."""
    low, high = low.clamp(max=0), high.clamp(min=0)
    if integers.symmetric:
        high = torch.maximum(-low, high)
        low = -high
    scale = ((high - low) / (integers.highest - integers.lowest)).clamp(min=LEAST_SCALE)
    zero_point = 0.0 if integers.symmetric else (integers.lowest - low / scale).round()
    return rounded(values, scale, zero_point, integers)


class WeightRounding(nn.Module):
    """Rounding of a linear layer's weight (outputs, inputs) in the forward pass."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the rounded weight, with the gradient of the float weight."""
        return weight

    def exported(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight for the trained model's float graph."""
        return weight


def axis_of_inputs(layer: nn.Module) -> int:
    """Return the axis of a linear layer's weight that is summed over.

    Raises:
        ModelError: the layer is of another kind.
    """
    for kind, axis in ((nn.Linear, 1), (Conv1D, 0)):
        if isinstance(layer, kind):
            return axis
    raise ModelError(
        f"the model multiplies weights in a {type(layer).__name__}, and schemes that train round "
        "linear layers alone. Export it, and quantize it with --scheme dynamic."
    )


class RoundedWeight(WeightRounding):
    """8 bits, with a scale for each output.

    Args:
        integers: a row of INTEGERS.
        inputs: axis of the inputs; 0 for GPT-2's layers, whose weights are (inputs, outputs).
    """

    def __init__(self, integers: Integers, inputs: int = 1) -> None:
        super().__init__()
        self.integers = integers
        self.inputs = inputs

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        largest = weight.detach().abs().amax(dim=self.inputs, keepdim=True)
        scale = (largest / self.integers.highest).clamp(min=LEAST_SCALE)
        return rounded(weight, scale, 0.0, self.integers)


def round_rows(table: nn.Embedding, numbers: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Round looked-up rows of an embedding table to 8 bits, by the range of the whole table."""
    return rounded_range(rows, *table.weight.detach().aminmax(), INTEGERS["uint8"])


class _RoundedActivation(nn.Module):
    """Fake quantization of a linear layer's input, with a range that follows training batches."""

    differs_in_training: ClassVar[bool] = True

    low: torch.Tensor
    high: torch.Tensor
    seen: torch.Tensor

    def __init__(self, integers: Integers) -> None:
        super().__init__()
        self.integers = integers
        for name in ("low", "high"):
            self.register_buffer(name, torch.zeros(()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.bool))
        self.mask: torch.Tensor | None = None
        """(batch, seq): positions with text, by which ranges are updated."""
        self.widening = False
        """Whether to record the whole range of the batches instead of averages, without
        rounding."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.training or self.widening:
            self._watch(values.detach())
        if self.widening:
            return values
        return rounded_range(values, self.low, self.high, self.integers)

    def _watch(self, values: torch.Tensor) -> None:
        if self.mask is not None:
            values = at_tokens(values, self.mask)
        for mine, now, wider in zip(
            (self.low, self.high), values.aminmax(), (torch.minimum, torch.maximum), strict=True
        ):
            later = wider(mine, now) if self.widening else mine * DECAY + now * (1 - DECAY)
            mine.copy_(torch.where(self.seen, later, now))
        self.seen.fill_(True)


class FakeQuantized(nn.Module):
    """A classifier whose linear layers and embedding tables have quantization errors.

    Args:
        model: model to train in place.
        weights: path of each linear layer to quantize -> rounding of its weight.
        tables: path of each embedding to quantize -> function that rounds its rows.
        activations: a row of INTEGERS.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        weights: Mapping[str, WeightRounding],
        tables: Mapping[str, RowRounding],
        activations: str,
    ) -> None:
        super().__init__()
        self.student = model
        self.weights = dict(weights)
        self.tables = dict(tables)
        self.activations = nn.ModuleList(
            _RoundedActivation(INTEGERS[activations]) for _ in self.weights
        )
        for (path, rounding), activation in zip(
            self.weights.items(), self.activations, strict=True
        ):
            layer = model.get_submodule(path)
            parametrize.register_parametrization(layer, "weight", rounding)
            layer.register_forward_pre_hook(_entering(activation))
        self._rounding_rows = [
            model.get_submodule(path).register_forward_hook(_looking_up(rounding))
            for path, rounding in self.tables.items()
        ]

    def forward(self, batch: TensorBatch) -> torch.Tensor:
        """Return the logits (batch, labels)."""
        self._set(mask=batch["attention_mask"].bool())
        try:
            logits: torch.Tensor = self.student(**model_inputs(self.student, batch)).logits
        finally:
            self._set(mask=None)
        return logits

    @contextmanager
    def widening(self) -> Iterator[None]:
        """Compute in float, and extend ranges to include all values."""
        self._set(widening=True)
        try:
            yield
        finally:
            self._set(widening=False)

    def _set(self, **values: Any) -> None:
        for activation in self.activations:
            for name, value in values.items():
                setattr(activation, name, value)

    def ranges(self) -> Mapping[str, Range]:
        """Return the range of each linear layer's input, by the layer's path."""
        rows: Sequence[Any] = list(self.activations)
        return {
            path: (float(activation.low), float(activation.high))
            for path, activation in zip(self.weights, rows, strict=True)
        }

    def originals(self) -> dict[str, torch.Tensor]:
        """Return the weight of each linear layer before rounding, by the layer's path."""
        state = self.student.state_dict()
        return {path: state[f"{path}.{ORIGINAL}"] for path in self.weights}

    def trained_weights(self) -> dict[str, torch.Tensor]:
        """Return the model's weights to export, by their original names."""
        trained = {
            name.replace(ORIGINAL, "weight"): tensor
            for name, tensor in self.student.state_dict().items()
        }
        originals = self.originals()
        exported = {
            f"{path}.weight": each.exported(originals[path]) for path, each in self.weights.items()
        }
        return {**trained, **exported}

    def fuse(self) -> None:
        """Replace weights by rounded ones, so that inference does not round them each time.

        The model cannot be trained afterwards, and `originals` are lost.
        """
        for (path, rounding), hook in zip(self.tables.items(), self._rounding_rows, strict=True):
            table = self.student.get_submodule(path)
            assert isinstance(table, nn.Embedding)
            with torch.no_grad():
                numbers = torch.arange(len(table.weight), device=table.weight.device)
                table.weight.copy_(rounding(table, numbers, table.weight))
            hook.remove()
        for path in self.weights:
            layer = self.student.get_submodule(path)
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)


def _entering(activation: nn.Module) -> Any:
    def hook(layer: nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        values, *others = arguments
        return (activation(values), *others)

    return hook


def _looking_up(rounding: RowRounding) -> Any:
    return lambda table, inputs, rows: rounding(table, inputs[0], rows)
