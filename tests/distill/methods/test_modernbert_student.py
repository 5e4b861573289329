"""A ModernBERT student of another class's teacher: its shape, its words, and what it learns."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from transformers import ModernBertConfig, PreTrainedModel

from bertender.core.errors import ModelError
from bertender.models.families import FAMILIES, encoder_layers
from distill.losses.signals import read_signals
from distill.losses.terms import Match
from distill.methods import GENERAL_METHODS
from distill.methods.modernbert import ModernBertStudent
from distill.students import StudentShape
from distill.students.weights import position_table, word_table
from tests.toy_models import tiny_classifier
from tests.toys import tiny_tokenizer

build = ModernBertStudent().build


def parameters_of(layer: torch.nn.Module) -> int:
    return sum(each.numel() for each in layer.parameters())


def test_it_is_as_deep_and_wide_as_its_teacher_and_its_layers_as_large() -> None:
    teacher = tiny_classifier("bert", hidden_size=48, intermediate_size=192)
    student = build(teacher, StudentShape(4))
    config = student.config
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (4, 48, 4)
    assert config.intermediate_size == 128  # 8/3 of 48
    assert config.max_position_embeddings == teacher.config.max_position_embeddings
    assert config.local_attention == ModernBertConfig().local_attention
    ours, theirs = (parameters_of(encoder_layers(each)[1]) for each in (student, teacher))
    assert ours == pytest.approx(theirs, rel=0.03)  # a BERT has biases


@pytest.mark.parametrize("model_type", ["bert", "distilbert", "mpnet", "deberta-v2", "roberta"])
def test_its_words_are_its_teachers_at_a_mean_position(model_type: str) -> None:
    teacher = tiny_classifier(model_type)
    student, family = build(teacher, StudentShape(2)), FAMILIES[model_type]
    wanted = word_table(teacher).clone()
    if family.position_embeddings is not None:
        wanted += position_table(teacher, family).mean(0)
    torch.testing.assert_close(word_table(student), wanted)
    norms = (
        model.base_model.get_submodule(row.embedding_norm).weight
        for model, row in ((student, FAMILIES["modernbert"]), (teacher, family))
    )
    torch.testing.assert_close(*norms)
    batch = tiny_tokenizer()(["apple pear", "saw"], padding=True, return_tensors="pt")
    names = ("input_ids", "attention_mask")
    assert student(**{name: batch[name] for name in names}).logits.isfinite().all()


def test_a_modernbert_gives_its_layers() -> None:
    teacher = tiny_classifier("modernbert")
    student = build(teacher, StudentShape(4))
    ours, theirs = student.state_dict(), teacher.state_dict()
    assert all(torch.equal(ours[name], weight) for name, weight in theirs.items())


def test_another_width_starts_from_random_words() -> None:
    student = build(tiny_classifier("bert"), StudentShape(2, hidden_size=24, heads=4))
    assert (student.config.hidden_size, student.config.intermediate_size) == (24, 64)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (StudentShape(2, hidden_size=36, heads=4), "each head needs an even number"),
        (StudentShape(2, teacher_layers=(0, 2)), "none of its layers"),
    ],
)
def test_shapes_that_no_modernbert_has_are_refused(shape: StudentShape, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        build(tiny_classifier("bert"), shape)


def test_on_a_corpus_its_last_states_are_those_behind_its_last_norm() -> None:
    """Both majors of transformers list others as the states of the last layer."""
    student = build(tiny_classifier("bert"), StudentShape(2)).base_model.eval()
    assert isinstance(student, PreTrainedModel)
    batch = tiny_tokenizer()(["apple pear", "saw"], padding=True, return_tensors="pt")
    given = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        read = read_signals(student, given, {"hidden_states": frozenset({1, 2})}).hidden_states
        wanted = student(**given).last_hidden_state
        plain = student(**given, output_hidden_states=True).hidden_states
    torch.testing.assert_close(read[2], wanted)
    torch.testing.assert_close(read[1], plain[1])
    terms = {term.name: term for term in GENERAL_METHODS["modernbert"].terms}
    assert isinstance(terms["states"], Match) and terms["states"].pairs(2, 4) == ((1, 2), (2, 4))
    assert terms["last"].pairs(2, 4) == ((2, 4),)
    loss = terms["last"].loss(read[2], wanted + 1, given["attention_mask"])  # type: ignore[attr-defined]
    cosine = functional.cosine_similarity(read[2], wanted + 1, dim=-1)
    assert float(loss) == pytest.approx(float(1 - cosine[given["attention_mask"].bool()].mean()))
