"""Training with rounding errors: from a float model to a trained one, its ranges and its graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch.nn.utils import parametrize
from transformers import PreTrainedModel

from bertender.core.artifact import Artifact, new_artifact
from bertender.core.errors import ModelError
from bertender.measure.accuracy import evaluate, predict, predict_outputs
from bertender.measure.constant import warn_early
from bertender.models.cpu_flags import saturates
from bertender.models.graph_file import move_graph
from bertender.models.onnx_predictor import ONNX_NAME
from bertender.models.onnx_session import FEWER_BITS
from bertender.models.opening import load_torch_classifier
from bertender.models.predictor import TorchPredictor
from bertender.problems import Outputs
from bertender.text.batch import load_tokenizer
from bertender.training.examples import TensorBatch, TokenDataset
from bertender.training.findings import training_findings
from bertender.training.heads import HEADS, WORD_STARTS, Head
from bertender.training.loop import train
from bertender.training.objective import LossParts, Objective, TrainingReport
from bertender.training.tokens import token_dataset
from quantize.calibrators import Range
from quantize.context import QuantizationContext, Written
from quantize.fake_quantization import FakeQuantized, RowRounding, WeightRounding, round_rows

__all__ = [
    "Start",
    "Trained",
    "check_shared",
    "path_of_table",
    "score_while_training",
    "start_of",
    "train_graph",
]

TEACHER_LOGITS = "teacher_logits"
TOLERANCE = "fake-quantized"


@dataclass(frozen=True)
class Start:
    """A float model before it is trained."""

    context: QuantizationContext
    """Its graph is that of the untrained model: what there is to quantize."""
    model: PreTrainedModel

    @cached_property
    def paths(self) -> dict[str, str]:
        """Product's node -> its layer's path in the model."""
        known = {name for name, _ in self.model.named_modules()}
        return {each.node: each.module(known) for each in self.context.inventory.products}

    @property
    def tables(self) -> dict[str, RowRounding]:
        """Return what rounds the rows of each embedding to quantize to 8 bits, by its path."""
        names = (self.context.inventory.tables[lookup] for lookup in self.context.tables)
        return dict.fromkeys(map(path_of_table, names), round_rows)


@dataclass(frozen=True)
class Trained:
    """A model that was trained with rounding errors."""

    context: QuantizationContext
    """Its graph has the trained weights, in float."""
    model: FakeQuantized
    paths: Mapping[str, str]
    """Product's node -> its layer's path in the model."""
    training: TrainingReport

    @property
    def ranges(self) -> dict[str, Range]:
        """Return the learned range of each product's activation, by the tensor's name."""
        learned, products = self.model.ranges(), self.context.inventory.products
        return {each.activation: learned[self.paths[each.node]] for each in products}

    def report(self, written: Written) -> Written:
        """Return a scheme's report on the trained model's quantized graph; it ends the training."""
        classifier = self.context.classifier
        self.model.fuse()
        predictor = TorchPredictor(self.model.student)
        return replace(
            written,
            training=training_findings({"labels": self.training}),
            reference=replace(classifier, name="fake-quantized", predictor=predictor),
            tolerance=TOLERANCE,
            float_graph=self.context.graph,
        )


def path_of_table(name: str) -> str:
    """Return an embedding's path in the model, by the name of its table in the graph."""
    return name.removesuffix(".weight")


def start_of(context: QuantizationContext) -> Start:
    """Load the float model, and export it to see what there is to quantize."""
    folder = context.folder / "before"
    folder.mkdir()
    _write_graph(context, context.source, folder)
    model = load_torch_classifier(context.source, attn_implementation="eager")
    return Start(replace(context, graph=folder / ONNX_NAME), model)


def check_shared(start: Start) -> None:
    """Raise ModelError for products that share an 8-bit weight, if this CPU cannot open them."""
    shared = len({*start.paths.values()}) < len(start.paths)
    if shared and saturates() and start.context.target.has_8_bit_weights:
        raise ModelError(FEWER_BITS)


def train_graph(
    start: Start,
    weights: Mapping[str, WeightRounding],
    tables: Mapping[str, RowRounding],
    target: Path,
) -> Trained:
    """Train a model with the errors of its quantized form, and export it.

    Args:
        start: its model is trained in place.
        weights: path of each layer to quantize -> what rounds its weight.
        tables: path of each embedding to quantize -> what rounds its rows.
        target: where the quantized graph will be; the graph's companions stay next to it.
    """
    context = start.context
    fake = FakeQuantized(start.model, weights, tables, context.target.activations)
    report = _train(context, fake)
    graph = _float_graph(context, fake, target)
    return Trained(replace(context, graph=graph), fake, start.paths, report)


def _write_graph(context: QuantizationContext, artifact: Artifact, directory: Path) -> None:
    assert context.write_onnx is not None
    context.write_onnx(artifact, directory)


def _train(context: QuantizationContext, fake: FakeQuantized) -> TrainingReport:
    """Train in place: find ranges first, then learn from the labels and the float model."""
    config = context.config
    fake.eval()
    with fake.widening(), torch.inference_mode(), parametrize.cached():
        for batch in context.texts(config.calibration_texts, "find ranges"):
            fake({name: torch.from_numpy(array) for name, array in batch.arrays.items()})
    report = train(
        fake,
        _examples(context),
        _objective(config.soft_labels, HEADS[context.task.problem_type]),
        config,
        context.work,
        description="quantize",
        at_epoch_end=lambda each: {context.task.metric: score_while_training(context, each)},
    )
    fake.eval()
    return report


def _examples(context: QuantizationContext) -> TokenDataset:
    split, config = context.task.train, context.config
    problem_type = context.task.problem_type
    tokenizer = load_tokenizer(context.source.path, config.max_length)
    examples = token_dataset(split, tokenizer, problem_type)
    if not config.soft_labels:
        return examples
    if HEADS[problem_type].per_token:
        outputs = predict_outputs(context.classifier, split.examples)
        columns = {**examples.columns, TEACHER_LOGITS: _at_words(examples, outputs)}
        return TokenDataset(columns, examples.padding.with_others(**{TEACHER_LOGITS: 0}))
    logits = torch.from_numpy(predict(context.classifier, split.examples))
    return examples.with_columns(**{TEACHER_LOGITS: logits})


def _at_words(examples: TokenDataset, outputs: Sequence[Outputs]) -> list[torch.Tensor]:
    """Return logits (seq, labels) of each example: the model's where words begin, else 0."""
    rows = []
    for starts, own in zip(examples.columns[WORD_STARTS], outputs, strict=True):
        whole = torch.zeros(len(starts), own.logits.shape[1])
        begun = torch.as_tensor(starts).bool()
        whole[begun] = torch.from_numpy(own.logits[: int(begun.sum())])
        rows.append(whole)
    return rows


def _objective(soft: float, head: Head) -> Objective:
    def objective(model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        logits = model(batch)
        parts = {"hard": head.hard_loss(logits, batch)}
        if soft:
            parts["soft"] = soft * head.soft_loss(logits, batch[TEACHER_LOGITS], batch, 1.0)
        return parts

    return objective


def score_while_training(context: QuantizationContext, fake: FakeQuantized) -> float:
    """Return the score of the model as it will be written, and leave it in the mode that it had.

    In train mode ranges follow what is seen: held-out texts, and their padding, would enter them.
    """
    training = fake.training
    fake.eval()
    try:
        with parametrize.cached():  # the weights are rounded once, not in each batch
            classifier = replace(context.classifier, predictor=TorchPredictor(fake.student))
            score, predictions = evaluate(classifier, context.task.choices, context.task.metric)
            warn_early(context.task, context.task.choices, predictions, context.config)
            return score.value
    finally:
        fake.train(training)


def _float_graph(context: QuantizationContext, fake: FakeQuantized, target: Path) -> Path:
    """Export the trained weights; the graph's companions stay next to `target`."""
    model = load_torch_classifier(context.source)
    model.load_state_dict(fake.trained_weights())
    _write_graph(context, _as_artifact(context, model), target.parent)
    return move_graph(target, context.folder)


def _as_artifact(context: QuantizationContext, model: PreTrainedModel) -> Artifact:
    """Write a trained model into a folder for the exporter alone."""
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
    return Artifact.load(path)
