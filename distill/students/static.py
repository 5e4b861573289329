"""(goes into methods.static by hand)"""

from __future__ import annotations

import hashlib

import torch
from torch import nn
from transformers import PreTrainedModel

from bertender.core.errors import ModelError
from bertender.core.files import cache_directory
from bertender.core.progress import track
from bertender.models.table_models import NO_WEIGHT, StaticConfig, StaticForSequenceClassification
from bertender.training.checkpoint import cached_tensor, computing_versions, encoder_digest
from distill.students.bilstm import check_no_layers, check_tokenizer_known, strongest_directions
from distill.students.student import StudentShape
from distill.students.token_use import TokenUse

HIDDEN_SIZE = 256
"""Default width of the vectors, or the start's if that is narrower."""
FEED_FORWARD_SIZE = 256
"""Width of the layer between the mean and the logits by default."""
RARE = 0.1
"""The share of a token in texts at which its weight is a half, the `a` of Arora et al. 2017."""
TOKENS_AT_ONCE = 1024


def static_student(
    teacher: PreTrainedModel, shape: StudentShape
) -> StaticForSequenceClassification:
    """Build a static model over a teacher's vocabulary.

    A token's vector is the mean of the last hidden states of a text of that token alone, special
    tokens included, in the strongest directions of all tokens' (PCA). Its weight is a / (a + p)
    for a share p in the texts; where a vocabulary is cut afterwards, these are the shares that the
    tokens had before.

    Args:
        teacher: a row of FAMILIES or OWN_MODELS; of one without layers, its vectors of tokens are
            taken instead of hidden states.
        shape: `hidden_size` of the vectors (256 by default), `feed_forward_size` of the layer
            behind the mean (256; with 0 the head is linear), `texts` of an example, and the
            `tokens` of the texts.

    Raises:
        ModelError: the shape asks for what only transformers have, or for more directions than
            the teacher has; or its tokenizer is not known.
    """
    check_tokenizer_known(teacher, "a static student")
    check_no_layers(shape, "a static student")
    student = StaticForSequenceClassification(_config(teacher, shape))
    if shape.tokens is None:  # a plan has no texts yet, and asks for the shape alone
        return student
    vectors = _start_vectors(teacher, shape.tokens, student.config.hidden_size)
    with torch.no_grad():
        words, weights = student.encoder.word_embeddings.weight, student.encoder.word_weights
        words.copy_(vectors)
        weights.copy_(_weights(shape.tokens, len(vectors)))
    return student


def _start_vectors(teacher: PreTrainedModel, tokens: TokenUse, width: int) -> torch.Tensor:
    """Return the vectors to start from, (vocab, width), cached: a large teacher takes minutes."""
    around = (tuple(tokens.before), tuple(tokens.after))
    shaping = (encoder_digest(teacher), around, width, computing_versions())
    name = hashlib.sha256(repr(shaping).encode()).hexdigest()
    place = cache_directory() / "token-vectors" / f"{name}.safetensors"
    return cached_tensor(place, lambda: _narrowed(_vectors(teacher, tokens), width))


def _narrowed(vectors: torch.Tensor, width: int) -> torch.Tensor:
    """Return vectors (vocab, width) about 0 in their strongest directions, of variance 1."""
    narrow = strongest_directions(vectors - vectors.mean(0), width)
    return narrow / narrow.std()


def _vectors(teacher: PreTrainedModel, tokens: TokenUse) -> torch.Tensor:
    """Return what the teacher makes of each token, (vocab, its width)."""
    table = _table(teacher)
    if not teacher.config.num_hidden_layers:
        return table.weight.detach().float().cpu()
    was_training, encoder = teacher.training, teacher.eval().base_model
    rows = torch.arange(table.num_embeddings, device=table.weight.device).split(TOKENS_AT_ONCE)
    batches = track(rows, "tokens alone", len(rows))
    with torch.no_grad():
        states = (encoder(_texts(batch, tokens)).last_hidden_state for batch in batches)
        means = torch.cat([each.mean(1).float().cpu() for each in states])
    teacher.train(was_training)
    return means


def _table(teacher: PreTrainedModel) -> nn.Embedding:
    table = teacher.get_input_embeddings()
    assert isinstance(table, nn.Embedding)
    return table


def _texts(rows: torch.Tensor, tokens: TokenUse) -> torch.Tensor:
    """Return a text of each token alone, (tokens, seq)."""
    around = ([*tokens.before], [*tokens.after])
    before, after = (torch.tensor(each, dtype=torch.long, device=rows.device) for each in around)
    count = len(rows)
    return torch.cat([before.expand(count, -1), rows[:, None], after.expand(count, -1)], dim=1)


def _weights(tokens: TokenUse, rows: int) -> torch.Tensor:
    """Return the weights of tokens before their sigmoid; one that never occurs counts once."""
    counts = torch.ones(rows)
    counts[: len(tokens.counts)] += tokens.counts
    weights = (RARE / (counts / counts.sum())).log()  # its sigmoid is a / (a + p)
    weights[[*tokens.special]] = NO_WEIGHT
    return weights


def _config(teacher: PreTrainedModel, shape: StudentShape) -> StaticConfig:
    table = _table(teacher)
    has_layers = bool(teacher.config.num_hidden_layers)
    tokens, widest = table.weight.shape
    widest = teacher.config.hidden_size if has_layers else widest
    width = shape.hidden_size or min(HIDDEN_SIZE, widest)
    if width > widest:
        raise ModelError(
            f"hidden_size={width}: the start has vectors of {widest} numbers, and no more "
            f"directions than that. Give {widest} at most, or leave it out."
        )
    hidden = shape.feed_forward_size
    return StaticConfig(
        vocab_size=tokens,
        hidden_size=width,
        feed_forward_size=FEED_FORWARD_SIZE if hidden is None else hidden,
        texts=shape.texts,
        pad_token_id=teacher.config.pad_token_id,
        id2label=teacher.config.id2label,
        label2id=teacher.config.label2id,
    )
