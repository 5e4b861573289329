"""Findings: the figures that a stage measured while it wrote an artifact.

Each part is built where it is measured, and the card of the artifact holds them all.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from bertender.core.findings.control import ControlFindings, ControlRun, Gain
from bertender.core.findings.graph import GraphFindings, LargestNumber
from bertender.core.findings.lengths import LengthFindings, TextLengths
from bertender.core.findings.parity import ParitySummary
from bertender.core.findings.part import Part
from bertender.core.findings.pruning import (
    LatencyFindings,
    LatencyLoad,
    LatencyTimes,
    PartTimes,
    PruningFindings,
    PruningRound,
    RescaledPart,
    VocabularyFindings,
    VocabularyReading,
)
from bertender.core.findings.quantization import (
    Curvature,
    PartLikeness,
    ProductCheck,
    QuantizationFindings,
    SaturationFindings,
    SensitivityFindings,
    TriedScheme,
)
from bertender.core.findings.scores import (
    ChoiceScores,
    ChosenOn,
    ConstantFindings,
    ScoreFindings,
)
from bertender.core.findings.training import EarlierPhase, OtherTask, TrainingFindings

__all__ = [
    "ChoiceScores",
    "ChosenOn",
    "ConstantFindings",
    "ControlFindings",
    "ControlRun",
    "Curvature",
    "EarlierPhase",
    "Findings",
    "Gain",
    "GraphFindings",
    "LargestNumber",
    "LatencyFindings",
    "LatencyLoad",
    "LatencyTimes",
    "LengthFindings",
    "OtherTask",
    "ParitySummary",
    "Part",
    "PartLikeness",
    "PartTimes",
    "ProductCheck",
    "PruningFindings",
    "PruningRound",
    "QuantizationFindings",
    "RescaledPart",
    "SaturationFindings",
    "ScoreFindings",
    "SensitivityFindings",
    "TextLengths",
    "TrainingFindings",
    "TriedScheme",
    "VocabularyFindings",
    "VocabularyReading",
]


class Findings(Part):
    """Measurements that were taken when an artifact was written."""

    parameters: int | None = Field(None, description="of the model, as counted when it was trained")
    training: TrainingFindings | None = Field(None, description="of stages that train")
    lengths: LengthFindings | None = Field(
        None, description="of stages that train, where texts were read in tokens"
    )
    scores: ScoreFindings | None = Field(None, description="where held-out texts were scored")
    control: ControlFindings | None = Field(None, description="of `distill --control`")
    vocabulary: VocabularyFindings | None = Field(None, description="of `distill --vocab-size`")
    pruning: PruningFindings | None = Field(None, description="of `prune`")
    graph: GraphFindings | None = Field(None, description="of `export`")
    numbers: LargestNumber | None = Field(None, description="of `export` to float16")
    quantization: QuantizationFindings | None = Field(None, description="of `quantize`")
    left_out_optimizers: tuple[str, ...] | None = Field(
        None,
        description="of ONNX Runtime: bertender opens the graph without them, as others do with "
        "disabled_optimizers",
    )
    session_config: Mapping[str, str] | None = Field(
        None,
        description="of ONNX Runtime: entries that bertender opens the graph with on CPUs without "
        "8-bit dot products, as others do with add_session_config_entry",
    )
    parity: ParitySummary | None = Field(None, description="with the artifact's parent")
