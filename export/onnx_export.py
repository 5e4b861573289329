"""Exporting: a torch artifact to an onnx artifact, behind the parity gate."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

from optimum.exporters.onnx import onnx_export_from_model
from pydantic import Field
from torch.jit import TracerWarning  # type: ignore[attr-defined]
from transformers import AutoModelForSequenceClassification

from bertender.core.artifact import Artifact, new_artifact
from bertender.core.config import Config
from bertender.core.errors import ModelError
from bertender.core.predictor import onnx_classifier, open_classifier
from bertender.core.text import load_tokenizer
from bertender.measure.parity import check_parity, find_tolerance, parity_sample, require_parity
from bertender.tasks.task import Task

__all__ = ["ExportConfig", "export"]

ONNX_EXPORTER_LOG = "optimum.exporters.onnx"


class ExportConfig(Config):
    """How to export."""

    opset: int | None = Field(
        None, ge=14, description="ONNX operator set; by default the lowest sound one"
    )
    parity_texts: int = Field(
        256, ge=1, description="held-out texts on which the ONNX model must answer the same"
    )
    seed: int = Field(0, ge=0, description="which texts the parity gate draws")


def export(source: Artifact, task: Task, config: ExportConfig, out: Path) -> Artifact:
    """Write `source` as an ONNX artifact of dynamic batch and length, and prove that it answers
    as its source does.

    The directory opens with Optimum's ORTModelForSequenceClassification as it is.

    Raises:
        ModelError: the source is not a torch classifier.
        ParityError: the graph answers differently; nothing is written then.
    """
    refuse_unexportable(source)
    reference = open_classifier(source)
    with new_artifact(
        out,
        kind="onnx",
        family=source.card.family,
        task=source.card.task,
        stage="export",
        config=config,
        seed=config.seed,
        precision="float32",
        parent=source,
    ) as draft:
        write_onnx(source, draft.directory, config.opset)
        candidate = onnx_classifier(
            draft.directory, out.name, source.card.task.labels, reference.parameters
        )
        examples = parity_sample(task.dev.examples, config.parity_texts, config.seed)
        parity = check_parity(
            reference, candidate, examples, find_tolerance("float32"), seed=config.seed
        )
        require_parity(parity)
        draft.metrics.update(parameters=reference.parameters, parity=parity.summary())
    return Artifact.load(out)


def refuse_unexportable(source: Artifact) -> None:
    """Raise ModelError unless `source` is a torch classifier."""
    if source.card.kind != "torch" or not source.card.task.labels:
        raise ModelError(
            f"{source.path} is of kind {source.card.kind!r} (stage {source.card.stage!r}); only "
            "torch classifiers can be exported. Give the artifact of `finetune` or `distill`."
        )


def write_onnx(source: Artifact, directory: Path, opset: int | None) -> None:
    """Write model.onnx, config.json and the tokenizer into `directory`."""
    model = AutoModelForSequenceClassification.from_pretrained(
        source.path,
        local_files_only=True,
        use_safetensors=True,
        attn_implementation="eager",  # the pattern that graph fusions know
    )
    quiet = logging.getLogger(ONNX_EXPORTER_LOG)
    level = quiet.level
    quiet.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # tracing warns of every shape that becomes a constant; the parity gate, which runs
            # other shapes than the traced one, is the check that counts
            warnings.filterwarnings("ignore", category=TracerWarning)
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            onnx_export_from_model(
                model, directory, task="text-classification", do_validation=False, opset=opset
            )
    finally:
        quiet.setLevel(level)
    load_tokenizer(source.path).save_pretrained(directory)
