"""Taggers on a toy task: alignment, what teacher and student learn, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForTokenClassification, ByT5Tokenizer

from bertender.comparison.accuracy import evaluate
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ModelError
from bertender.models.classifier import load_torch_classifier, open_classifier
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Split, Task
from bertender.text.tokenizer import CONTINUED_LABELS, continued_labels, load_tokenizer
from bertender.training.examples import token_dataset
from bertender.training.heads import HEADS
from distill.distillation.config import DistillConfig
from distill.distillation.distiller import distill
from distill.distillation.on_task import OnTask
from distill.finetuning.config import FinetuneConfig
from distill.finetuning.finetune import finetune_by_name
from distill.losses.signals import Signals
from distill.losses.terms import HardLabels, SoftLabels
from distill.methods import METHODS
from distill.students.weights import with_head
from distill.teachers import outputs
from distill.teachers.encoders import load_classifier
from distill.teachers.outputs import teacher_token_logits
from tests.distill.architectures import save_teacher
from tests.distill.distillation.settings import OF_METHOD
from tests.listening import interrupted_at
from tests.toy_models import other_vocabulary, save_encoder
from tests.toy_tagging import LABELS, TASK
from tests.toys import tiny_tokenizer, write_model

SETTINGS: dict[str, Any] = {"batch_size": 8, "learning_rate": 3e-3, "precision": "fp32"}
NARROW = {"layers": 2, "hidden_size": 16, "heads": 2, "feed_forward_size": 32, **SETTINGS}
A_MARGIN = 0.5


@pytest.fixture(scope="module")
def teacher(teacher_of: Callable[[str], Artifact]) -> Artifact:
    return teacher_of(TASK.problem_type)


@pytest.fixture(scope="module")
def student(teacher: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """A narrow MiniBERT, which starts with random layers."""
    config = DistillConfig(method="minibert", epochs=6, **{**NARROW, "learning_rate": 6e-3})
    return distill(teacher, TASK, config, tmp_path_factory.mktemp("taggers") / "student")


def test_the_first_piece_of_a_word_has_its_tag() -> None:
    split = Split((("number", "98765432", "saw"),), ((0, 1, 2),))
    examples = token_dataset(split, tiny_tokenizer(), TASK.problem_type)
    tokens = len(tiny_tokenizer().tokenize("98765432"))
    others = [-100] * (tokens - 1)
    assert tokens > 1
    assert examples.columns["labels"] == [[-100, 0, 1, *others, 2, -100]]
    assert examples.columns["predicting"] == [[0, 1, 1, *[0] * (tokens - 1), 1, 0]]


def test_a_cut_sentence_keeps_the_tags_of_what_is_left() -> None:
    split = Split((("saw",) * 9,), (tuple(range(9)),))
    tokenizer = tiny_tokenizer()
    tokenizer.model_max_length = 6
    examples = token_dataset(split, tokenizer, TASK.problem_type)
    assert examples.columns["labels"] == [[-100, 0, 1, 2, 3, -100]]


def batch_and_logits() -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    examples = token_dataset(TASK.train.first(4), tiny_tokenizer(), TASK.problem_type)
    batch = examples.collate([examples[row] for row in range(4)])
    shape = (*batch["input_ids"].shape, len(LABELS))
    generator = torch.Generator().manual_seed(0)
    ours, theirs = torch.randn((2, *shape), generator=generator)
    return batch, ours.requires_grad_(), theirs


ONE_LABEL, TAGS = HEADS[SINGLE_LABEL.name], HEADS[TASK.problem_type]


@pytest.mark.parametrize(
    "term", [SoftLabels(1.0, temperature=2.0, head=TAGS), HardLabels(1.0, head=TAGS)]
)
def test_a_term_reads_first_pieces_alone(term: SoftLabels | HardLabels) -> None:
    """Other pieces, special tokens and padding have no part, for student and teacher."""
    batch, ours, theirs = batch_and_logits()
    value = term(Signals(ours), Signals(theirs), batch)
    value.backward()
    others = batch["predicting"] == 0
    assert ours.grad is not None
    assert ours.grad[others].abs().max() == 0 < ours.grad[~others].abs().min()
    changed = [logits.detach().clone() for logits in (ours, theirs)]
    for logits in changed:
        logits[others] = 100.0
    again = term(Signals(changed[0]), Signals(changed[1]), batch)
    torch.testing.assert_close(again, value.detach())


def test_soft_labels_are_the_mean_over_words() -> None:
    """Not over texts: a long one counts more than a short one."""
    batch, ours, theirs = batch_and_logits()
    text, words = (SoftLabels(1.0, temperature=2.0, head=head) for head in (ONE_LABEL, TAGS))
    rows = batch["predicting"].bool()
    alone = [
        text(Signals(mine[None]), Signals(their[None]), batch)
        for mine, their in zip(ours[rows].detach(), theirs[rows], strict=True)
    ]
    expected = torch.stack(alone).mean()
    torch.testing.assert_close(words(Signals(ours), Signals(theirs), batch).detach(), expected)


def test_a_tagger_learns_the_tags(teacher: Artifact) -> None:
    score, _ = evaluate(open_classifier(teacher), TASK.dev, TASK.metric)
    assert score.value > 0.9
    assert teacher.card.findings.training.epochs[-1] == {"entity_f1": pytest.approx(score.value)}
    assert (teacher.card.stage, teacher.card.task) == ("finetune", TASK.record())


def test_a_student_learns_the_tags(student: Artifact, teacher: Artifact) -> None:
    score, answers = evaluate(open_classifier(student), TASK.dev, TASK.metric)
    assert score.value > untrained_score(teacher) + A_MARGIN
    assert student.card.findings.training.epochs[-1] == {"entity_f1": pytest.approx(score.value)}
    losses = student.card.findings.training.losses
    assert set(losses[0]) == {"soft", "hard"}
    assert sum(losses[-1].values()) < 0.5 * sum(losses[0].values())
    assert [len(tags) for tags in answers] == [len(words) for words in TASK.dev.examples]


def untrained_score(teacher: Artifact) -> float:
    """What a student scores before it has learned anything."""
    torch.manual_seed(0)
    config = DistillConfig(method="minibert", **NARROW)
    method = config.changed_method()
    model = with_head(
        method.build(load_torch_classifier(teacher), config.shape(method, 4)),
        HEADS[TASK.problem_type],
    )
    tagger = open_classifier(teacher)
    tagger.predictor.model = model.eval()  # type: ignore[attr-defined]
    return evaluate(tagger, TASK.dev, TASK.metric)[0].value


def test_the_student_opens_in_transformers_with_the_same_answers(student: Artifact) -> None:
    model = AutoModelForTokenClassification.from_pretrained(student.path).eval()
    assert type(model).__name__ == "BertForTokenClassification"
    assert model.config.id2label == dict(enumerate(LABELS))
    assert (model.config.hidden_size, model.config.num_hidden_layers) == (16, 2)
    tokenizer, tagger = load_tokenizer(student.path), open_classifier(student)
    for sentence in TASK.dev.examples[:5]:
        tokens = tokenizer([list(sentence)], is_split_into_words=True, return_tensors="pt")
        places = [tokens.word_to_tokens(0, word).start for word in range(len(sentence))]
        with torch.inference_mode():
            labels = model(**tokens).logits[0, places].argmax(-1)
        assert tagger.outputs([sentence])[0].logits.argmax(-1).tolist() == labels.tolist()


def test_the_teacher_does_not_change(student: Artifact, teacher: Artifact) -> None:
    again = Artifact.load(teacher.path)  # reads every file and checks its digest
    assert again.card == teacher.card
    assert student.card.parent is not None and student.card.parent.digest == teacher.digest


STUDENTS = {name: row.student for name, row in METHODS.items()}
TAGGING = [n for n, kind in STUDENTS.items() if kind.labels_words and not kind.wants_own_start]
CANNOT_TAG = [name for name, kind in STUDENTS.items() if not kind.labels_words]


@pytest.mark.one_path
@pytest.mark.parametrize("name", TAGGING)
def test_every_method_trains_a_tagger(name: str, teacher: Artifact, tmp_path: Path) -> None:
    settings = {**OF_METHOD.get(name, {}), **SETTINGS, "layers": 2, "epochs": 1}
    if METHODS[name].has_phases:
        settings["earlier_epochs"] = 1
    config = DistillConfig(method=name, **settings)
    student = distill(teacher, TASK, config, tmp_path / "student")
    model = AutoModelForTokenClassification.from_pretrained(student.path)
    assert type(model).__name__.endswith("ForTokenClassification")
    assert 0 < student.card.findings.training.epochs[-1]["entity_f1"] <= 1


@pytest.mark.parametrize("name", CANNOT_TAG)
def test_a_student_that_cannot_tag_is_refused(name: str, tmp_path: Path) -> None:
    """Before the teacher is read, in a recipe before its first step."""
    config, unread = DistillConfig(method=name), cast(Artifact, None)
    said = f"method={name!r}: its student labels texts alone.* minibert"
    with pytest.raises(ConfigError, match=said):
        STAGES["distill"].check(config, TASK)
    with pytest.raises(ConfigError, match=said):
        OnTask(unread, TASK, config)


@pytest.mark.slow
def test_the_same_run_gives_the_same_student(teacher: Artifact, tmp_path: Path) -> None:
    first, second, other = (
        distill(
            teacher,
            TASK,
            DistillConfig(method="minibert", epochs=1, seed=seed, **NARROW),
            tmp_path / name,
        )
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert first.digest == second.digest != other.digest


def finetuned(teacher: Artifact, out: Path) -> Artifact:
    config = FinetuneConfig(
        teacher=teacher.card.config["teacher"], epochs=1, checkpoint_steps=3, **SETTINGS
    )
    return finetune_by_name(TASK, config, out)


def distilled(teacher: Artifact, out: Path) -> Artifact:
    config = DistillConfig(method="minibert", epochs=1, checkpoint_steps=3, **NARROW)
    return distill(teacher, TASK, config, out)


@pytest.mark.slow
@pytest.mark.one_path
@pytest.mark.parametrize("build", [finetuned, distilled])
def test_a_killed_run_goes_on_to_the_same_weights(
    build: Callable[[Artifact, Path], Artifact], teacher: Artifact, tmp_path: Path
) -> None:
    whole = build(teacher, tmp_path / "whole")
    with interrupted_at(5), pytest.raises(KeyboardInterrupt):
        build(teacher, tmp_path / "killed")
    resumed = build(teacher, tmp_path / "killed")
    assert resumed.digest == whole.digest
    assert resumed.card.findings == whole.card.findings


def test_token_logits_are_the_teachers_and_computed_once(
    teacher: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTENDER_CACHE", str(tmp_path))
    model = load_torch_classifier(teacher).eval()
    examples = token_dataset(TASK.train, load_tokenizer(teacher.path), TASK.problem_type)
    answers = teacher_token_logits(model, teacher.digest, examples)
    for row in (0, 17, 159):
        with torch.inference_mode():
            alone = model(torch.tensor([examples.columns["input_ids"][row]])).logits[0]
        torch.testing.assert_close(answers[row], alone, rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(outputs, "read_signals", lambda *given: pytest.fail("asked again"))
    again = teacher_token_logits(model, teacher.digest, examples)
    assert all(torch.equal(mine, kept) for mine, kept in zip(answers, again, strict=True))


def test_a_student_may_start_from_another_encoder_of_the_same_vocabulary(
    teacher: Artifact, tmp_path: Path
) -> None:
    encoder = str(save_encoder("distilbert", tmp_path / "encoder"))
    config = DistillConfig(method="pd", student=encoder, **{**SETTINGS, "epochs": 2})
    student = distill(teacher, TASK, config, tmp_path / "student")
    assert student.card.family == "distilbert"
    other = str(other_vocabulary(tmp_path / "other"))
    config = DistillConfig(method="pd", student=other, **SETTINGS)
    with pytest.raises(ModelError, match="must read the same ones, and these do not"):
        distill(teacher, TASK, config, tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize("has_own_start", [True, False])
@pytest.mark.parametrize("is_older", [True, False])
def test_a_student_reads_words_as_its_teacher_does(
    is_older: bool, has_own_start: bool, teacher: Artifact, tmp_path: Path
) -> None:
    """Taggers of earlier versions read them whole, and so do their students."""
    if is_older:
        model = AutoModelForTokenClassification.from_pretrained(teacher.path)
        tokenizer = load_tokenizer(teacher.path)
        del tokenizer.init_kwargs[CONTINUED_LABELS]
        teacher = write_model(model, tokenizer, TASK, tmp_path / "older")
    encoder = str(save_encoder("bert", tmp_path / "encoder")) if has_own_start else None
    config = DistillConfig(student=encoder, layers=1, **{**SETTINGS, "epochs": 1})
    student = distill(teacher, TASK, config, tmp_path / "student")
    found = continued_labels(load_tokenizer(student.path))
    assert found == (None if is_older else [0, 2, 2, 4, 4, 6, 6])
    batch = TASK.problem.encoder(load_tokenizer(student.path))([("saw,",)])
    assert (batch.parts is None) == is_older


@pytest.mark.one_path
@pytest.mark.parametrize("method", ["distilbert", "tinybert"])
def test_a_student_whose_tokenizer_takes_words_by_a_setting_reads_as_its_teacher(
    method: str, tmp_path: Path
) -> None:
    """RoBERTa's puts a space before each word only where it is told to, as a tagger's is."""
    encoder = str(save_teacher("roberta", tmp_path / "encoder"))
    settings: dict[str, Any] = {**SETTINGS, "epochs": 1}
    teacher = finetune_by_name(
        TASK, FinetuneConfig(teacher=encoder, **settings), tmp_path / "teacher"
    )
    assert load_tokenizer(teacher.path)("a").input_ids != load_tokenizer(encoder)("a").input_ids
    config = DistillConfig(
        method=method, student=encoder, layers=1, **settings, **OF_METHOD.get(method, {})
    )
    OnTask(teacher, TASK, config)


def test_a_teacher_of_other_tags_is_refused(teacher: Artifact, tmp_path: Path) -> None:
    other = replace(TASK, labels=(*LABELS[:-1], "I-other"))
    with pytest.raises(ConfigError, match="Give one that was fine-tuned on this task"):
        distill(teacher, other, DistillConfig(method="minibert"), tmp_path / "out")
    assert not any(tmp_path.iterdir())


def test_a_text_classifier_is_no_tagger(trained_teacher: Artifact, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'single_label_classification'.*'token_class"):
        distill(trained_teacher, TASK, DistillConfig(method="minibert"), tmp_path / "out")


def test_a_tagger_teaches_no_texts(teacher: Artifact, task: Task, tmp_path: Path) -> None:
    """Of some architectures both heads have weights of the same names: it would open."""
    with pytest.raises(ConfigError, match=r"'token_classification'.*'single_label_class"):
        distill(teacher, task, DistillConfig(), tmp_path / "out")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "settings",
    [{"augmentation": "bilstm"}, {"more_teachers": "elsewhere"}],
    ids=lambda each: next(iter(each)),
)
def test_settings_of_texts_are_refused_for_words(
    settings: dict[str, Any], teacher: Artifact, tmp_path: Path
) -> None:
    config, name = DistillConfig.parse({"method": "minibert", **settings}), next(iter(settings))
    with pytest.raises(ConfigError, match=f"{name}: .* token by token"):
        distill(teacher, TASK, config, tmp_path / "out")


def test_a_tagger_is_a_start_for_a_text_classifier(
    teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    config = FinetuneConfig(teacher=str(teacher.path), epochs=1, **SETTINGS)
    artifact = finetune_by_name(task, config, tmp_path / "classifier")
    assert open_classifier(artifact).logits(task.dev.examples[:2]).shape == (2, 2)


def test_a_slow_tokenizer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = save_encoder("bert", tmp_path / "encoder")
    slow = ByT5Tokenizer(extra_ids=0)
    monkeypatch.setattr("distill.tokenizers.fitting_tokenizer", lambda *given, **more: slow)
    with pytest.raises(ModelError, match=r"ByT5Tokenizer\) does not map tokens to words"):
        load_classifier(str(encoder), LABELS, TASK.problem)


@pytest.mark.slow
def test_a_tagger_is_compared_with_its_control(teacher: Artifact, tmp_path: Path) -> None:
    config = DistillConfig(method="minibert", epochs=1, control=True, **NARROW)
    findings = distill(teacher, TASK, config, tmp_path / "student").card.findings
    assert findings.control is not None and findings.scores is not None
    gain = 100 * (findings.scores.score - findings.control.score)
    assert findings.control.gain.value == pytest.approx(gain)


def test_cut_texts_are_said_once(
    teacher: Artifact, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Their tokens are counted for the cache, and read for the training."""
    long = Split((("saw",) * 9, *TASK.train.examples), ((0,) * 9, *TASK.train.label_ids))
    config = DistillConfig(method="minibert", epochs=1, max_length=8, **NARROW)
    distill(teacher, replace(TASK, train=long), config, tmp_path / "student")
    assert len([said for said in caplog.messages if "training texts are longer" in said]) == 1
