"""Records of the comparison of systems."""

from __future__ import annotations

from pydantic import Field

from benchmarks.students.measuring import StudentsBenchmark
from bertender.comparison.records import Comparison
from bertender.core.config import Record

__all__ = ["CompressionBenchmark", "TrainedSystem"]


class TrainedSystem(Record):
    """The models of a system."""

    name: str = Field(description="a row of SYSTEMS; its models are NAME-SEED")
    labelled_texts: int = Field(description="that it learns from, the first of the task's")
    epochs: int = Field(description="over the labelled texts")
    unlabelled_texts: int
    processor_s: tuple[float, ...] = Field(
        description="of each seed's training, the teacher included"
    )
    graphs: dict[str, str] = Field(
        description="of the first seed: float32 or int8 -> the row of `speeds`"
    )
    refused: str | None = Field(None, description="why a graph is missing, in the gate's words")


class CompressionBenchmark(Record):
    """The models of several systems and one teacher."""

    budget_s: float = Field(description="processor time of a training whose share is the whole")
    learning_rate: float
    labelled_texts: int
    unlabelled: str = Field(description="where texts without labels are from")
    encoders: dict[str, str] = Field(
        description="system -> encoder that its student starts from, and what pre-trained it"
    )
    teacher_graphs: dict[str, str] = Field(description="as those of a system")
    systems: tuple[TrainedSystem, ...]
    absent: dict[str, str] = Field(description="name of a system -> why it has no models")
    scores: StudentsBenchmark
    speeds: Comparison | None = Field(None, description="of all graphs; None where none was made")
