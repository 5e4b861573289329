"""A static student like model2vec's (Minish Lab, Tulkens and van Dongen 2024).

Student: one vector of 256 and one weight per token. The weighted mean of a text's vectors goes
through a layer of 256 and ReLU, or directly to the logits with `--feed-forward-size 0`; dropout
0.1. Special tokens are left out. The texts of a pair are encoded separately by the same table and
joined as [u, v, u * v, |u - v|].
Start, as in model2vec: a token's vector is the mean of the teacher's last hidden states of a text
of that token alone, reduced by PCA, here scaled to variance 1. Its weight is a / (a + p) for its
share p of the training texts (SIF, Arora et al. 2017).
Loss: mean squared error of the logits, and no labels; `--weights hard=1` adds them.
Departures: model2vec estimates p from a token's rank in the vocabulary, with a = 0.0001; here p is
counted and a is 0.1. A smaller a weakens the words that distinguish labels in small training sets.

The defaults (tokens alone, a = 0.1, a layer, logits) were chosen by one seed each on separate texts
of SST-2 and SNIPS intents, where differences within 0.01 are noise.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from bertender.core.errors import ModelError
from distill.losses.terms import HardLabels, LogitMatch
from distill.methods.bilstm import TableStudent, strongest_directions
from distill.methods.method import Method, one_phase
from distill.students import StudentShape

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from distill.tokenizers import TokenUse

HIDDEN_SIZE = 256
"""Default width of the vectors, or the start's if that is narrower."""
FEED_FORWARD_SIZE = 256
"""Default width of the layer between the mean and the logits."""
RARE = 0.1
"""Share of a token at which its weight is one half; `a` in Arora et al. 2017."""
TOKENS_AT_ONCE = 1024


class StaticStudent(TableStudent):
    """A static model with the start's vocabulary.

    A token's vector is the mean of the last hidden states of a text of that token alone, including
    special tokens, reduced by PCA over all tokens. Its weight is a / (a + p) for its share p of the
    texts; a later cut of the vocabulary keeps these shares.
    """

    counts_tokens = True
    linear_head = True
    model_type = "bertender-static"

    def build(self, start: PreTrainedModel, shape: StudentShape) -> PreTrainedModel:
        """Build the student.

        Args:
            start: a model of an architecture in FAMILIES or OWN_MODELS; without layers, its token
                vectors replace hidden states.
            shape: `hidden_size` of the vectors (256 by default), `feed_forward_size` of the layer
                after the mean (256; with 0 the head is linear), `texts` per example, and the
                `tokens` of the texts.

        Raises:
            ModelError: the shape has settings of transformers, or more dimensions than the start;
                or the layout of the start's tokenizer is unknown.
        """
        import torch

        from bertender.models.table_models import (
            NO_WEIGHT,
            StaticConfig,
            StaticForSequenceClassification,
        )

        self.check(start, shape, "a static student")
        source = start.config
        rows, widest = start.get_input_embeddings().get_parameter("weight").shape
        if source.num_hidden_layers:
            widest = source.hidden_size
        width = shape.hidden_size or min(HIDDEN_SIZE, widest)
        if width > widest:
            raise ModelError(
                f"hidden_size={width}: the start has vectors of {widest} numbers, and no more "
                f"directions than that. Give {widest} at most, or leave it out."
            )
        hidden = shape.feed_forward_size
        config = StaticConfig(
            vocab_size=rows,
            hidden_size=width,
            feed_forward_size=FEED_FORWARD_SIZE if hidden is None else hidden,
            texts=shape.texts,
            pad_token_id=source.pad_token_id,
            id2label=source.id2label,
            label2id=source.label2id,
        )
        student = StaticForSequenceClassification(config)
        if shape.tokens is None:  # a plan has no texts yet and needs only the shape
            return student
        counts = torch.ones(rows)  # a token that never occurs counts once
        counts[: len(shape.tokens.counts)] += shape.tokens.counts
        weights = (RARE / (counts / counts.sum())).log()  # its sigmoid is a / (a + p)
        weights[[*shape.tokens.special]] = NO_WEIGHT
        with torch.no_grad():
            vectors = _start_vectors(start, shape.tokens, width)
            student.encoder.word_embeddings.weight.copy_(vectors)
            student.encoder.word_weights.copy_(weights)
        return student


def _start_vectors(start: PreTrainedModel, tokens: TokenUse, width: int) -> torch.Tensor:
    """Return the initial vectors (vocab, width), cached since a large teacher takes minutes.

    They are centred, reduced by PCA and scaled to variance 1.
    """
    from bertender.core.files import cache_directory
    from bertender.training.checkpoint import cached_tensor, computing_versions, encoder_digest

    def computed() -> torch.Tensor:
        vectors = _vectors(start, tokens)
        narrow = strongest_directions(vectors - vectors.mean(0), width)
        return narrow / narrow.std()

    around = (tuple(tokens.before), tuple(tokens.after))
    shaping = (encoder_digest(start), around, width, computing_versions())
    name = hashlib.sha256(repr(shaping).encode()).hexdigest()
    return cached_tensor(cache_directory() / "token-vectors" / f"{name}.safetensors", computed)


def _vectors(start: PreTrainedModel, tokens: TokenUse) -> torch.Tensor:
    """Return the start's mean hidden state of each token alone, (vocab, hidden)."""
    import torch

    from bertender.core.progress import track

    table = start.get_input_embeddings().get_parameter("weight")
    if not start.config.num_hidden_layers:
        return table.detach().float().cpu()
    was_training, encoder = start.training, start.eval().base_model
    before, after = (
        torch.tensor([*each], dtype=torch.long, device=table.device)
        for each in (tokens.before, tokens.after)
    )
    batches = torch.arange(len(table), device=table.device).split(TOKENS_AT_ONCE)
    means = []
    for batch in track(batches, "tokens alone", len(batches)):
        around = before.expand(len(batch), -1), after.expand(len(batch), -1)
        states = encoder(torch.cat([around[0], batch[:, None], around[1]], dim=1)).last_hidden_state
        means.append(states.mean(1).float().cpu())  # (tokens, hidden)
    start.train(was_training)
    return torch.cat(means)


STATIC = Method(
    name="static",
    summary="logits as they are, for a table of vectors over the teacher's tokens",
    paper="model2vec, Tulkens and van Dongen 2024",
    student=StaticStudent(),
    phases=one_phase(LogitMatch(weight=1.0), HardLabels(weight=0.0)),
    settings={"epochs": 5, "learning_rate": 1e-3},
)
