"""Terms of a method's loss: data with a weight, computed on signals; and their loss functions.

Terms that compare layers have a layer map: which student layer learns from which teacher layer.

Losses are functions of student and teacher tensors, with masks. Every mask is (batch, seq), 1 for a
real token and 0 for padding; values at padding never change a loss. No gradient flows into a
teacher. Sums are taken in float32 at least. PyTorch is imported inside functions, since settings of
methods name losses without loading it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from bertender.core.config import Table
from bertender.metrics.metric import NO_LABEL
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.training.heads import HEADS
from bertender.training.heads.head import (
    Head,
    divisor,
    hard_labels,
    mean_of_rows,
    precise,
    soft_labels,
)
from distill.losses.signals import STATE_SIGNALS, TEXT_SIGNALS, Signal, Signals, Wanted, joined

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

    from bertender.training.examples import TensorBatch


def mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the mean of the values where the mask is 1."""
    weights = mask.to(values.dtype)
    return (values * weights).sum() / divisor(weights.sum())


def attention_mse(
    student_scores: torch.Tensor, teacher_scores: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Mean squared difference of attention scores before softmax, over pairs of real tokens.

    Jiao et al. 2019 (TinyBERT, arXiv 1909.10351), eq. 7.

    Args:
        student_scores: (batch, heads, seq, seq).
        teacher_scores: (batch, heads, seq, seq), with as many heads.
        mask: (batch, seq).
    """
    difference = precise(student_scores) - precise(teacher_scores.detach())
    pairs = mask[:, :, None] * mask[:, None, :]  # (batch, seq, seq)
    return mean(difference.square().mean(1), pairs)


def attention_divergence(
    student_scores: torch.Tensor, teacher_scores: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """KL divergence of the student's attention from the teacher's, over heads and real tokens.

    Wang et al. 2020 (MiniLM, arXiv 2002.10957), eq. 6. Each row of scores is a distribution over
    the real tokens of its text. Texts count equally, whatever their length.

    Args:
        student_scores: (batch, heads, seq, seq), before mask and softmax.
        teacher_scores: (batch, heads, seq, seq), with as many heads.
        mask: (batch, seq).
    """
    student = _log_attention(student_scores, mask)
    teacher = _log_attention(teacher_scores.detach(), mask)
    divergence = (teacher.exp() * (teacher - student)).sum(-1).mean(1)  # (batch, seq)
    by_text = (divergence * mask).sum(1) / mask.sum(1)
    return mean_of_rows(by_text)


def relation_divergence(
    student_vectors: torch.Tensor,
    teacher_vectors: torch.Tensor,
    mask: torch.Tensor,
    relation_heads: int | None = None,
) -> torch.Tensor:
    """KL divergence of self-attention relations: the similarity of each token to each other token.

    Wang et al. 2020 (MiniLM, arXiv 2002.10957), eq. 7 to 9, and, where `relation_heads` are set,
    Wang et al. 2021 (MiniLMv2, arXiv 2012.15828), eq. 5 and 6: the heads are joined and split again
    into relation heads, so that the student may have another number of heads than the teacher.

    Args:
        student_vectors: queries, keys or values, (batch, heads, seq, head_dim).
        teacher_vectors: the same of the teacher; its width may differ.
        mask: (batch, seq).
        relation_heads: must divide both widths; None keeps the heads as they are.
    """
    return attention_divergence(
        _relations(precise(student_vectors), relation_heads),
        _relations(precise(teacher_vectors.detach()), relation_heads),
        mask,
    )


def _relations(vectors: torch.Tensor, relation_heads: int | None) -> torch.Tensor:
    """Return scaled products of vectors, (batch, relation heads, seq, seq)."""
    import torch

    if relation_heads is not None:
        joined = vectors.transpose(1, 2).flatten(2)  # (batch, seq, hidden)
        vectors = joined.unflatten(-1, (relation_heads, -1)).transpose(1, 2)
    with torch.autocast(vectors.device.type, enabled=False):  # autocast would use bfloat16
        return vectors @ vectors.transpose(-1, -2) / math.sqrt(vectors.shape[-1])


def _log_attention(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return log-probabilities over the real tokens; 0 for padding."""
    from torch.nn import functional

    real = mask[:, None, None, :].bool()
    log = functional.log_softmax(precise(scores).masked_fill(~real, -math.inf), dim=-1)
    return log.masked_fill(~real, 0.0)


def hidden_cosine(
    student_states: torch.Tensor, teacher_states: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """One minus the cosine of student and teacher states, averaged over real tokens.

    Sanh et al. 2019 (arXiv 1910.01108), section 2: the cosine embedding loss, which aligns the
    directions of the hidden states.

    Args:
        student_states: (batch, seq, hidden).
        teacher_states: (batch, seq, hidden), of the same width.
        mask: (batch, seq).
    """
    from torch.nn import functional

    cosine = functional.cosine_similarity(
        precise(student_states), precise(teacher_states.detach()), dim=-1
    )  # (batch, seq)
    return mean(1 - cosine, mask)


def hidden_mse(
    student_states: torch.Tensor, teacher_states: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Mean squared difference of hidden states over real tokens and the width.

    Jiao et al. 2019 (TinyBERT, arXiv 1909.10351), eq. 8 and 9.

    Args:
        student_states: (batch, seq, hidden), projected to the teacher's width.
        teacher_states: (batch, seq, hidden).
        mask: (batch, seq).
    """
    difference = precise(student_states) - precise(teacher_states.detach())
    return mean(difference.square().mean(-1), mask)


def normalised_hidden_mse(
    student_states: torch.Tensor, teacher_states: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Mean squared difference of hidden states that are normalised to mean 0 and variance 1.

    Sun et al. 2020 (MobileBERT, arXiv 2004.02984), eq. 1: feature map transfer, after a layer norm
    without parameters, over real tokens and the width.

    Args:
        student_states: (batch, seq, hidden), projected to the teacher's width.
        teacher_states: (batch, seq, hidden).
        mask: (batch, seq).
    """
    return hidden_mse(_normalised(student_states), _normalised(teacher_states), mask)


def hidden_mean_mse(
    student_states: torch.Tensor, teacher_states: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Squared difference of the means over the width, averaged over real tokens.

    Sun et al. 2020 (MobileBERT, arXiv 2004.02984). With `hidden_variance_difference`, it covers the
    statistics that `normalised_hidden_mse` removes. The widths need not be equal.

    Args:
        student_states: (batch, seq, hidden).
        teacher_states: (batch, seq, hidden).
        mask: (batch, seq).
    """
    difference = precise(student_states).mean(-1) - precise(teacher_states.detach()).mean(-1)
    return mean(difference.square(), mask)


def hidden_variance_difference(
    student_states: torch.Tensor, teacher_states: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Absolute difference of the variances over the width, averaged over real tokens.

    Sun et al. 2020 (MobileBERT, arXiv 2004.02984). The widths need not be equal.

    Args:
        student_states: (batch, seq, hidden).
        teacher_states: (batch, seq, hidden).
        mask: (batch, seq).
    """
    ours, theirs = precise(student_states), precise(teacher_states.detach())
    return mean((ours.var(-1, correction=0) - theirs.var(-1, correction=0)).abs(), mask)


def normalised_sentence_mse(
    student_states: torch.Tensor, teacher_states: torch.Tensor
) -> torch.Tensor:
    """Mean squared difference of [CLS] states of length one, over the batch and the width.

    Sun et al. 2019 (PKD, arXiv 1908.09355), eq. 7. The mean over the width follows the published
    code and its weight of 500; the paper writes the squared distance.

    Args:
        student_states: (batch, hidden).
        teacher_states: (batch, hidden), of the same width.
    """
    from torch.nn import functional

    student = functional.normalize(precise(student_states), dim=-1)
    teacher = functional.normalize(precise(teacher_states.detach()), dim=-1)
    return mean_of_rows((student - teacher).square().mean(-1))


def sentence_cosine(student_states: torch.Tensor, teacher_states: torch.Tensor) -> torch.Tensor:
    """One minus the cosine of the [CLS] states, averaged over the batch.

    Aguilar et al. 2019 (arXiv 1910.03723), eq. 3.

    Args:
        student_states: (batch, hidden).
        teacher_states: (batch, hidden), of the same width.
    """
    from torch.nn import functional

    cosine = functional.cosine_similarity(
        precise(student_states), precise(teacher_states.detach()), dim=-1
    )  # (batch)
    return mean_of_rows(1 - cosine)


def _normalised(states: torch.Tensor) -> torch.Tensor:
    """Return each token's state (batch, seq, hidden) with mean 0 and variance 1."""
    from torch.nn import functional

    return functional.layer_norm(precise(states), states.shape[-1:], eps=1e-12)


def weight_mse(student: Sequence[torch.Tensor], teacher: Sequence[torch.Tensor]) -> torch.Tensor:
    """Sum over weights of their mean squared difference.

    Zhao et al. 2019 (arXiv 1909.11687v1), section 3.3. One of each pair was projected to the size
    of the other. No gradient flows into the teacher's weights, but into their projection.

    Args:
        student: weights of any shapes.
        teacher: as many weights, of the same shapes.
    """
    import torch
    from torch.nn import functional

    pairs = zip(student, teacher, strict=True)
    return torch.stack(
        [functional.mse_loss(precise(ours), precise(theirs)) for ours, theirs in pairs]
    ).sum()


def token_soft_labels(
    student_logits: torch.Tensor,
    teacher_logits: torch.Tensor,
    mask: torch.Tensor,
    temperature: float,
) -> torch.Tensor:
    """`soft_labels` of every real token, each a distribution over words or tags.

    Sanh et al. 2019 (DistilBERT, arXiv 1910.01108), section 2, over the words of a vocabulary.

    Args:
        student_logits: (batch, seq, classes).
        teacher_logits: (batch, seq, classes).
        mask: (batch, seq).
        temperature: above 0; larger is softer.
    """
    real = mask.bool()
    return soft_labels(student_logits[real], teacher_logits[real], temperature)


def soft_cross_entropy(
    student_logits: torch.Tensor,
    teacher_logits: torch.Tensor,
    temperature: float,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Cross-entropy with the teacher's softened distribution, without T squared.

    Jiao et al. 2019 (TinyBERT, arXiv 1909.10351), eq. 10. It differs from `soft_labels` at T = 1
    by the teacher's entropy, which is constant; here the mean is over the batch alone.

    Args:
        student_logits: (batch, labels).
        teacher_logits: (batch, labels).
        temperature: above 0; larger is softer.
        weights: (batch,), weight of each row; None for equal weights.
    """
    from torch.nn import functional

    student = functional.log_softmax(precise(student_logits) / temperature, dim=-1)
    teacher = functional.softmax(precise(teacher_logits.detach()) / temperature, dim=-1)
    return mean_of_rows(-(teacher * student).sum(-1), weights)


def vocabulary_labels(
    logits: torch.Tensor, targets: torch.Tensor, entries: Sequence[int]
) -> torch.Tensor:
    """Cross-entropy of each target over the entries of its own vocabulary.

    Zhao et al. 2019 (arXiv 1909.11687v1), section 3.2: a row mixes several vocabularies, each with
    its own softmax.

    Args:
        logits: (batch, seq, all entries), one vocabulary after another.
        targets: (batch, seq), ids of entries; NO_LABEL where there is no target.
        entries: number of entries of each vocabulary.
    """
    from torch.nn import functional

    asked = targets != NO_LABEL
    rows, wanted = precise(logits[asked]), targets[asked]
    total, first = rows.sum() * 0, 0
    for own, of_vocabulary in zip(entries, rows.split(list(entries), dim=-1), strict=True):
        mine = (first <= wanted) & (wanted < first + own)
        total = total + functional.cross_entropy(
            of_vocabulary[mine], wanted[mine] - first, reduction="sum"
        )
        first += own
    return total / divisor(asked.sum().float())


Loss: TypeAlias = "Callable[..., torch.Tensor]"

Pairs = tuple[tuple[int, int], ...]
"""(student layer, teacher layer), counted from 1; 0 is the embeddings"""
LayerMap = Callable[[int, int], Pairs]
"""(layers of the student, of the teacher) -> pairs of layers"""


def last(student: int, teacher: int) -> Pairs:
    """Match only the last layers."""
    return ((student, teacher),)


def uniform(student: int, teacher: int) -> Pairs:
    """Match evenly spread teacher layers, up to the last (TinyBERT, eq. 6: g(m) = m N / M)."""
    return tuple((layer, layer * teacher // student) for layer in range(1, student + 1))


def with_embeddings(student: int, teacher: int) -> Pairs:
    """Match the embeddings, and `uniform` layers."""
    return ((0, 0), *uniform(student, teacher))


def skip(student: int, teacher: int) -> Pairs:
    """Match every k-th teacher layer except the last, which soft labels cover (PKD-Skip)."""
    return uniform(student, teacher)[:-1]


def last_between(student: int, teacher: int) -> Pairs:
    """Match the teacher's last layers except the final one (PKD-Last: 7 to 11 for 12 -> 6)."""
    return tuple((layer, teacher - student + layer) for layer in range(1, student))


LAYER_MAPS: Table[LayerMap] = Table(
    "layer map",
    {
        "last": last,
        "last-between": last_between,
        "skip": skip,
        "uniform": uniform,
        "with-embeddings": with_embeddings,
    },
)


class Term:
    """A term of a loss. By default it fits any two models with the same labels."""

    name: str
    weight: float
    teaches: ClassVar[bool] = True
    """Whether the student learns from the term, not only auxiliary modules."""

    @property
    def needs(self) -> frozenset[Signal]:
        """Signals of the teacher that the term reads."""
        return frozenset()

    @property
    def shared(self) -> str:
        """Setting that must be equal in both models' configs; empty for none."""
        return ""

    def at(self, layers: int) -> Term:
        """Return the term for a student of a depth."""
        return self

    def pairs(self, student: int, teacher: int) -> Pairs:
        """Return the pairs of layers to compare at these depths, if any."""
        return ()

    def incompatibility(self, student: PretrainedConfig, teacher: PretrainedConfig) -> str:
        """Return why the two models cannot be compared, and the remedy; empty if they can."""
        return ""

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        """Return the unweighted loss, a scalar."""
        raise NotImplementedError


class _LogitTerm(Term):
    """A term that reads the teacher's logits."""

    @property
    def needs(self) -> frozenset[Signal]:
        return frozenset({"logits"})


class _LayerTerm(Term):
    """A term that reads a signal of some layers."""

    signal: Signal

    @property
    def needs(self) -> frozenset[Signal]:
        return frozenset({self.signal})


def wanted_by(terms: Iterable[Term], student: int, teacher: int) -> tuple[Wanted, Wanted]:
    """Return the signals of student and teacher that terms with a weight read, at these depths."""
    read = [(term.needs, term.pairs(student, teacher)) for term in terms if term.weight]
    mine, theirs = (
        joined({s: frozenset(pair[side] for pair in pairs) for s in needs} for needs, pairs in read)
        for side in (0, 1)
    )
    return mine, theirs


@dataclass(frozen=True)
class HardLabels(Term):
    """The true labels as the target."""

    weight: float
    head: Head = HEADS[SINGLE_LABEL.name]
    """Head of the student."""
    name: str = "hard"

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        return self.head.hard_loss(self.head.joined(student.logits, batch), batch)


@dataclass(frozen=True)
class SoftLabels(_LogitTerm):
    """The teacher's softened distribution as the target. Taggers have it at the first token of each
    word, which has the label."""

    weight: float
    temperature: float
    loss: Loss = soft_labels
    """(student logits, teacher logits, temperature) -> scalar, for problems whose predictions are
    distributions"""
    head: Head = HEADS[SINGLE_LABEL.name]
    """Head of both models."""
    name: str = "soft"

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        mine, theirs = (self.head.joined(each.logits, batch) for each in (student, teacher))
        return self.head.soft_loss(mine, theirs, batch, self.temperature, self.loss)


@dataclass(frozen=True)
class LogitMatch(_LogitTerm):
    """The teacher's logits as the target, without softening."""

    weight: float
    head: Head = HEADS[SINGLE_LABEL.name]
    """Head of both models."""
    name: str = "logits"

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        mine, theirs = (self.head.joined(each.logits, batch) for each in (student, teacher))
        return self.head.logit_loss(mine, theirs, batch)


@dataclass(frozen=True)
class MaskedWords(Term):
    """The masked words as the target, in phases that mask words."""

    weight: float
    name: str = "words"

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        return hard_labels(student.logits, batch["targets"])


@dataclass(frozen=True)
class SoftWords(_LogitTerm):
    """The teacher's softened distribution over the vocabulary, for every real token."""

    weight: float
    temperature: float
    masked_alone: bool = False
    """Use only masked words."""
    name: str = "soft"

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        asked = batch["targets"] != NO_LABEL if self.masked_alone else batch["attention_mask"]
        return token_soft_labels(student.logits, teacher.logits, asked, self.temperature)


@dataclass(frozen=True)
class Match(_LayerTerm):
    """A signal of some teacher layers as the target of some student layers."""

    name: str
    weight: float
    signal: Signal
    loss: Loss
    """(student, teacher, mask) -> scalar, a function above; without mask for signals of a whole
    text, which have no padding"""
    layers: LayerMap
    over_layers: Literal["sum", "mean"] = "mean"
    projected: bool = False
    """Project states of another width than the teacher's by a linear layer, shared by all layers
    and terms. It is trained with the student but not part of it."""
    up_to: int | None = None
    """Number of pairs of layers to match, the lowest first; None matches all."""
    only: int | None = None
    """Match only the pair at this index, or the last if there are fewer; None matches all."""
    divided_by_depth: bool = False
    """Divide the weight by the number of the student's layers."""

    def at(self, layers: int) -> Match:
        if not self.divided_by_depth:
            return self
        return replace(self, weight=self.weight / layers, divided_by_depth=False)

    @property
    def shared(self) -> str:
        return "" if self.projected else _SAME[self.signal]

    def pairs(self, student: int, teacher: int) -> Pairs:
        pairs = self.layers(student, teacher)[: self.up_to]
        return pairs if self.only is None else pairs[: self.only + 1][-1:]

    def incompatibility(self, student: PretrainedConfig, teacher: PretrainedConfig) -> str:
        has_embeddings = self.signal in STATE_SIGNALS
        if missing := _missing_layers(self.name, self.pairs, student, teacher, has_embeddings):
            return missing
        if not self.shared:
            return ""
        ours, theirs = getattr(student, self.shared), getattr(teacher, self.shared)
        if ours == theirs:
            return ""
        return (
            f"term {self.name!r} compares {self.signal.replace('_', ' ')}: the student has "
            f"{self.shared}={ours} and the teacher {theirs}, which must be equal"
        )

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        import torch

        ours, theirs = getattr(student, self.signal), getattr(teacher, self.signal)
        mask = () if self.signal in TEXT_SIGNALS else (batch["attention_mask"],)
        losses = torch.stack(
            [
                self.loss(ours[mine], theirs[other], *mask)
                for mine, other in self.pairs(student.depth, teacher.depth)
            ]
        )
        return losses.sum() if self.over_layers == "sum" else losses.mean()


_SAME: Mapping[Signal, str] = {
    "hidden_states": "hidden_size",
    "sentence_states": "hidden_size",
    "attention_scores": "num_attention_heads",
}
"""Config setting that must be equal in both models for a signal to be comparable."""


@dataclass(frozen=True)
class Relations(_LayerTerm):
    """Relations of a teacher layer as the target: similarities of all tokens' queries, keys or
    values."""

    name: str
    weight: float
    signal: Signal
    layers: LayerMap
    relation_heads: int | None = None
    """Number of heads into which both models' vectors are split; None keeps their own heads."""

    @property
    def shared(self) -> str:
        return "num_attention_heads" if self.relation_heads is None else ""

    def pairs(self, student: int, teacher: int) -> Pairs:
        return self.layers(student, teacher)

    def incompatibility(self, student: PretrainedConfig, teacher: PretrainedConfig) -> str:
        if missing := _missing_layers(self.name, self.pairs, student, teacher, False):
            return missing
        ours, theirs = student.num_attention_heads, teacher.num_attention_heads
        if self.relation_heads is None and ours != theirs:
            return (
                f"term {self.name!r} compares relations head by head: the student has {ours} heads "
                f"and the teacher {theirs}, which must be equal"
            )
        # MobileBERT's attention is narrower than its hidden states
        widths = tuple(
            getattr(each, "true_hidden_size", each.hidden_size) for each in (student, teacher)
        )
        if self.relation_heads and any(width % self.relation_heads for width in widths):
            return (
                f"relation_heads={self.relation_heads} must divide the widths of both models, "
                f"{widths[0]} and {widths[1]}; {math.gcd(*widths)} and its divisors do"
            )
        return ""

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        import torch

        ours, theirs = getattr(student, self.signal), getattr(teacher, self.signal)
        mask, heads = batch["attention_mask"], self.relation_heads
        losses = [
            relation_divergence(ours[mine], theirs[other], mask, heads)
            for mine, other in self.pairs(student.depth, teacher.depth)
        ]
        return torch.stack(losses).mean()


MIXED_INPUTS = {"input_ids": "mixed_input_ids", "attention_mask": "mixed_attention_mask"}
"""Inputs of the teacher's copy, and the columns in both vocabularies that hold them."""
MIXED_TARGETS = "mixed_targets"


@dataclass(frozen=True)
class MixedWords(Term):
    """Masked words of a row that mixes both vocabularies, as the target of the teacher's copy."""

    weight: float
    name: str = "mixed"
    teaches: ClassVar[bool] = False

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        own = student.logits.shape[-1]
        entries = teacher.logits.shape[-1] - own, own
        return vocabulary_labels(teacher.logits, batch[MIXED_TARGETS], entries)


@dataclass(frozen=True)
class ProjectedWeights(Term):
    """The teacher's weights as the target of the student's, through learned projections.

    The weights are word embeddings of the student's vocabulary and all weights of matched layers.
    """

    name: str
    weight: float
    layers: LayerMap
    projects_student: bool
    """Project the student's weights to the teacher's size; else the teacher's to the student's."""

    def incompatibility(self, student: PretrainedConfig, teacher: PretrainedConfig) -> str:
        from bertender.models.families import FAMILIES

        if missing := _missing_layers(self.name, self.layers, student, teacher, False):
            return missing
        family = FAMILIES.get(teacher.model_type)
        if family and family.plain_layers:
            return ""
        plain = sorted(name for name, row in FAMILIES.items() if row.plain_layers)
        return (
            f"term {self.name!r} compares the weights of layers one by one, and those of a "
            f"{teacher.model_type!r} teacher are of its own kind. Give a teacher of these: "
            f"{', '.join(plain)}"
        )

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        return weight_mse(student.weights[self.name], teacher.weights[self.name])


def _missing_layers(
    name: str,
    layers: LayerMap,
    student: PretrainedConfig,
    teacher: PretrainedConfig,
    embeddings: bool,
) -> str:
    """Return the error of a layer map that names missing layers; empty if there are none.

    Layer 0, the embeddings, is matched with layer 0 alone, and only where the signal has it.
    """
    depths = student.num_hidden_layers, teacher.num_hidden_layers
    pairs = layers(*depths)
    known = {(0, 0)} if embeddings else set()
    wrong = [
        pair
        for pair in pairs
        if pair not in known
        and not all(1 <= layer <= depth for layer, depth in zip(pair, depths, strict=True))
    ]
    if pairs and not wrong:
        return ""
    pair = f" {wrong[0]}" if wrong else ""
    return (
        f"term {name!r} has no layers{pair} (student, teacher) to match in a student of "
        f"{depths[0]} and a teacher of {depths[1]}. Choose another layer_map, or other layers"
    )
