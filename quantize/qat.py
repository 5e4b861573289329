"""Quantization-aware training, and the graph with the scales that were learned.

Zafrir et al. 2019 (Q8BERT, arXiv 1910.06188): fine-tune with the errors of 8 bits in the forward
pass. Besides the labels, the float model's own logits are learned by default. The graph is written
from the learned ranges, so that its outputs are those of the fake-quantized model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from bertender.core.artifact import Artifact, new_artifact
from bertender.core.errors import ModelError
from bertender.measure.accuracy import predict, predict_outputs
from bertender.models.graph_file import move_graph
from bertender.models.onnx_predictor import ONNX_NAME
from bertender.models.opening import load_torch_classifier
from bertender.models.predictor import TorchPredictor
from bertender.problems import Outputs
from bertender.text.batch import load_tokenizer
from bertender.training.examples import TensorBatch, TokenDataset
from bertender.training.findings import training_findings
from bertender.training.heads import HEADS, WORD_STARTS, Head
from bertender.training.loop import LossParts, Objective, TrainingReport, train
from bertender.training.tokens import token_dataset
from quantize.calibrators import Range
from quantize.context import QuantizationContext, Written
from quantize.fake_quantization import FakeQuantized
from quantize.graph import Inventory, take_inventory
from quantize.static import write_with_ranges

__all__ = ["check_trainable", "write_trained"]

TEACHER_LOGITS = "teacher_logits"
TOLERANCE = "fake-quantized"


def write_trained(context: QuantizationContext, target: Path) -> Written:
    """Train the float model with 8-bit errors, and write its graph to `target`."""
    model = load_torch_classifier(context.source, attn_implementation="eager")
    known = {name for name, _ in model.named_modules()}
    fake = _fake_quantized(context, model, _inventory_before(context), known)
    report = _train(context, fake)
    exported = replace(context, graph=_float_graph(context, fake, target))
    ranges = _by_tensor(exported.inventory, fake, known)
    written = write_with_ranges(exported, target, ranges)
    predictor = TorchPredictor(fake.student)
    return replace(
        written,
        training=training_findings({"labels": report}),
        reference=replace(context.classifier, name="fake-quantized", predictor=predictor),
        tolerance=TOLERANCE,
        float_graph=exported.graph,
    )


def check_trainable(model: PreTrainedModel) -> None:
    """Raise ModelError for a model with an LSTM, before anything is trained."""
    if any(isinstance(each, nn.LSTM) for each in model.modules()):
        raise ModelError(
            f"a {model.config.model_type!r} model has an LSTM, and scheme 'qat' trains linear "
            "layers. Export it, and quantize it with --scheme dynamic."
        )


def _fake_quantized(
    context: QuantizationContext, model: PreTrainedModel, inventory: Inventory, known: set[str]
) -> FakeQuantized:
    """Return the model with the rounding errors of the 8-bit parts of the later graph."""
    layers = [product.module(known) for product in inventory.products]
    tables = [
        inventory.tables[node].removesuffix(".weight") for node in context.tables_of(inventory)
    ]
    return FakeQuantized(model, layers, tables, context.target.activations, context.target.weights)


def _inventory_before(context: QuantizationContext) -> Inventory:
    """Return what the untrained model's graph is made of: what there is to quantize."""
    folder = context.folder / "before"
    folder.mkdir()
    _write_graph(context, context.source, folder)
    return take_inventory(folder / ONNX_NAME)


def _write_graph(context: QuantizationContext, artifact: Artifact, directory: Path) -> None:
    assert context.write_onnx is not None
    context.write_onnx(artifact, directory)


def _train(context: QuantizationContext, fake: FakeQuantized) -> TrainingReport:
    """Train in place: find ranges first, then learn from the labels and the float model."""
    config = context.config
    fake.eval()
    with fake.widening(), torch.inference_mode():
        for batch in context.texts(config.calibration_texts, "find ranges"):
            fake({name: torch.from_numpy(array) for name, array in batch.arrays.items()})
    report = train(
        fake,
        _examples(context),
        _objective(config.soft_labels, HEADS[context.task.problem_type]),
        config,
        context.work,
        description="quantize",
        at_epoch_end=lambda each: {context.task.metric: _score(context, each)},
        keep_end=True,  # a gate may still refuse it; another bound need not train again
    )
    fake.eval()
    return report


def _examples(context: QuantizationContext) -> TokenDataset:
    split, config = context.task.train, context.config
    tokenizer, problem_type = load_tokenizer(context.source.path), context.task.problem_type
    examples = token_dataset(split, tokenizer, config.max_length, problem_type)
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


def _score(context: QuantizationContext, fake: FakeQuantized) -> float:
    """Return the score of the model as it will be written, and leave it in the mode that it had.

    In train mode ranges follow what is seen: held-out texts, and their padding, would enter them.
    """
    training = fake.training
    fake.eval()
    try:
        return context.score_of(replace(context.classifier, predictor=TorchPredictor(fake.student)))
    finally:
        fake.train(training)


def _float_graph(context: QuantizationContext, fake: FakeQuantized, target: Path) -> Path:
    """Export the trained weights, unrounded; the graph's companions stay next to `target`."""
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
        parent=context.source,
    ) as draft:
        model.save_pretrained(draft.directory)
        load_tokenizer(context.source.path).save_pretrained(draft.directory)
    return Artifact.load(path)


def _by_tensor(inventory: Inventory, fake: FakeQuantized, known: set[str]) -> dict[str, Range]:
    """Return the learned ranges by the names of the graph's tensors."""
    learned = fake.ranges()
    return {product.activation: learned[product.module(known)] for product in inventory.products}
