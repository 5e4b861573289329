"""What somebody adds: a distillation method, a quantization scheme and a stage, a row each."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from bertender.core.artifact import Artifact
from bertender.core.findings import Findings
from bertender.models.opening import load_torch_classifier
from bertender.recipes.stage import TORCH_CLASSIFIER, Inputs, Product, Stage
from bertender.text.tokenizer import load_tokenizer
from bertender.training.config import TrainingConfig
from distill.losses.terms import SoftLabels
from distill.methods.method import Method, one_phase
from distill.students.student import ShorterStudent
from distill.trained import TrainedModel
from quantize.context import QuantizationContext, Written
from quantize.post_training import write_dynamic
from quantize.schemes import Scheme

WARM = Method(
    name="warm",
    summary="soft labels at three degrees",
    paper="nobody's",
    student=ShorterStudent(),
    start_layers="alternating",
    phases=one_phase(SoftLabels(weight=1.0, temperature=3.0)),
)


def _write_without_head(context: QuantizationContext, target: Path) -> Written:
    """Leave the product before the logits in float."""
    return write_dynamic(context, target, float_nodes=[context.inventory.products[-1].node])


WITHOUT_HEAD = Scheme(summary="dynamic, with the head in float", write=_write_without_head)


class SharpenConfig(TrainingConfig):
    """Settings of `sharpen`."""

    by: float = Field(2.0, gt=0, description="what the logits are multiplied by")


def _sharpen(inputs: Inputs, config: SharpenConfig, out: Path) -> Artifact:
    source = inputs.sources[0]
    model = load_torch_classifier(source)
    for tensor in (model.classifier.weight, model.classifier.bias):
        tensor.data *= config.by
    tokenizer = load_tokenizer(source.path)
    sharp = TrainedModel.classifier(model, tokenizer, inputs.task, Findings())
    sharp.write(out=out, stage="sharpen", config=config, parent=source)
    return Artifact.load(out)


SHARPEN = Stage(
    name="sharpen",
    config=SharpenConfig,
    function=_sharpen,
    source="artifact",
    wants=lambda config, position: TORCH_CLASSIFIER,
    makes=lambda config: Product("sharpen", "torch"),
)
