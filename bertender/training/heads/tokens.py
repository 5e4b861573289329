"""Heads of logits for each token: tags of words, and answers in a context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bertender.metrics.metric import NO_LABEL, is_labelled
from bertender.problems.question_answering import QUESTION_ANSWERING, tokens_of_answer
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from bertender.tasks.task import Split
from bertender.text.batch import NO_WORD, Begun, encode_words
from bertender.text.tokenizer import continued_labels
from bertender.text.windows import TokenizeContextWindows
from bertender.training.heads.head import (
    IMPOSSIBLE,
    PREDICTING,
    Columns,
    Head,
    hard_labels,
    precise,
)

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from bertender.training.heads.head import TensorBatch


class TagHead(Head):
    """A tag for each word, at its first token; later parts of a word continue its tag."""

    problem = TOKEN_CLASSIFICATION.name
    learns_classes = True
    padding: Mapping[str, int] = {"labels": NO_LABEL, PREDICTING: 0}

    def tokenize(
        self, split: Split, tokenizer: PreTrainedTokenizerBase
    ) -> tuple[Mapping[str, Any], Columns]:
        tokens, words = encode_words(tokenizer, split.examples)
        later = continued_labels(tokenizer) or ()

        def label(begun: Begun | None, tags: Sequence[int]) -> int:
            if begun is None:
                return NO_LABEL
            tag = tags[begun.word]
            return later[tag] if begun.offset and tag != NO_LABEL else tag

        labels = [
            [label(begun, tags) for begun in row]
            for row, tags in zip(words, split.label_ids, strict=True)
        ]
        starts = [[int(begun is not None) for begun in row] for row in words]
        return tokens, {"labels": labels, PREDICTING: starts}

    def predicted(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        return logits[batch[PREDICTING].bool()]


class AnswerHead(Head):
    """Start and end of an answer: each is one of the tokens of a window.

    In a window without the answer, both are the first token. Each window is an example of its own.
    """

    problem = QUESTION_ANSWERING.name
    padding: Mapping[str, int] = {PREDICTING: 0}

    def tokenize(
        self, split: Split, tokenizer: PreTrainedTokenizerBase
    ) -> tuple[Mapping[str, Sequence[Any]], Columns]:
        windows = TokenizeContextWindows(tokenizer).windows(split.examples)
        own: Columns = {
            "input_ids": [each.ids.tolist() for each in windows.encodings],
            "token_type_ids": [each.type_ids.tolist() for each in windows.encodings],
            "attention_mask": [[1] * len(each.ids) for each in windows.encodings],
        }
        tokens = {name: own[name] for name in own if name in tokenizer.model_input_names}
        targets = (split.label_ids[owner] for owner in windows.owners)
        return tokens, {
            "labels": [
                list(tokens_of_answer(places, target)) if is_labelled(target) else [NO_LABEL] * 2
                for places, target in zip(windows.places, targets, strict=True)
            ],
            PREDICTING: [(places != NO_WORD).astype(int).tolist() for places in windows.places],
        }

    def hard_loss(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        """Return the cross-entropy with start and end, the mean over both and over windows."""
        return hard_labels(self.predicted(logits, batch), batch["labels"].flatten())

    def predicted(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        """Return start and end of each window as rows, (2 windows, seq)."""
        others = ~batch[PREDICTING].bool()[..., None]
        # finite, so that 0 times it is 0
        return precise(logits).masked_fill(others, IMPOSSIBLE).transpose(1, 2).flatten(0, 1)
