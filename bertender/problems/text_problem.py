"""TextProblem: what the kinds of problems have in common that answer for a text, or a pair."""

from __future__ import annotations

import copy
import itertools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from bertender.problems.problem import FloatArray, Outputs, Problem
from bertender.problems.reading import Columns
from bertender.text.batch import Batch, Example, Tokenize
from bertender.text.text_windows import TokenizeLong, pooled, windows_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from bertender.text.tokenizer import FileTokenizer

Target = TypeVar("Target")


class TextProblem(Problem[Target]):
    """A text, or a pair of texts, has one row of logits."""

    columns = Columns(("text",), "label")
    model_class = "AutoModelForSequenceClassification"
    takes_pairs = True
    takes_windows = True
    windows: str | None = None
    """How the logits of a text's windows are joined; None where longer texts are cut."""

    def read(self, values: Mapping[str, object], columns: Columns) -> tuple[Example, Any]:
        return self.read_texts(values, columns.texts), self.read_label(values, columns.label)

    @abstractmethod
    def read_label(self, values: Mapping[str, object], column: str) -> Any:
        """Return what a row of a file is labelled with.

        Raises:
            CellError: the cell cannot be used.
        """

    def edge_examples(self, examples: Sequence[Example], tokens: int) -> tuple[Example, Example]:
        longest = []
        for texts in zip(*examples, strict=True):
            words = [word for text in texts for word in text.split()] or ["a"]
            longest.append(" ".join(itertools.islice(itertools.cycle(words), tokens)))
        return tuple((text.split() or ["a"])[0] for text in examples[0]), tuple(longest)

    def encoder(
        self, tokenizer: PreTrainedTokenizerBase | FileTokenizer, max_length: int | None = None
    ) -> Tokenize:
        reads = Tokenize if windows_of(tokenizer) is None else TokenizeLong
        return reads(tokenizer, max_length)

    def reading(self, tokenizer: PreTrainedTokenizerBase | FileTokenizer) -> Self:
        if windows_of(tokenizer) == self.windows:
            return self
        problem = copy.copy(self)
        problem.windows = windows_of(tokenizer)
        return problem

    def logits_shape(self, batch: Batch, labels: int) -> tuple[int | None, ...]:
        return sum(batch.counts), labels

    def joined(self, rows: Sequence[Outputs]) -> Outputs:
        if self.windows is None:
            return super().joined(rows)
        logits = np.concatenate([each.logits for each in rows])
        return Outputs(pooled(logits, self.windows)[None], rows[0].places)

    def row_outputs(self, logits: FloatArray, batch: Batch) -> list[Outputs]:
        place = np.zeros(1, dtype=np.int64)
        return [Outputs(row[None], place) for row in logits]

    def lines(self, labels: Sequence[str], scores: Sequence[str], example: Example) -> list[str]:
        """Return one line for a text, with all its labels."""
        return [f"{','.join(labels) or '-'}\t{','.join(scores) or '-'}\t{' | '.join(example)}"]
