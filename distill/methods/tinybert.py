"""TinyBERT (Jiao et al. 2019, arXiv 1909.10351).

Student: any depth and width. A student of the teacher's width has the teacher's class and starts
from evenly spread layers, the matched ones. Narrower students are a BERT with random weights, which
need the general stage.
On a corpus (general distillation): the terms of phase 1 below, from a teacher that was not
fine-tuned; 3 epochs at 5e-5.
On a task, phase 1: embeddings and hidden states (eq. 8 and 9) through one projection shared by
all layers, and attention scores before softmax (eq. 7), student layer m from teacher layer m N / M,
summed over the layers; the learning rate is constant, for 10 epochs by default. The projection
continues from the general stage, as in the published code.
Phase 2: cross-entropy with the teacher's softened distribution at T = 1, no labels (eq. 10).
The paper trains on augmented texts: `--augmentation tinybert`, which is off by default.
Departures: states of the teacher's width are not projected (the published code draws a random
square matrix, so that layers copied from the teacher start far from it); means exclude padding (the
published code includes it); soft targets are averaged over the batch (the code also averages over
classes); numbers are learned from the teacher (the code takes the true ones for STS-B, which
rewritten texts do not have); and the teacher is in eval mode, which the code forgets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bertender.core.errors import ModelError
from distill.losses.terms import (
    Match,
    SoftLabels,
    attention_mse,
    hidden_mse,
    soft_cross_entropy,
    uniform,
    with_embeddings,
)
from distill.methods.method import General, Method, Phase, one_phase
from distill.students import ShorterStudent, StudentKind, StudentShape

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class AnyWidthStudent(StudentKind):
    """A BERT of any depth and width, with the teacher's vocabulary or its own.

    With the teacher's width and vocabulary, `ShorterStudent` builds the student. Otherwise its
    weights are random: it needs much text, or a general stage.
    """

    def build(self, start: PreTrainedModel, shape: StudentShape) -> PreTrainedModel:
        """Build the student.

        Raises:
            ModelError: the heads do not divide the width, the shape names layers of another width,
                or the teacher's architecture is not in FAMILIES.
        """
        from transformers import BertConfig, BertForSequenceClassification

        from distill.students.weights import inherited_settings, token_types_of

        own, source = shape.tokenizer, start.config
        if own is None and not shape.other_widths(start):
            return ShorterStudent().build(start, shape)
        if shape.teacher_layers:
            raise ModelError(
                f"teacher_layers={shape.teacher_layers}: a student of another width, or of another "
                "vocabulary, starts from random weights, not from layers. Leave it out."
            )
        width = shape.hidden_size or source.hidden_size
        heads = shape.heads or source.num_attention_heads
        if width % heads:
            raise ModelError(
                f"hidden_size={width} is not a multiple of heads={heads}. Choose heads to divide "
                "it."
            )
        settings = inherited_settings(start)
        if own:
            settings |= {"vocab_size": len(own), "pad_token_id": own.pad_token_id}
        config = BertConfig(
            hidden_size=width,
            num_hidden_layers=shape.layers,
            num_attention_heads=heads,
            intermediate_size=shape.feed_forward_size or 4 * width,
            # its own tokenizer has segments for pairs, even if the teacher's has none
            type_vocab_size=max(token_types_of(start), 2 if own else 1),
            **settings,
        )
        return BertForSequenceClassification(config)


ATTENTION = Match(
    "attention", 1.0, "attention_scores", attention_mse, layers=uniform, over_layers="sum"
)
TRANSFORMER = (
    Match(
        "hidden",
        1.0,
        "hidden_states",
        hidden_mse,
        layers=with_embeddings,
        over_layers="sum",
        projected=True,
    ),
    ATTENTION,
)

TINYBERT = Method(
    name="tinybert",
    summary="hidden states and attention scores of evenly spread layers, then soft labels",
    paper="Jiao et al. 2019, arXiv 1909.10351",
    student=AnyWidthStudent(),
    phases=(
        Phase(
            "transformer",
            TRANSFORMER,
            epochs=10,
            settings={"schedule": "constant", "learning_rate": 5e-5},
        ),
        Phase("prediction", (SoftLabels(weight=1.0, temperature=1.0, loss=soft_cross_entropy),)),
    ),
    settings={"epochs": 3, "learning_rate": 3e-5},
    augmentation="tinybert",
    general=General(
        summary="hidden states and attention scores of evenly spread layers",
        phases=one_phase(*TRANSFORMER),
        settings={"learning_rate": 5e-5},
    ),
)
