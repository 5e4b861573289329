"""A ModernBERT student (Warner et al. 2024, arXiv 2412.13663) of a teacher of another class.

Student: the ModernBERT class (section 2.1): rotary positions, pre-norm, no biases, a gated
feed-forward part, and attention to 128 tokens except in every third layer. By default it has the
teacher's depth and width. The gated part has three matrices, so that 8/3 of the width instead of 4
makes a layer as large as BERT's. Word embeddings are the teacher's. The teacher's layers do not fit
the class, so the student needs a general stage.
On a corpus: the cosine of the hidden states of evenly spread layers, with the last counted twice.
The student's states are those of its residual stream; the last ones follow the final norm.
On a task: as `distilbert`.
Departures: the paper pre-trains with masked words and does not distil; the losses are ours, since a
sentence encoder predicts no words. The student's projections do not start from the teacher's, since
norms and positions differ; students that started so learned less. The classifier reads the mean of
the tokens, like the published models: the first token of a long text does not attend to all of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bertender.core.errors import ModelError
from distill.losses.terms import Match, hidden_cosine, last, uniform
from distill.methods.distilbert import COSINE, LABELS
from distill.methods.method import General, Method, one_phase
from distill.students import (
    ShorterStudent,
    StudentKind,
    StudentShape,
    check_not_factorised,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ModernBertStudent(StudentKind):
    """A ModernBERT with the teacher's vocabulary and random layers.

    Word embeddings are the teacher's if the widths agree, else random. From a ModernBERT of the
    same width, the student takes layers like `ShorterStudent`.
    """

    usual_layers = "all"
    model_type = "modernbert"

    def build(self, start: PreTrainedModel, shape: StudentShape) -> PreTrainedModel:
        """Build the student.

        Args:
            start: a sequence classifier of an architecture in FAMILIES.
            shape: `feed_forward_size` is the width of the gated part, 8/3 of `hidden_size` by
                default, rounded up to a multiple of 8.

        Raises:
            ModelError: the heads do not divide the width into even parts, the shape names layers
                of another class, or the embeddings have another width than the layers.
        """
        from transformers import ModernBertConfig, ModernBertForSequenceClassification

        from bertender.models.families import family_name
        from distill.students.weights import inherited_settings

        source, other = start.config, shape.other_widths(start)
        if family_name(source) == "modernbert" and not other:
            return ShorterStudent().build(start, shape)
        if shape.teacher_layers:
            raise ModelError(
                f"teacher_layers={shape.teacher_layers}: a ModernBERT student of a "
                f"{source.model_type!r} model starts from its words and from none of its layers. "
                "Leave it out."
            )
        width = shape.hidden_size or source.hidden_size
        heads = shape.heads or source.num_attention_heads
        if not heads:
            raise ModelError(
                f"a {source.model_type!r} model has no heads to take over. Give heads: a number "
                f"for which 2 x heads divides hidden_size={width}."
            )
        if width % (2 * heads):
            raise ModelError(
                f"hidden_size={width}, heads={heads}: positions turn pairs of a head's channels, "
                "so that each head needs an even number of them. Choose heads so that "
                "2 x heads divides hidden_size."
            )
        config = ModernBertConfig(
            hidden_size=width,
            num_hidden_layers=shape.layers,
            num_attention_heads=heads,
            intermediate_size=shape.feed_forward_size or -(-width // 3) * 8,
            classifier_pooling="mean",
            # unused by models; the default ids exceed a small vocabulary
            bos_token_id=None,
            eos_token_id=None,
            cls_token_id=None,
            sep_token_id=None,
            **inherited_settings(start),
        )
        student = ModernBertForSequenceClassification(config)
        if width == source.hidden_size:
            check_not_factorised(start, "a ModernBERT student")
            _start_words(start, student)
        return student


def _start_words(start: PreTrainedModel, student: PreTrainedModel) -> None:
    """Copy the teacher's word embeddings, each with the mean position embedding added."""
    import torch

    from bertender.models.families import family_of
    from distill.students.weights import position_table, weight_of, word_table

    own, family = family_of(student), family_of(start)
    words = word_table(start).clone()
    with torch.no_grad():
        if family.position_embeddings is not None:
            words += position_table(start, family).mean(0)
        weight_of(student.base_model, own.word_embeddings).copy_(words)
        assert own.embedding_norm is not None
        if family.embedding_norm is not None:
            weight_of(student.base_model, own.embedding_norm).copy_(
                weight_of(start.base_model, family.embedding_norm)
            )


MODERNBERT = Method(
    name="modernbert",
    summary="soft and hard labels and hidden cosine on a ModernBERT from a general stage",
    paper="Warner et al. 2024, arXiv 2412.13663 (the student)",
    student=ModernBertStudent(),
    phases=one_phase(*LABELS, replace(COSINE, projected=True)),
    general=General(
        summary="cosine of the hidden states of evenly spread layers, on a ModernBERT student",
        phases=one_phase(
            Match("states", 1.0, "hidden_states", hidden_cosine, layers=uniform, projected=True),
            Match("last", 1.0, "hidden_states", hidden_cosine, layers=last, projected=True),
        ),
        settings={"learning_rate": 1e-3},
    ),
)
