"""DistilBERT (Sanh et al. 2019, arXiv 1910.01108), and its control.

Student: the DistilBERT class, no token-type embeddings and no pooler. Only the last layers are
matched.
On a corpus, as in the paper: the student starts from evenly spread teacher layers. 12 -> 6 takes 0,
2, 4, 7, 9 and 11, counted from 0, like the published checkpoint. Both models read texts with 15 %
of the words masked. The loss is 5 x soft labels over the vocabulary of every real token, with
T = 2, plus 2 x cross-entropy of the masked words, plus 1 x cosine of the last hidden states of real
tokens (section 2; the weights are the published code's). The head starts as the teacher's. Learning
rate 5e-4, 3 epochs.
On a task: soft labels with T squared, hard labels, and the same cosine.
Departures: on a task the student starts from the first layers and the last one, which scored more
on average wherever it was tried (benchmarks/reports/distilling.md). There, soft and hard labels
have equal weight (as in the SQuAD run, section 3.2) and T is 2. On a corpus all words are masked
with equal probability; the code prefers rare ones. The teacher's first token-type vector is added
to the position table instead of being dropped, so that a student of full depth has the teacher's
hidden states. A teacher with relative positions (MPNet), which DistilBERT lacks, gets a student of
its own class.

`hard` is the control: the same student, trained on labels alone. A distilled student's score above
the control is the gain of distillation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distill.losses.terms import (
    HardLabels,
    MaskedWords,
    Match,
    SoftLabels,
    SoftWords,
    hidden_cosine,
    last,
)
from distill.methods.method import General, Method, Phase, one_phase
from distill.students import (
    ShorterStudent,
    StudentKind,
    StudentShape,
    check_not_factorised,
    check_widths,
    chosen_layers,
    embedding_width,
    plain_family,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LARGEST_EPSILON = 1e-5
"""Largest layer norm epsilon of a teacher that DistilBERT's 1e-12 may replace: RoBERTa's, which is
small next to variances of 0.1."""


class DistilBertStudent(StudentKind):
    """A DistilBERT, or a shorter copy of a teacher with parts that DistilBERT lacks.

    MPNet's layers give other states without relative positions: a copy of six layers scored
    better.
    """

    def build(self, start: PreTrainedModel, shape: StudentShape) -> PreTrainedModel:
        """Build the student; see `distilbert_student` and `ShorterStudent`."""
        from bertender.models.families import family_of, has_relative_positions

        family, config = family_of(start), start.config
        has_more = (
            not family.plain_layers
            or has_relative_positions(config)
            or embedding_width(start) != config.hidden_size
            or getattr(config, "layer_norm_eps", 0.0) > LARGEST_EPSILON
            or getattr(config, "is_decoder", False)  # causal attention
        )
        if has_more:
            return ShorterStudent().build(start, shape)
        return distilbert_student(start, shape)


def distilbert_student(start: PreTrainedModel, shape: StudentShape) -> PreTrainedModel:
    """Build a DistilBERT from a teacher's embeddings and some of its layers.

    A student of full depth has the teacher's hidden states, except for parts that DistilBERT lacks:
    relative positions, a layer norm epsilon above 1e-12 (RoBERTa has 1e-5), and the second token
    type of pairs.

    Args:
        start: a sequence classifier of a family with plain layers.
        shape: `layers`, and `teacher_layers` to start from, else `start_layers`.

    Raises:
        ModelError: the teacher has too few layers, layers that are not plain, or embeddings of
            another width than its layers; or the shape asks for another width.
    """
    import torch
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    from bertender.models.families import FAMILIES, encoder_layers
    from bertender.models.family import copy_weights
    from distill.students.weights import inherited_settings, position_table, weight_of, word_table

    family, own, source = plain_family(start), FAMILIES["distilbert"], start.config
    chosen = chosen_layers(start, shape)
    check_widths(start, shape, "a DistilBERT student")
    check_not_factorised(start, "a DistilBERT student")
    layers = encoder_layers(start)
    config = DistilBertConfig(
        n_layers=shape.layers,
        n_heads=source.num_attention_heads,
        dim=source.hidden_size,
        hidden_dim=family.feed_forward.channels(layers[0]),
        activation=getattr(source, "hidden_act", None) or source.activation,
        **inherited_settings(start),
    )
    student = DistilBertForSequenceClassification(config)
    encoder = student.base_model
    assert own.position_embeddings and own.embedding_norm and family.embedding_norm
    with torch.no_grad():
        weight_of(encoder, own.word_embeddings).copy_(word_table(start))
        weight_of(encoder, own.position_embeddings).copy_(position_table(start, family))
        norm = start.base_model.get_submodule(family.embedding_norm)
        encoder.get_submodule(own.embedding_norm).load_state_dict(norm.state_dict())
        for number, target in zip(chosen, encoder_layers(student), strict=True):
            copy_weights(family.layer_weights(layers[number]), own.layer_weights(target))
    return student


LABELS = (SoftLabels(weight=0.5, temperature=2.0), HardLabels(weight=0.5))
COSINE = Match("cosine", 0.5, "hidden_states", hidden_cosine, layers=last)

DISTILBERT = Method(
    name="distilbert",
    summary="soft labels, hard labels and hidden-state cosine on a DistilBERT student",
    paper="Sanh et al. 2019, arXiv 1910.01108",
    student=DistilBertStudent(),
    start_layers="first-and-last",
    phases=one_phase(*LABELS, COSINE),
    general=General(
        summary="soft labels over the vocabulary, masked words and hidden-state cosine",
        phases=(
            Phase(
                "corpus",
                (
                    SoftWords(weight=5.0, temperature=2.0),
                    MaskedWords(weight=2.0),
                    Match("cosine", 1.0, "hidden_states", hidden_cosine, layers=last),
                ),
                masked=True,
            ),
        ),
        start_layers="alternating",
        settings={
            "learning_rate": 5e-4,
            # logits over the vocabulary for each token, of two models
            "tokens_per_batch": 2048,
        },
    ),
)

HARD = Method(
    name="hard",
    summary="the control: the distilbert student, trained on labels alone",
    paper="none",
    student=DistilBertStudent(),
    start_layers="first-and-last",
    phases=one_phase(HardLabels(weight=1.0)),
)
