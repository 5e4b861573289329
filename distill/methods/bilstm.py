"""A BiLSTM student (Tang et al. 2019, arXiv 1903.12136).

Student: one bidirectional LSTM over word embeddings of 300, 150 wide in each direction, whose last
states go through a layer of 200 and ReLU; dropout 0.1. The texts of a pair are encoded separately
by the same weights (siamese) and joined as [h1, h2, h1 * h2, |h1 - h2|].
Loss: mean squared error of the logits, and no labels (alpha = 0). The published code adds
cross-entropy with weight 1; `--weights hard=1` does so here.
The paper trains on augmented texts: `--augmentation bilstm`, which is off by default.
Departures: words are the teacher's tokens, including [CLS] and [SEP]. Their embeddings start as the
300 strongest directions of the teacher's (narrower ones unchanged), in place of word2vec. AdamW
with a decaying rate over 10 epochs replaces Adadelta at 1.0 over 30: on 4,000 texts of SST-2 the
held-out score no longer rose after the second epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bertender.core.errors import ModelError
from distill.losses.terms import HardLabels, LogitMatch
from distill.methods.method import Method, one_phase
from distill.students import StudentKind, StudentShape

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

EMBEDDING_SIZE = 300
"""Embedding width of the paper; a narrower start keeps its own."""


class TableStudent(StudentKind):
    """A student with an embedding table and no layers of a transformer."""

    layer_by_layer = False
    starts_from_layers = False
    labels_words = False
    lacks = frozenset({"heads", "layers", "teacher_layers"})

    def check(self, start: PreTrainedModel, shape: StudentShape, what: str) -> None:
        """Raise ModelError where the shape sets layers or heads, or where the layout of the start's
        tokenizer (end of text, padding side) is unknown."""
        from bertender.models.families import FAMILIES
        from bertender.models.own_models import OWN_MODELS

        known = {*FAMILIES, *OWN_MODELS}
        if start.config.model_type not in known:
            raise ModelError(
                f"{what} cannot start from a {start.config.model_type!r} model: bertender "
                "does not know where its tokenizer ends and pads texts. Start it from an encoder "
                f"of these: {', '.join(sorted(known))}."
            )
        if shape.layers != 1:
            raise ModelError(
                f"layers={shape.layers}: {what} has one layer at most. Leave it out; hidden_size "
                "makes it wider."
            )
        for name in ("heads", "teacher_layers"):
            if getattr(shape, name) is not None:
                raise ModelError(
                    f"{name}={getattr(shape, name)}: {what} takes no attention heads and "
                    "none of its teacher's layers. Leave it out."
                )


class BiLstmStudent(TableStudent):
    """A BiLSTM with the start's vocabulary and word embeddings, and a random LSTM."""

    model_type = "bertender-bilstm"

    def build(self, start: PreTrainedModel, shape: StudentShape) -> PreTrainedModel:
        """Build the student.

        Args:
            start: a model of an architecture in FAMILIES or OWN_MODELS.
            shape: `hidden_size` of the LSTM in each direction (150 by default),
                `feed_forward_size` of the next layer (200), and `texts` per example.

        Raises:
            ModelError: the shape has settings of transformers, or the tokenizer may pad in front of
                a text, or puts no separator at its end (XLNet).
        """
        import torch

        from bertender.models.table_models import BiLstmConfig, BiLstmForSequenceClassification

        self.check(start, shape, "a BiLSTM student")
        table = start.get_input_embeddings().get_parameter("weight").detach().float()
        # a model without weights has no embeddings to copy
        words = strongest_directions(table if table.is_meta else table.cpu(), EMBEDDING_SIZE)
        widths = {"hidden_size": shape.hidden_size, "feed_forward_size": shape.feed_forward_size}
        config = BiLstmConfig(
            vocab_size=words.shape[0],
            embedding_size=words.shape[1],
            texts=shape.texts,
            pad_token_id=start.config.pad_token_id,
            id2label=start.config.id2label,
            label2id=start.config.label2id,
            **{name: width for name, width in widths.items() if width is not None},
        )
        student = BiLstmForSequenceClassification(config)
        with torch.no_grad():
            student.encoder.word_embeddings.weight.copy_(words)
        return student


def strongest_directions(table: torch.Tensor, rank: int) -> torch.Tensor:
    """Return the coordinates (rows, rank) of a table (rows, width) in its strongest directions.

    They are the best approximation of the table's inner products at this rank (Eckart and Young
    1936). A table that is narrow enough is returned unchanged.
    """
    import torch

    if table.shape[1] <= rank:
        return table
    precise = table.double()
    _, directions = torch.linalg.eigh(precise.T @ precise)  # weakest first
    strongest: torch.Tensor = precise @ directions[:, -rank:]
    return strongest.to(table.dtype)


BILSTM = Method(
    name="bilstm",
    summary="logits as they are, for a BiLSTM student over the teacher's tokens",
    paper="Tang et al. 2019, arXiv 1903.12136",
    student=BiLstmStudent(),
    phases=one_phase(LogitMatch(weight=1.0), HardLabels(weight=0.0)),
    settings={"epochs": 10, "batch_size": 50, "learning_rate": 1e-3},
    augmentation="bilstm",
)
