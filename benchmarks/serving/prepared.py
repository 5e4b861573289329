"""Texts of a task, prepared to be sent to servers of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tokenizers

from benchmarks.serving.systems import Service
from benchmarks.serving.texts import LONGEST_TOKENS, WORKLOADS, TextLengths, lengths_of
from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.problems import PROBLEMS
from bertender.text.tokenizer import open_tokenizer

__all__ = ["PreparedTexts", "check_servable", "prepared_texts"]


@dataclass(frozen=True)
class PreparedTexts:
    """A workload, made for a model."""

    texts: list[str]
    lengths: TextLengths
    longest: int
    """Input of the model, in tokens."""

    def service(self, artifact: Artifact) -> Service:
        """Return what servers of the model are started with for this workload."""
        maximum = min(self.longest, LONGEST_TOKENS)
        return Service(artifact, self.longest, maximum, min(self.lengths.rounded, maximum))


def prepared_texts(artifact: Artifact, texts: Sequence[str]) -> dict[str, PreparedTexts]:
    """Return each row of WORKLOADS, made of a task's texts for a model."""
    tokenizer = tokenizers.Tokenizer.from_file(str(artifact.path / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    problem = PROBLEMS[artifact.card.task.problem_type]
    longest = problem.encoder(open_tokenizer(artifact.path)).max_length

    def count(text: str) -> int:
        return len(tokenizer.encode(text).ids)

    made = {name: row.make(texts, count, longest) for name, row in WORKLOADS.items()}
    return {
        name: PreparedTexts(each, lengths_of(each, count), longest) for name, each in made.items()
    }


def check_servable(artifact: Artifact) -> None:
    """Raise ModelError for what no server of single texts runs."""
    columns = artifact.card.task.text_columns
    if artifact.card.kind != "onnx" or len(columns) != 1:
        raise ModelError(
            f"{artifact.path} is a {artifact.card.kind!r} artifact of {len(columns)} text columns; "
            "this benchmark serves 'onnx' artifacts of one. Export it first: `bertender export`."
        )
