"""A student with a small vocabulary: what both models read, and how their weights are compared."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ModelError
from bertender.metrics.metric import NO_LABEL
from bertender.models.families import FAMILIES, encoder_layers
from bertender.tasks.task import Task
from bertender.text.batch import tokens_of_words
from bertender.text.tokenizer import load_tokenizer
from bertender.training.examples import TokenDataset
from distill.distillation.config import DistillConfig, GeneralConfig
from distill.distillation.distillation import DistillationObjective, check_compatible
from distill.distillation.distiller import distill
from distill.distillation.general import GeneralTeacher, distill_general
from distill.losses.terms import MIXED_INPUTS, MIXED_TARGETS, ProjectedWeights, uniform
from distill.losses.training_modules import DualTraining, SharedProjection
from distill.methods import GENERAL_METHODS
from distill.methods.method import Method
from distill.pretraining.dual_vocabulary import MixedMasking, MixedVocabulary
from distill.pretraining.vocabularies import train_tokenizer
from distill.students import StudentShape
from tests.distill.distillation.general_settings import settings_of
from tests.toy_models import (
    LONGEST,
    VOCABULARY,
    save_language_model,
    tiny_classifier,
    tiny_language_model,
)
from tests.toys import passages, tiny_tokenizer

MIXED = MIXED_INPUTS["input_ids"]
METHOD = GENERAL_METHODS["small-vocab"]
PLAIN = sorted(name for name, family in FAMILIES.items() if family.plain_layers)


@pytest.fixture(scope="module")
def own() -> PreTrainedTokenizerBase:
    return train_tokenizer("wordpiece", passages(), 100, LONGEST)


@pytest.fixture(scope="module")
def vocabulary(own: PreTrainedTokenizerBase) -> MixedVocabulary:
    """Beside a larger one, as a teacher's whose table has some rows more than pieces."""
    teacher = train_tokenizer("wordpiece", passages(), 400, LONGEST)
    return MixedVocabulary(own, teacher, len(teacher) + 5)


def spelt(vocabulary: MixedVocabulary, tokens: list[int]) -> str:
    """What pieces of either vocabulary say, letter by letter."""
    first = vocabulary.teacher_entries
    tokens = [
        vocabulary.student.convert_ids_to_tokens(piece - first)
        if piece >= first
        else vocabulary.teacher.convert_ids_to_tokens(piece)
        for piece in tokens
    ]
    return "".join(token.removeprefix("##") for token in tokens)


def test_pieces_of_words_are_those_of_each_word() -> None:
    tokenizer = tiny_tokenizer()
    sentences = [["apple", "saw", "pear"], [], ["hammer"]]
    tokens = tokens_of_words(tokenizer, sentences)
    assert [len(row) for row in tokens] == [3, 0, 1]
    for row, words in zip(tokens, sentences, strict=True):
        together = tokenizer(" ".join(words), add_special_tokens=False)["input_ids"]
        assert [piece for word in row for piece in word] == together


def test_both_readings_of_a_row_say_the_same(vocabulary: MixedVocabulary) -> None:
    rows = list(vocabulary.rows(passages(40), 24, seed=3))
    assert len(rows) > 5
    own, mixed = [], []
    for row in rows:
        shifted = [vocabulary.teacher_entries + piece for piece in row["input_ids"]]
        assert spelt(vocabulary, shifted) == spelt(vocabulary, row[MIXED])
        assert max(len(shifted), len(row[MIXED])) <= 24
        own += shifted
        mixed += row[MIXED]
    from_own = sum(piece >= vocabulary.teacher_entries for piece in mixed) / len(mixed)
    assert 0.2 < from_own < 0.8, "the coin falls both ways"


def test_rows_are_full_and_lose_no_word(vocabulary: MixedVocabulary) -> None:
    texts = passages(40)
    rows = list(vocabulary.rows(texts, 24, seed=3))
    said = "".join(spelt(vocabulary, row[MIXED][1:]) for row in rows).replace("[SEP]", "")
    assert said == "".join("".join(text.split()) for text in texts)
    longer = [max(len(row["input_ids"]), len(row[MIXED])) for row in rows[:-1]]
    assert sum(longer) / (24 * len(longer)) > 0.85


def test_the_same_seed_mixes_the_same_way(vocabulary: MixedVocabulary) -> None:
    one, again, other = (
        [row[MIXED] for row in vocabulary.rows(passages(20), 24, seed)] for seed in (1, 1, 2)
    )
    assert one == again != other


def test_a_word_longer_than_a_row_is_cut(vocabulary: MixedVocabulary) -> None:
    word = "e" * 30
    tokens = tokens_of_words(vocabulary.student, [[word]])[0][0]
    assert len(tokens) > 11 and vocabulary.student.unk_token_id not in tokens
    for seed in range(4):  # the coin falls both ways
        rows = list(vocabulary.rows(["the box", word, "the tree"], 12, seed))
        assert all(len(row["input_ids"]) <= 12 and len(row[MIXED]) <= 12 for row in rows)
        assert any(row["input_ids"][1:] == tokens[:11] for row in rows)


def test_words_that_one_vocabulary_drops_are_left_out(own: PreTrainedTokenizerBase) -> None:
    """Word pieces have nothing for a lone zero-width space, a unigram model has."""
    teacher = train_tokenizer("unigram", passages(), 200, LONGEST)
    vocabulary = MixedVocabulary(own, teacher, len(teacher))
    odd = "\u200b"
    assert tokens_of_words(own, [[odd]]) == [[[]]] and tokens_of_words(teacher, [[odd]])[0][0]
    with_them = list(vocabulary.rows([f"the box {odd} " + f"{odd} " * 99, "the tree"], 12, 0))
    without = list(vocabulary.rows(["the box", "the tree"], 12, 0))
    assert [row["input_ids"] for row in with_them] == [row["input_ids"] for row in without]
    assert all(len(row[MIXED]) <= 12 for row in with_them)


def test_masked_words_are_asked_in_both_readings(vocabulary: MixedVocabulary) -> None:
    rows = list(vocabulary.rows(passages(30), 24, seed=3))[:8]
    tensors = [torch.tensor(row[name]) for row in rows for name in ("input_ids", MIXED)]
    batch = {
        name: torch.nn.utils.rnn.pad_sequence(part, batch_first=True)
        for name, part in (("input_ids", tensors[::2]), (MIXED, tensors[1::2]))
    }
    masked = MixedMasking(vocabulary, 0.3, seed=1)(batch, step=4)
    for inputs, targets in (("input_ids", "targets"), (MIXED, MIXED_TARGETS)):
        asked = masked[targets] != NO_LABEL
        assert 0.1 < asked.float().mean() < 0.5
        assert torch.equal(masked[targets][asked], batch[inputs][asked])
        assert torch.equal(masked[inputs][~asked], batch[inputs][~asked])
    mask = int(vocabulary.teacher.mask_token_id)
    assert (masked[MIXED] == mask).any(), "the teacher's own mask, in either vocabulary"
    again = MixedMasking(vocabulary, 0.3, seed=1)(batch, step=4)
    assert all(torch.equal(again[name], masked[name]) for name in masked)


def test_weights_of_the_same_sizes_share_their_projection() -> None:
    sizes = [(10, 4), (4, 4), (8, 4), (4, 8), (4,), (8,)]
    aims = [(10, 6), (6, 6), (12, 6), (6, 12), (6,), (12,)]
    weights, targets = ([torch.randn(size) for size in each] for each in (sizes, aims))
    projection = SharedProjection(weights, targets)
    assert sorted(projection.matrices) == ["in-4-6", "in-8-12", "out-4-6", "out-8-12"]
    for weight, target in zip(weights, targets, strict=True):
        assert projection(weight, target).shape == target.shape
    left, right = projection.matrices["out-8-12"], projection.matrices["in-4-6"]
    torch.testing.assert_close(projection(weights[2], targets[2]), left @ weights[2] @ right.T)
    torch.testing.assert_close(projection(weights[5], targets[5]), left @ weights[5])


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("model_type", PLAIN)
def test_every_plain_teacher_gives_its_weights_and_stays_as_it_is(
    model_type: str, direction: str, own: PreTrainedTokenizerBase
) -> None:
    teacher = tiny_language_model(model_type)
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    method = METHOD.changed({"up": 0.0, "down": 0.0, direction: 1.0})
    training_module, parts = dual_losses(method, teacher, own)
    assert set(parts) == {"words", "mixed", direction}
    sum(parts.values()).backward()
    assert all(torch.equal(before[name], tensor) for name, tensor in teacher.state_dict().items())
    assert all(parameter.grad is None for parameter in teacher.parameters())
    learning = [*training_module.student.parameters(), *training_module.projections.parameters()]
    assert all(parameter.grad is not None for parameter in learning)
    copied = training_module.teacher.get_input_embeddings().weight
    assert len(copied) == VOCABULARY + len(own)
    assert torch.equal(copied[:VOCABULARY], teacher.get_input_embeddings().weight)


def test_the_weights_that_are_compared_are_those_of_the_same_words_and_layers(
    own: PreTrainedTokenizerBase,
) -> None:
    teacher = tiny_language_model("bert")
    training_module, _ = dual_losses(METHOD, teacher, own)
    (up,) = training_module.projected
    ours, theirs = training_module._weights(up)
    table = training_module.teacher.get_input_embeddings().weight
    assert torch.equal(theirs[0], table[VOCABULARY:]) and len(table) == VOCABULARY + len(own)
    assert torch.equal(ours[0], training_module.student.get_input_embeddings().weight)
    for place, (mine, other) in enumerate(((1, 2), (2, 4))):
        (one,) = ours[1 + 16 * place : 2 + 16 * place]
        (two,) = theirs[1 + 16 * place : 2 + 16 * place]
        query = "attention.self.query.weight"
        assert torch.equal(
            one, encoder_layers(training_module.student)[mine - 1].get_parameter(query)
        )
        assert torch.equal(
            two, encoder_layers(training_module.teacher)[other - 1].get_parameter(query)
        )
    assert len(ours) == len(theirs) == 1 + 2 * 16


@pytest.mark.parametrize("projects_student", [True, False])
def test_the_side_that_is_projected_is_a_field_of_the_term(
    projects_student: bool, own: PreTrainedTokenizerBase
) -> None:
    teacher = tiny_language_model("bert")
    student = dual_losses(METHOD, teacher, own)[0].student
    term = ProjectedWeights("any", 1.0, layers=uniform, projects_student=projects_student)
    training_module = DualTraining(student, teacher, [term], seed=0, steps=1)
    sizes = {tuple(each.shape) for each in training_module.projections["any"].matrices.values()}
    narrow, wide = student.config.hidden_size, teacher.config.hidden_size
    assert ((wide, narrow) in sizes, (narrow, wide) in sizes) == (
        projects_student,
        not projects_student,
    )


@pytest.mark.parametrize(("weights", "learns"), [({"mixed": 0.0}, False), ({"up": 0.0}, True)])
def test_the_copy_learns_from_its_words_alone(
    weights: dict[str, float], learns: bool, own: PreTrainedTokenizerBase
) -> None:
    training_module, parts = dual_losses(METHOD.changed(weights), tiny_language_model("bert"), own)
    sum(parts.values()).backward()
    assert any(p.grad is not None for p in training_module.teacher.parameters()) == learns


def test_a_student_that_would_learn_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="that the student learns from has weight 0"):
        METHOD.changed({"words": 0.0, "up": 0.0})
    with pytest.raises(ConfigError, match=r"temperature=3.0: method 'small-vocab' has no term"):
        DistillConfig.parse({"method": "small-vocab", "temperature": 3.0})
    softened = DistillConfig(method="small-vocab", temperature=3.0, weights={"soft": 1.0})
    assert softened.temperature == 3.0


def test_a_tokenizer_with_more_pieces_than_the_table_gets_rows_for_them(tmp_path: Path) -> None:
    folder = save_language_model(tmp_path / "teacher")
    tokenizer = load_tokenizer(folder)
    tokenizer.add_tokens(["more"])
    tokenizer.save_pretrained(folder)
    config = GeneralConfig(**settings_of("small-vocab", epochs=1))
    teacher = GeneralTeacher.load(str(folder), config.changed_method())
    for model in (teacher.classifier, teacher.model):
        table = model.get_input_embeddings().weight
        assert len(table) == model.config.vocab_size == VOCABULARY + 1
        torch.testing.assert_close(table[-1], table[:-1].mean(0))
    texts = [f"{text} more" for text in passages(200)]
    student = distill_general(teacher, texts, config, tmp_path / "student")
    assert student.card.findings.training.epochs[-1]["loss"] > 0


def test_a_table_with_more_rows_than_pieces_serves(tmp_path: Path) -> None:
    folder = save_language_model(tmp_path / "teacher")
    model = AutoModelForMaskedLM.from_pretrained(folder)
    model.resize_token_embeddings(VOCABULARY + 7, mean_resizing=False)
    model.save_pretrained(folder)
    config = GeneralConfig(**settings_of("small-vocab", epochs=1))
    teacher = GeneralTeacher.load(str(folder), config.changed_method())
    student = distill_general(teacher, passages(200), config, tmp_path / "student")
    assert set(student.card.findings.training.epochs[-1]) == {"loss", "words", "mixed", "up"}


def test_layers_to_start_from_are_refused_with_the_settings() -> None:
    settings = {**settings_of("small-vocab"), "hidden_size": None, "heads": None}
    with pytest.raises(ConfigError, match=r"teacher_layers=\(0, 1\): .*'small-vocab' has no such"):
        GeneralConfig.parse({**settings, "teacher_layers": (0, 1)})


def dual_losses(
    method: Method, teacher: PreTrainedModel, own: PreTrainedTokenizerBase
) -> tuple[DualTraining, dict[str, torch.Tensor]]:
    """A training module of a student half as wide and deep, and its losses on two rows."""
    vocabulary = MixedVocabulary(own, tiny_tokenizer(), VOCABULARY)
    rows = list(vocabulary.rows(passages(12), 16, 0))[:2]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    dataset = TokenDataset(columns, vocabulary.padding)
    source = GeneralTeacher("", tiny_classifier(teacher.config.model_type), teacher)
    student = source.student(method, StudentShape(2, hidden_size=16, heads=4, tokenizer=own))
    (phase,) = method.phases
    training_module = DualTraining(student, teacher, phase.terms, seed=0, steps=10)
    objective = DistillationObjective(teacher, {}, prepare=MixedMasking(vocabulary, 0.3, 0))
    return training_module, dict(
        objective(training_module, dataset.collate([dataset[0], dataset[1]]), 0)
    )


def test_the_student_comes_with_its_own_tokenizer_and_sizes(tmp_path: Path) -> None:
    folder = save_language_model(tmp_path / "teacher")
    config = GeneralConfig(**settings_of("small-vocab", epochs=1))
    teacher = GeneralTeacher.load(str(folder), config.changed_method())
    student = distill_general(teacher, passages(200), config, tmp_path / "student")
    tokenizer = load_tokenizer(student.path)
    model = AutoModelForMaskedLM.from_pretrained(student.path)
    assert len(tokenizer) == model.config.vocab_size <= 100 < VOCABULARY
    assert tokenizer.get_vocab() != tiny_tokenizer().get_vocab()
    assert model.config.hidden_size == 16
    assert tokenizer.model_max_length == LONGEST


def test_what_is_not_the_methods_is_refused() -> None:
    with pytest.raises(ConfigError, match="vocabulary_size=200: method 'tinybert' leaves"):
        GeneralConfig.parse({"method": "tinybert", "vocabulary_size": 200})
    with pytest.raises(ConfigError, match=r"mask_probability=0.2: method 'minilm' masks no words"):
        GeneralConfig.parse({"method": "minilm", "mask_probability": 0.2})


def test_a_teacher_that_cannot_serve_is_refused_before_training() -> None:
    language_model = tiny_language_model("deberta-v2")
    source = GeneralTeacher("", tiny_classifier("deberta-v2"), language_model)
    student = source.student(METHOD, StudentShape(2, hidden_size=16, heads=4))
    with pytest.raises(ModelError, match=r"'up' compares the weights.*'deberta-v2'.*roberta"):
        check_compatible(METHOD, student, language_model)


def test_the_task_stage_wants_a_student_of_its_own(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"small-vocab.*student"):
        distill(trained_teacher, task, DistillConfig(method="small-vocab"), tmp_path / "out")
