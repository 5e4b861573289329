"""HEADS: the PyTorch side of each problem type: its head, its token columns and its losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bertender.core.table import Table
from bertender.problems import PROBLEMS, SINGLE_LABEL, TOKEN_CLASSIFICATION
from bertender.tasks.task import Split
from bertender.text.batch import longest_input
from bertender.text.words import begun_words, encode_words
from bertender.training.label_losses import NO_LABEL, hard_labels, soft_labels

if TYPE_CHECKING:
    import torch
    from transformers import BatchEncoding, PreTrainedTokenizerBase

    from bertender.training.examples import TensorBatch

__all__ = ["HEADS", "WORD_STARTS", "Head", "predicted"]

WORD_STARTS = "word_starts"
"""A token column: 1 at the first token of each word, where words have labels."""

Columns = dict[str, Sequence[Any]]


@dataclass(frozen=True)
class Head:
    """A row of HEADS."""

    problem: str
    """The row of PROBLEMS."""
    tokenize: Callable[[Split, PreTrainedTokenizerBase], tuple[BatchEncoding, Columns]]
    """(split, tokenizer) -> the tokens, and the columns of labels next to them"""
    padding: dict[str, int]
    """Of the columns of labels that have a value for each token."""
    logits: Callable[[Any], torch.Tensor]
    """output of the model -> its logits"""
    hard_loss: Callable[[torch.Tensor, TensorBatch], torch.Tensor]
    """(logits, batch) -> loss with the labels"""
    predicted: Callable[[torch.Tensor, TensorBatch], torch.Tensor]
    """(logits, batch) -> (rows, classes): a row for each prediction, whose softmax is the
    distribution that it is drawn from; what a student learns from, and what is summed"""
    per_token: bool = False
    """Whether there are logits for each token of a text."""
    one_label: bool = False
    """Whether an example has one label of several, so that texts without one can be added, and
    the distributions of several teachers averaged."""

    @property
    def auto_class(self) -> Any:
        """The class of transformers that loads a model with this head."""
        import transformers

        return getattr(transformers, PROBLEMS[self.problem].model_class)

    def soft_loss(
        self, student: torch.Tensor, teacher: torch.Tensor, batch: TensorBatch, temperature: float
    ) -> torch.Tensor:
        """Return the divergence from the teacher's predictions; arguments are two models' logits,
        the batch and the temperature."""
        ours, theirs = (self.predicted(each, batch) for each in (student, teacher))
        return soft_labels(ours, theirs, temperature)

    def summed_loss(self, model: torch.nn.Module, batch: TensorBatch) -> torch.Tensor:
        """Return the sum of the losses of all predictions, each of which keeps its own gradient."""
        from bertender.training.examples import model_inputs

        logits = self.logits(model(**model_inputs(model, batch)))
        return self.hard_loss(logits, batch) * len(self.predicted(logits, batch))


def predicted(logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
    """Return the logits that are predictions, (rows, labels): one a text, or one a word."""
    return logits if logits.ndim == 2 else logits[batch[WORD_STARTS].bool()]


def _tokenize_texts(
    split: Split, tokenizer: PreTrainedTokenizerBase
) -> tuple[BatchEncoding, Columns]:
    texts = [list(column) for column in zip(*split.examples, strict=True)]
    longest = longest_input(tokenizer)
    tokens = tokenizer(*texts, truncation=True, max_length=longest, padding=False)
    return tokens, {"labels": split.label_ids}


def _tokenize_words(
    split: Split, tokenizer: PreTrainedTokenizerBase
) -> tuple[BatchEncoding, Columns]:
    """Tokenise sentences; the first token of each word has its tag, other tokens NO_LABEL."""
    tokens = encode_words(tokenizer, split.examples)
    words = [begun_words(tokens.word_ids(row)) for row in range(len(split))]
    labels = [
        [NO_LABEL if word is None else tags[word] for word in begun]
        for begun, tags in zip(words, split.label_ids, strict=True)
    ]
    starts = [[int(word is not None) for word in begun] for begun in words]
    return tokens, {"labels": labels, WORD_STARTS: starts}


def _hard_loss(logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
    """Cross-entropy with the labels; texts and words without one are left out."""
    return hard_labels(logits, batch["labels"])


def _logits(output: Any) -> torch.Tensor:
    logits: torch.Tensor = output.logits
    return logits


ROWS = (
    Head(
        problem=SINGLE_LABEL.name,
        tokenize=_tokenize_texts,
        padding={},
        logits=_logits,
        hard_loss=_hard_loss,
        predicted=predicted,
        one_label=True,
    ),
    Head(
        problem=TOKEN_CLASSIFICATION.name,
        tokenize=_tokenize_words,
        padding={"labels": NO_LABEL, WORD_STARTS: 0},
        logits=_logits,
        hard_loss=_hard_loss,
        predicted=predicted,
        per_token=True,
    ),
)

HEADS = Table("head", {row.problem: row for row in ROWS}, group="bertender.heads")
