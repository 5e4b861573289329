"""Students: a copy of the teacher's layers that answers as the teacher where it can."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import DistilBertForSequenceClassification, PreTrainedModel

from bertender.core.errors import ModelError
from bertender.models.families import FAMILIES, encoder_layers
from distill.distillation.config import DistillConfig
from distill.methods import METHODS
from distill.methods.albert import AlbertStudent
from distill.methods.bilstm import BiLstmStudent, strongest_directions
from distill.methods.compact import MiniBertStudent
from distill.methods.distilbert import distilbert_student
from distill.methods.static import StaticStudent
from distill.methods.tinybert import AnyWidthStudent
from distill.students import START_LAYERS, ShorterStudent, StudentShape
from distill.students.weights import factors, position_table, weight_of
from tests.toy_models import BERT_SHAPE, UNKNOWN, VOCABULARY, tiny_classifier
from tests.toys import tiny_tokenizer

StudentBuilder = Callable[[PreTrainedModel, StudentShape], PreTrainedModel]
albert_student = AlbertStudent().build
any_width_student = AnyWidthStudent().build
bilstm_student = BiLstmStudent().build
minibert_student = MiniBertStudent().build
shorter_student = ShorterStudent().build
static_student = StaticStudent().build

MASK = torch.tensor([[1] * 9, [1] * 5 + [0] * 4])


def test_a_vocabulary_of_its_own_tells_the_texts_of_a_pair_apart() -> None:
    """Even if the teacher has no token types: the student's tokenizer has two."""
    shape = StudentShape(2, tokenizer=tiny_tokenizer())
    student = any_width_student(tiny_classifier("mpnet"), shape)
    assert student.config.type_vocab_size == 2
    narrower = any_width_student(tiny_classifier("mpnet"), StudentShape(2, hidden_size=16))
    assert narrower.config.type_vocab_size == 1


@pytest.mark.parametrize(("model_type", "types"), [("bert", 2), ("mpnet", 1), ("distilbert", 1)])
@pytest.mark.parametrize("builder", [albert_student, any_width_student, minibert_student])
def test_it_knows_no_more_token_types_than_its_teacher(
    builder: StudentBuilder, model_type: str, types: int
) -> None:
    """Whose tokenizer it has: a graph that reads token types could not be run."""
    student = builder(tiny_classifier(model_type), StudentShape(2))
    assert getattr(student.config, "type_vocab_size", 1) == types


@pytest.mark.parametrize(("heads", "expected"), [(None, 2), (4, 4)])
def test_a_minibert_has_heads_of_64_unless_it_is_told(heads: int | None, expected: int) -> None:
    teacher = tiny_classifier("bert", hidden_size=256)
    student = minibert_student(teacher, StudentShape(1, hidden_size=128, heads=heads))
    assert student.config.num_attention_heads == expected


def hidden_states(model: PreTrainedModel) -> list[torch.Tensor]:
    """Embeddings and each layer's output, for real tokens only: (tokens, hidden)."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(5, VOCABULARY, MASK.shape, generator=generator)
    pad = model.config.pad_token_id
    ids = torch.where(MASK.bool(), ids, torch.tensor(pad))
    with torch.inference_mode():
        outputs = model(input_ids=ids, attention_mask=MASK, output_hidden_states=True)
    return [states[MASK.bool()] for states in outputs.hidden_states]


def without_relative_positions(model: PreTrainedModel) -> PreTrainedModel:
    """Zero the one thing of a teacher that a DistilBERT cannot hold."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "relative" in name:
                parameter.zero_()
    return model


PLAIN = [name for name in FAMILIES if FAMILIES[name].plain_layers]


@pytest.mark.parametrize("model_type", PLAIN)
def test_a_student_of_full_depth_has_the_teachers_hidden_states(model_type: str) -> None:
    teacher = tiny_classifier(model_type)
    teacher = without_relative_positions(teacher)
    student = distilbert_student(teacher, StudentShape(4)).eval()
    pairs = zip(hidden_states(student), hidden_states(teacher), strict=True)
    for layer, (ours, theirs) in enumerate(pairs):
        torch.testing.assert_close(
            ours, theirs, rtol=1e-4, atol=1e-4, msg=lambda m, n=layer: f"{n}: {m}"
        )


@pytest.mark.parametrize("model_type", PLAIN)
def test_a_shorter_student_has_the_chosen_layers(model_type: str) -> None:
    teacher = tiny_classifier(model_type)
    student = distilbert_student(teacher, StudentShape(2, teacher_layers=(1, 3)))
    family = FAMILIES[model_type]
    for source, target in zip((1, 3), student.distilbert.transformer.layer, strict=True):
        weights = family.layer_weights(encoder_layers(teacher)[source])
        assert torch.equal(target.ffn.lin1.weight, weights["ffn.inner.weight"])
        assert torch.equal(target.attention.v_lin.bias, weights["attention.value.bias"])


GROUPS: dict[str, tuple[int, tuple[int, ...], tuple[int, ...] | None]] = {
    "one group": (1, (1, 3), (0, 0)),
    "each of its own group": (2, (1, 3), (0, 1)),
    "both of the first": (2, (0, 1), None),
    "fewer layers than groups": (4, (1, 3), (1, 3)),
}
"""Groups of an ALBERT of 4 layers, which a student takes, and whose groups its own are."""


@pytest.mark.parametrize("name", GROUPS)
def test_a_shorter_albert_runs_the_groups_of_its_layers(name: str) -> None:
    groups, chosen, theirs = GROUPS[name]
    teacher = tiny_classifier("albert", num_hidden_groups=groups)
    shape = StudentShape(2, teacher_layers=chosen)
    if theirs is None:
        with pytest.raises(ModelError, match=r"Give others, such as \(0, 2\)"):
            ShorterStudent().build(teacher, shape)
        shape = StudentShape(2, teacher_layers="first")
        theirs = (0, 1)
    student = ShorterStudent().build(teacher, shape)
    whole = teacher.base_model.encoder.albert_layer_groups
    for layer, group in zip(encoder_layers(student), theirs, strict=True):
        (wanted,) = whole[group].albert_layers
        pairs = zip(layer.state_dict().values(), wanted.state_dict().values(), strict=True)
        assert all(torch.equal(own, values) for own, values in pairs)


def test_the_student_is_a_distilbert_without_token_types() -> None:
    student = distilbert_student(tiny_classifier("bert"), StudentShape(2))
    assert type(student) is DistilBertForSequenceClassification
    assert not [name for name, _ in student.named_parameters() if "token_type" in name]
    assert student.config.n_layers == 2
    assert student.config.max_position_embeddings == 64


def test_the_student_shares_no_memory_with_its_teacher() -> None:
    teacher = tiny_classifier("bert")
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    student = distilbert_student(teacher, StudentShape(4))
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(before[name], now) for name, now in teacher.state_dict().items())


def test_labels_and_their_names_come_along() -> None:
    teacher = tiny_classifier("bert", labels=3)
    teacher.config.id2label = {0: "a", 1: "b", 2: "c"}
    student = distilbert_student(teacher, StudentShape(1))
    assert student.config.id2label == {0: "a", 1: "b", 2: "c"}
    assert student.classifier.out_features == 3


DEPTHS = st.integers(1, 48).flatmap(lambda depth: st.tuples(st.just(depth), st.integers(1, depth)))
"""Of a teacher, and of a student that is no deeper."""


def test_alternating_and_spread_layers() -> None:
    alternating, spread = START_LAYERS["alternating"], START_LAYERS["spread"]
    assert alternating(12, 6) == (0, 2, 4, 7, 9, 11), "the published checkpoint's"
    assert spread(12, 6) == (1, 3, 5, 7, 9, 11)
    for choose in (alternating, spread):
        assert choose(6, 3) == (1, 3, 5)
        assert choose(6, 1) == (5,)


@pytest.mark.parametrize("name", START_LAYERS)
@given(depths=DEPTHS)
def test_chosen_layers_ascend_to_an_end(name: str, depths: tuple[int, int]) -> None:
    teacher, student = depths
    chosen = START_LAYERS[name](teacher, student)
    assert len(chosen) == student
    assert list(chosen) == sorted(set(chosen))
    assert chosen[0] >= 0
    assert chosen[-1] == (student if name == "first" else teacher) - 1


BUILDERS: dict[str, StudentBuilder] = {
    "shorter": shorter_student,
    "any width": any_width_student,
}


@pytest.mark.parametrize("model_type", PLAIN)
@pytest.mark.parametrize("builder", BUILDERS)
def test_a_student_of_the_teachers_class_is_the_teacher_at_full_depth(
    model_type: str, builder: str
) -> None:
    teacher = tiny_classifier(model_type)
    student = BUILDERS[builder](teacher, StudentShape(4)).eval()
    assert type(student) is type(teacher)
    ours, theirs = student.state_dict(), teacher.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize(
    ("settings", "chosen"),
    [
        ({}, (1, 3)),
        ({"start_layers": "first"}, (0, 1)),
        ({"start_layers": "first", "teacher_layers": "spread"}, (1, 3)),
    ],
)
def test_a_shorter_student_of_the_teachers_class(
    builder: str, settings: dict[str, Any], chosen: tuple[int, ...]
) -> None:
    teacher = tiny_classifier("bert", labels=3)
    student = BUILDERS[builder](teacher, StudentShape(2, **settings))
    for source, target in zip(chosen, student.bert.encoder.layer, strict=True):
        ours, theirs = target.state_dict(), teacher.bert.encoder.layer[source].state_dict()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert torch.equal(student.classifier.weight, teacher.classifier.weight)
    assert student.config.num_hidden_layers == 2 and teacher.config.num_hidden_layers == 4


@pytest.mark.parametrize("builder", [distilbert_student, shorter_student, any_width_student])
def test_the_teachers_own_width_may_be_said(builder: StudentBuilder) -> None:
    teacher = tiny_classifier("bert")
    said = StudentShape(2, hidden_size=32, heads=4, feed_forward_size=64)
    torch.manual_seed(0)
    ours = builder(teacher, said).base_model.state_dict()
    theirs = builder(teacher, StudentShape(2)).base_model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "deberta-v2", "albert"])
def test_a_narrow_student_reads_the_same_tokens(model_type: str) -> None:
    teacher = tiny_classifier(model_type, labels=3)
    shape = StudentShape(3, hidden_size=12, heads=3, feed_forward_size=20)
    student = any_width_student(teacher, shape).eval()
    config = student.config
    assert (config.hidden_size, config.num_hidden_layers, config.intermediate_size) == (12, 3, 20)
    assert (config.num_attention_heads, config.vocab_size) == (3, VOCABULARY)
    assert hidden_states(student)[-1].shape == (int(MASK.sum()), 12)
    assert config.num_labels == 3


REFUSED: dict[str, tuple[StudentBuilder, str, Mapping[str, Any], StudentShape, str]] = {
    "too deep": (
        distilbert_student,
        "bert",
        {},
        StudentShape(5),
        r"layers=5: the teacher has only 4\. Choose 1 to 4",
    ),
    "wrong count": (
        distilbert_student,
        "bert",
        {},
        StudentShape(2, teacher_layers=(0, 1, 2)),
        r"teacher_layers=\(0, 1, 2\): give 2 layers between",
    ),
    "no such layer": (
        shorter_student,
        "bert",
        {},
        StudentShape(2, teacher_layers=(0, 4)),
        r"between 0 and 3",
    ),
    "factorised": (
        distilbert_student,
        "electra",
        {"embedding_size": 16},
        StudentShape(2),
        r"16 wide and its layers 32",
    ),
    "unknown family": (
        distilbert_student,
        UNKNOWN,
        BERT_SHAPE,
        StudentShape(2),
        rf"'{UNKNOWN}'.*Known: albert, bert, .*xlm-roberta",
    ),
    "layers of its own kind": (
        distilbert_student,
        "mobilebert",
        {},
        StudentShape(2),
        r"'mobilebert' model are of its own kind.*tinybert.*bert, camembert",
    ),
    "another width": (
        shorter_student,
        "bert",
        {},
        StudentShape(2, hidden_size=16),
        r"hidden_size=16: a shorter copy.*tinybert",
    ),
    "factorised, for albert": (
        albert_student,
        "electra",
        {"embedding_size": 16},
        StudentShape(2),
        r"16 wide and its layers 32; an ALBERT student",
    ),
    "a BiLSTM as the teacher": (
        any_width_student,
        "bertender-bilstm",
        {},
        StudentShape(2, hidden_size=16),
        r"'bertender-bilstm' model can be read: its layers are not known.*Known: albert",
    ),
    "two layers of a BiLSTM": (
        bilstm_student,
        "bert",
        {},
        StudentShape(2),
        r"layers=2: a BiLSTM student has one layer",
    ),
    "unknown tokens for a BiLSTM": (
        bilstm_student,
        UNKNOWN,
        BERT_SHAPE,
        StudentShape(1),
        rf"cannot start from a '{UNKNOWN}' model.*Start it from.*bertender-bilstm.*camembert",
    ),
    "heads of a BiLSTM": (
        bilstm_student,
        "bert",
        {},
        StudentShape(1, heads=4),
        r"heads=4: a BiLSTM student takes no attention heads",
    ),
    "heads of a static student": (
        static_student,
        "bert",
        {},
        StudentShape(1, heads=4),
        r"heads=4: a static student takes no attention heads",
    ),
    "unknown tokens for a static student": (
        static_student,
        UNKNOWN,
        BERT_SHAPE,
        StudentShape(1),
        rf"a static student cannot start from a '{UNKNOWN}' model",
    ),
    "uneven heads": (
        any_width_student,
        "bert",
        {},
        StudentShape(2, hidden_size=16, heads=3),
        r"hidden_size=16 is not a multiple of heads=3",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_impossible_students_are_refused(case: str) -> None:
    build, model_type, changes, shape, message = REFUSED[case]
    with pytest.raises(ModelError, match=message):
        build(tiny_classifier(model_type, **changes), shape)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "mpnet", "distilbert"])
def test_a_minibert_keeps_what_few_dimensions_can_of_its_teachers_table(model_type: str) -> None:
    """A table of rank 8 keeps all products of its rows; so do positions in the same directions."""
    teacher = tiny_classifier(model_type, labels=3)
    family = FAMILIES[model_type]
    words = weight_of(teacher.base_model, family.word_embeddings)
    generator = torch.Generator().manual_seed(1)
    directions = torch.randn(8, 32, generator=generator)
    with torch.no_grad():
        words.copy_(torch.randn(VOCABULARY, 8, generator=generator) @ directions)
        for part in (family.position_embeddings, family.token_type_embeddings):
            if part is not None:
                table = weight_of(teacher.base_model, part)
                table.copy_(torch.randn(len(table), 8, generator=generator) @ directions)
    student = minibert_student(teacher, StudentShape(3, hidden_size=16))
    own = weight_of(student.base_model, "embeddings.word_embeddings")
    torch.testing.assert_close(own @ own.T, words @ words.T, rtol=1e-3, atol=1e-2)
    positions = weight_of(student.base_model, "embeddings.position_embeddings")
    theirs = position_table(teacher, family)
    torch.testing.assert_close(own @ positions.T, words @ theirs.T, rtol=1e-3, atol=1e-2)
    assert student.config.num_labels == 3


def test_a_minibert_is_256_wide_with_heads_of_64() -> None:
    wide = tiny_classifier("bert", vocab_size=400, hidden_size=320, num_hidden_layers=1)
    config = minibert_student(wide, StudentShape(3)).config
    assert (config.num_hidden_layers, config.hidden_size) == (3, 256)
    assert (config.num_attention_heads, config.intermediate_size) == (4, 1024)


@pytest.mark.parametrize("own_start", [False, True])
def test_a_start_that_is_a_minibert_already_keeps_its_layers(own_start: bool) -> None:
    """One that is named may be wider than 256."""
    width = {"hidden_size": 320} if own_start else {}
    start = tiny_classifier("bert", num_hidden_layers=3, **width)
    shape = DistillConfig(method="minibert").shape(METHODS["minibert"], 3, own_start=own_start)
    student = minibert_student(start, shape).state_dict()
    assert all(torch.equal(student[name], theirs) for name, theirs in start.state_dict().items())


def test_a_minibert_wider_than_its_teachers_table_starts_from_noise() -> None:
    teacher = tiny_classifier("electra", embedding_size=8)
    student = minibert_student(teacher, StudentShape(3, hidden_size=16))
    assert student.config.hidden_size == 16
    assert hidden_states(student.eval())[-1].isfinite().all()


def test_an_albert_student_is_the_mean_of_its_teachers_layers() -> None:
    teacher = tiny_classifier("bert", labels=3)
    student = albert_student(teacher, StudentShape(6))
    (layer,) = dict.fromkeys(encoder_layers(student))
    assert student.config.num_hidden_layers == 6 and student.config.num_labels == 3
    mean = torch.stack(
        [source.get_submodule("intermediate.dense").weight for source in encoder_layers(teacher)]
    ).mean(0)
    torch.testing.assert_close(layer.ffn.weight, mean)
    two = albert_student(teacher, StudentShape(6, teacher_layers=(1, 3)))
    assert not torch.equal(encoder_layers(two)[0].ffn.weight, layer.ffn.weight)


def test_the_factors_of_an_albert_student_give_words_and_positions() -> None:
    """No table of the toys is wider than the factors, so that they lose nothing."""
    teacher = tiny_classifier("bert")
    student = albert_student(teacher, StudentShape(2)).base_model
    widening = student.encoder.embedding_hidden_mapping_in.weight.T
    whole = teacher.base_model.embeddings
    positions = whole.position_embeddings.weight + whole.token_type_embeddings.weight[0]
    tables = {"word_embeddings": whole.word_embeddings.weight, "position_embeddings": positions}
    for name, table in tables.items():
        own = student.embeddings.get_submodule(name).weight
        torch.testing.assert_close(own @ widening, table, rtol=1e-4, atol=1e-5)


def test_an_albert_student_of_equal_layers_is_one_of_them() -> None:
    teacher = tiny_classifier("bert")
    layers = encoder_layers(teacher)
    for layer in layers[1:]:
        layer.load_state_dict(layers[0].state_dict())
    (shared,) = dict.fromkeys(encoder_layers(albert_student(teacher, StudentShape(4))))
    states = torch.randn(1, 5, 32)
    mask = torch.zeros(1, 1, 1, 5)
    torch.testing.assert_close(shared.eval()(states, mask)[0], layers[0].eval()(states, mask)[0])


@given(rank=st.integers(1, 12))
def test_factors_leave_out_the_smallest_singular_values(rank: int) -> None:
    table = torch.randn(20, 12, generator=torch.Generator().manual_seed(rank))
    narrow, widening = factors(table, rank)
    assert narrow.shape == (20, rank) and widening.shape == (rank, 12)
    error = (table - narrow @ widening).square().sum()
    left_out = torch.linalg.svdvals(table)[rank:].square().sum()
    torch.testing.assert_close(error, left_out, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("model_type", ["bert", "mpnet", "bertender-bilstm"])
def test_a_bilstm_student_has_its_teachers_words(model_type: str) -> None:
    teacher = tiny_classifier(model_type, labels=3)
    student = bilstm_student(teacher, StudentShape(1, texts=2))
    ours, theirs = student.get_input_embeddings(), teacher.get_input_embeddings()
    assert torch.equal(ours.weight, theirs.weight)
    config = student.config
    assert (config.hidden_size, config.feed_forward_size, config.dropout) == (150, 200, 0.1)
    assert (config.num_labels, config.texts) == (3, 2)
    said = bilstm_student(teacher, StudentShape(1, hidden_size=12, feed_forward_size=20))
    assert (said.config.hidden_size, said.config.feed_forward_size) == (12, 20)


@given(rank=st.integers(1, 12))
def test_the_strongest_directions_keep_inner_products(rank: int) -> None:
    """What is lost of them are the squares of the weakest directions' singular values."""
    table = torch.randn(20, 12, generator=torch.Generator().manual_seed(rank)).double()
    narrow = strongest_directions(table, rank)
    assert narrow.shape == (20, rank)
    error = (table @ table.T - narrow @ narrow.T).square().sum()
    left_out = torch.linalg.svdvals(table)[rank:].pow(4).sum()
    torch.testing.assert_close(error, left_out, rtol=1e-6, atol=1e-6)
