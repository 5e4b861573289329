"""(goes into methods.bilstm by hand)"""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from bertender.core.errors import ModelError
from bertender.models.families import FAMILIES
from bertender.models.own_models import OWN_MODELS
from bertender.models.table_models import BiLstmConfig, BiLstmForSequenceClassification
from distill.students.student import StudentShape

# --- from distill.students.no_layers
# Checks of students that have a table of tokens and no layers of a transformer.


def check_tokenizer_known(teacher: PreTrainedModel, what: str) -> None:
    """Raise ModelError where it is not known how the start's tokenizer lays out its texts."""
    known = {*FAMILIES, *OWN_MODELS}
    if teacher.config.model_type not in known:
        raise ModelError(
            f"{what} cannot start from a {teacher.config.model_type!r} model: bertender "
            "does not know where its tokenizer ends and pads texts. Start it from an encoder of "
            f"these: {', '.join(sorted(known))}."
        )


def check_no_layers(shape: StudentShape, what: str) -> None:
    """Raise ModelError where a student without layers and heads is asked for some."""
    if shape.layers != 1:
        raise ModelError(
            f"layers={shape.layers}: {what} has one layer at most. Leave it out; hidden_size makes "
            "it wider."
        )
    for name in ("heads", "teacher_layers"):
        if getattr(shape, name) is not None:
            raise ModelError(
                f"{name}={getattr(shape, name)}: {what} takes no attention heads and "
                "none of its teacher's layers. Leave it out."
            )


# --- from distill.students.bilstm
# The BiLSTM student: a teacher's words as its embeddings, and an untrained LSTM.

EMBEDDING_SIZE = 300
"""The paper's, at most."""


def bilstm_student(
    teacher: PreTrainedModel, shape: StudentShape
) -> BiLstmForSequenceClassification:
    """Build a BiLSTM over a teacher's vocabulary.

    Args:
        teacher: a row of FAMILIES or OWN_MODELS.
        shape: `hidden_size` of the LSTM of each direction (150 by default), `feed_forward_size`
            of the layer behind it (200), and `texts` of an example.

    Raises:
        ModelError: the shape asks for what only transformers have, or the teacher's tokenizer may
            put padding in front of a text, or no separator at its end (XLNet).
    """
    check_tokenizer_known(teacher, "a BiLSTM student")
    check_no_layers(shape, "a BiLSTM student")
    words = _word_embeddings(teacher)
    student = BiLstmForSequenceClassification(_config(teacher, shape, words))
    with torch.no_grad():
        student.encoder.word_embeddings.weight.copy_(words)
    return student


def strongest_directions(table: torch.Tensor, rank: int) -> torch.Tensor:
    """Return the coordinates (rows, rank) of a table (rows, width) in its strongest directions.

    Their inner products are as near to the table's as those of any vectors so narrow (Eckart and
    Young 1936). A table that is as narrow already is returned as it is.
    """
    if table.shape[1] <= rank:
        return table
    precise = table.double()
    _, directions = torch.linalg.eigh(precise.T @ precise)  # weakest first
    strongest: torch.Tensor = precise @ directions[:, -rank:]
    return strongest.to(table.dtype)


def _word_embeddings(teacher: PreTrainedModel) -> torch.Tensor:
    """Return the student's first table, (vocab, at most EMBEDDING_SIZE)."""
    table = teacher.get_input_embeddings()
    assert isinstance(table, nn.Embedding)
    words = table.weight.detach().float()
    # of a teacher without weights there is nothing to bring
    return strongest_directions(words if words.is_meta else words.cpu(), EMBEDDING_SIZE)


def _config(teacher: PreTrainedModel, shape: StudentShape, words: torch.Tensor) -> BiLstmConfig:
    widths = {"hidden_size": shape.hidden_size, "feed_forward_size": shape.feed_forward_size}
    return BiLstmConfig(
        vocab_size=words.shape[0],
        embedding_size=words.shape[1],
        texts=shape.texts,
        pad_token_id=teacher.config.pad_token_id,
        id2label=teacher.config.id2label,
        label2id=teacher.config.label2id,
        **{name: width for name, width in widths.items() if width is not None},
    )
