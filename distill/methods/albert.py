"""An ALBERT student (Lan et al. 2019, arXiv 1909.11942): one shared layer, narrow embeddings.

Student: the ALBERT class, as deep and wide as the teacher, with one layer that runs at every
depth (section 3.1, cross-layer parameter sharing) and embeddings of 128 that a linear layer
projects to the width (factorised embedding parameterisation). The shared layer starts as the mean
of the teacher's layers, the embeddings as the best factors of the teacher's (truncated SVD).
The student is far smaller on disk but no faster, since as many layers run.
Loss: as `distilbert`, since the ALBERT paper has no distillation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bertender.core.errors import ModelError
from distill.methods.distilbert import DISTILBERT
from distill.methods.method import Method
from distill.students import (
    StudentKind,
    StudentShape,
    check_not_factorised,
    check_widths,
    plain_family,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel


EMBEDDING_SIZE = 128
"""Embedding width of all published ALBERT models."""


class AlbertStudent(StudentKind):
    """An ALBERT: one shared layer, run as often as the shape has layers."""

    usual_layers = "all"
    layer_by_layer = False
    model_type = "albert"

    def build(self, start: PreTrainedModel, shape: StudentShape) -> PreTrainedModel:
        """Build the student.

        Args:
            start: a sequence classifier of a family with plain layers.
            shape: `layers`, the number of runs, and `teacher_layers` to average, all by default.

        Raises:
            ModelError: the layers are not plain, the embeddings are narrower than the layers, or
                positions are relative; or the shape asks for another width.
        """
        import torch
        from transformers import AlbertConfig, AlbertForSequenceClassification

        from bertender.models.families import FAMILIES, encoder_layers, has_distances_alone
        from bertender.models.family import copy_weights
        from distill.students.weights import inherited_settings, token_types_of

        family, source, layers = plain_family(start), start.config, encoder_layers(start)
        check_widths(start, shape, "an ALBERT student")
        check_not_factorised(start, "an ALBERT student")
        if has_distances_alone(source):
            raise ModelError(
                f"the teacher has position_embedding_type={source.position_embedding_type!r}, and "
                "the layers of an ALBERT student would lose its positions. Choose a method whose "
                "student is of the teacher's own class, such as distilbert."
            )
        averaged = shape.layers_of_start(len(layers)) or tuple(range(len(layers)))
        if not all(0 <= layer < len(layers) for layer in averaged):
            raise ModelError(
                f"teacher_layers={averaged}: give layers between 0 and {len(layers) - 1}, or leave "
                "it out to average all of them."
            )
        config = AlbertConfig(
            embedding_size=min(EMBEDDING_SIZE, source.hidden_size),
            hidden_size=source.hidden_size,
            num_hidden_layers=shape.layers,
            num_attention_heads=source.num_attention_heads,
            intermediate_size=family.feed_forward.channels(layers[0]),
            hidden_act=getattr(source, "hidden_act", None) or source.activation,
            hidden_dropout_prob=0.1,
            attention_probs_dropout_prob=0.1,
            layer_norm_eps=getattr(source, "layer_norm_eps", 1e-12),
            type_vocab_size=token_types_of(start),
            **inherited_settings(start),
        )
        student = AlbertForSequenceClassification(config)
        weights = [family.layer_weights(layers[layer]) for layer in averaged]
        with torch.no_grad():
            _factorise_embeddings(start, student)
            mean = {name: torch.stack([w[name] for w in weights]).mean(0) for name in weights[0]}
            copy_weights(mean, FAMILIES["albert"].layer_weights(encoder_layers(student)[0]))
        return student


def _factorise_embeddings(start: PreTrainedModel, student: PreTrainedModel) -> None:
    """Split the word table into factors; positions go through the inverse of the second one."""
    import torch

    from bertender.models.families import family_of
    from distill.students.weights import factors, position_table, weight_of, word_table

    own, encoder = family_of(student), student.base_model
    assert own.position_embeddings and own.token_type_embeddings
    narrow, widening = factors(word_table(start), student.config.embedding_size)
    positions = position_table(start, family_of(start)) @ torch.linalg.pinv(widening)
    weight_of(encoder, own.word_embeddings).copy_(narrow)
    weight_of(encoder, own.position_embeddings).copy_(positions)
    weight_of(encoder, own.token_type_embeddings).zero_()  # position_table holds the first one
    mapping = "encoder.embedding_hidden_mapping_in"
    weight_of(encoder, mapping).copy_(widening.T)
    encoder.get_parameter(f"{mapping}.bias").zero_()


ALBERT = Method(
    name="albert",
    summary="soft and hard labels and hidden cosine on a student of one shared layer",
    paper="Lan et al. 2019, arXiv 1909.11942 (the student)",
    student=AlbertStudent(),
    phases=DISTILBERT.phases,
)
