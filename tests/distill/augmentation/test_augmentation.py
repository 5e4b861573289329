"""The rows of AUGMENTATIONS: what they draw and how often, what they leave alone, and students
that learn from their texts."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ModelError, UnknownNameError
from bertender.metrics.metric import NO_LABEL
from bertender.models.classifier import load_torch_classifier
from bertender.tasks.task import Split, Task
from bertender.text.tokenizer import load_tokenizer
from distill.augmentation import augment as module
from distill.augmentation.augment import augmented, copies_of
from distill.augmentation.bilstm import WordClasses, dropping_and_swapping
from distill.augmentation.config import AUGMENTATIONS, AugmentedConfig
from distill.augmentation.tinybert import replacing, rewriter
from distill.augmentation.words import Material, Rewrite, Span, word_spans
from distill.distillation.config import DistillConfig
from distill.distillation.distiller import distill
from distill.distillation.texts import without_held_out
from distill.methods import METHODS
from tests.distill.augmentation.language_models import language_model_artifact, teacher_from
from tests.toy_models import save_artifact, save_encoder, tiny_classifier
from tests.toys import pair_task

QUICK: dict[str, Any] = {
    "layers": 2,
    "epochs": 2,
    "batch_size": 16,
    "learning_rate": 2e-3,
    "precision": "fp32",
}
DRAWS = 4000


@pytest.fixture(scope="module")
def few(task: Task) -> Task:
    """Twelve texts of the toy task, and what stays as it is among them."""
    first = task.train.first(12)
    examples = tuple((f"The {text}, and not 12 of them",) for (text,) in first.examples)
    return replace(task, train=Split(examples, first.label_ids))


def made(task: Task, teacher: Artifact, name: str, **settings: Any) -> tuple[Any, ...]:
    """The texts that an augmentation adds to those of a task."""
    config = AugmentedConfig(augmentation=name, **settings)
    model = load_torch_classifier(teacher)
    more = augmented(task, teacher, model, [str(teacher.path)], config).train
    count = len(task.train)
    assert more.examples[:count] == task.train.examples
    assert more.label_ids[:count] == task.train.label_ids
    assert set(more.label_ids[count:]) <= {NO_LABEL}
    return more.examples[count:]


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_the_seed_draws_the_texts(name: str, few: Task, trained_teacher: Artifact) -> None:
    first, same, other = (made(few, trained_teacher, name, seed=seed) for seed in (0, 0, 1))
    assert first == same != other
    assert len(set(first) | set(other)) > max(len(set(first)), len(set(other)))


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_copies_are_not_the_text_and_not_each_other(
    name: str, few: Task, trained_teacher: Artifact
) -> None:
    alone = replace(few, train=few.train.first(1))
    copies = made(alone, trained_teacher, name, augmented_copies=200)
    assert 20 < len(copies) == len(set(copies)) <= 200
    assert not set(copies) & set(alone.train.examples)
    assert len(made(alone, trained_teacher, name)) <= AUGMENTATIONS[name].copies


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_a_text_without_words_has_no_copies(
    name: str, few: Task, trained_teacher: Artifact, caplog: pytest.LogCaptureFixture
) -> None:
    alone = replace(few, train=Split((("?!",), ("",)), (0, 1)))
    assert made(alone, trained_teacher, name) == ()
    assert f"{name} has made no text: none of the 2 texts" in caplog.text


def test_tinybert_leaves_stop_words_and_numbers_alone(few: Task, trained_teacher: Artifact) -> None:
    """Neighbours come from the teacher's table, and every word of it is of letters."""
    known = set(load_tokenizer(trained_teacher.path).get_vocab())
    for (text,) in made(few, trained_teacher, "tinybert"):
        assert text.startswith("The ") and text.endswith(", and not 12 of them")
        words = text.removesuffix(", and not 12 of them").split()[1:]
        assert all(word in known and (word.isalpha() or word.isdigit()) for word in words)


def test_tinybert_asks_the_language_model_that_the_teacher_came_from(
    few: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = language_model_artifact(tmp_path / "encoder")
    teacher = teacher_from(origin.path, few, tmp_path / "teacher")
    seen: list[Material] = []

    def spied(material: Material) -> Rewrite:
        seen.append(material)
        return rewriter(material)

    monkeypatch.setitem(module.REWRITERS, "tinybert", spied)  # type: ignore[attr-defined]
    by_model = made(few, teacher, "tinybert")
    assert seen[0].language_model is not None
    monkeypatch.setattr(module, "find_language_model", lambda *given: None)
    assert made(few, teacher, "tinybert") != by_model and seen[1].language_model is None


def near(share: float, draws: int = DRAWS) -> Any:
    """What a share may be found to be: within four standard errors."""
    return pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / draws))


def draws_of(rewrite: Any, text: str) -> Counter[str]:
    generator = np.random.default_rng(0)
    return Counter(rewrite(text, generator) for _ in range(DRAWS))


def test_words_are_replaced_as_often_as_the_paper_says_each_on_its_own() -> None:
    candidates: dict[Span, tuple[str, ...]] = {(0, 1): ("x", "y", "z"), (4, 5): ("w",)}
    drawn = draws_of(replacing(lambda text: candidates, 0.4), "a b c")
    for text, share in {"a b c": 0.36, "x b c": 0.08, "a b w": 0.24, "z b w": 0.16 / 3}.items():
        assert drawn[text] / DRAWS == near(share), text
    assert len(drawn) == 8


def test_words_are_masked_and_swapped_as_often_as_the_paper_says() -> None:
    """Of "slowly" and "madly" each is half of the adverbs, so that half of the swaps change it."""
    rewrite = dropping_and_swapping(WordClasses(["slowly madly"]), "[MASK]")
    whole = {text: n for text, n in draws_of(rewrite, "slowly, madly").items() if "," in text}
    total = sum(whole.values())
    first = Counter[str]()
    for text, count in whole.items():
        first[text.partition(",")[0]] += count
    assert first["[MASK]"] / total == near(0.1, total)
    assert first["madly"] / total == near(0.05, total)
    assert set(first) == {"[MASK]", "slowly", "madly"}
    # a run of one word loses the other; longer ones are the whole text
    assert total / DRAWS == near(1 - 0.25 / 5)


def test_runs_of_words_are_cut_out_as_often_as_the_paper_says() -> None:
    text = "one, two three four five six: seven"
    unchanged = dropping_and_swapping(WordClasses([]), "[MASK]")
    kept = Counter[int]()
    begun = Counter[tuple[int, str]]()
    for cut, count in draws_of(unchanged, text).items():
        words = word_spans(cut)  # brackets are between words, so that a mask is one of them
        kept[len(words)] += count
        if "[" not in cut:
            assert cut in text
            begun[len(words), cut[slice(*words[0])]] += count
    assert kept[7] / DRAWS == near(0.75)
    for length in range(1, 6):
        assert kept[length] / DRAWS == near(0.05)
    first = ("one", "two", "three", "four", "five", "six", "seven")
    assert set(begun) == {(7, "one"), *((n, word) for n in range(1, 6) for word in first[: 8 - n])}


def test_the_copies_of_a_pair_take_the_rows_turns() -> None:
    drawn = iter(range(1000))
    rewrite = lambda text, generator: f"{text}{next(drawn)}"  # noqa: E731
    for name, turns in {
        "tinybert": [(True, True)] * 3,
        "bilstm": [(True, False), (False, True), (True, True)],
    }.items():
        copies = copies_of(
            ("a", "b"), rewrite, AUGMENTATIONS[name].pair_turns, 6, np.random.default_rng(0)
        )
        assert [(a != "a", b != "b") for a, b in copies] == turns * 2
        alone = copies_of(
            ("a",), rewrite, AUGMENTATIONS[name].pair_turns, 6, np.random.default_rng(0)
        )
        assert len(set(alone)) == 6


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_both_texts_of_a_pair_are_rewritten_each_from_its_own_words(
    name: str, tmp_path: Path
) -> None:
    task = pair_task(train_size=4, dev_size=2)
    teacher = save_artifact(tiny_classifier("bert"), task, tmp_path / "teacher")
    for left, right in task.train.examples:
        alone = replace(task, train=Split(((left, right),), (0,)))
        copies = made(alone, teacher, name, augmented_copies=60)
        lefts, rights = ({copy[side] for copy in copies} for side in (0, 1))
        assert len(lefts) > 5 and len(rights) > 5
        assert len(set(copies)) > max(len(lefts), len(rights)), "they change on their own"


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_a_student_learns_from_the_texts_by_the_teachers_answers(
    name: str, few: Task, trained_teacher: Artifact, tmp_path: Path
) -> None:
    config = DistillConfig(**QUICK, augmentation=name, augmented_copies=4)
    student, again = (
        distill(trained_teacher, few, config, tmp_path / out) for out in ("student", "again")
    )
    alone = distill(trained_teacher, few, DistillConfig(**QUICK), tmp_path / "alone")
    assert student.digest == again.digest != alone.digest
    texts = made(few, trained_teacher, name, augmented_copies=4, precision="fp32")
    assert student.card.findings.training.augmented_texts == len(texts) > 12
    assert alone.card.findings.training.augmented_texts is None
    assert student.card.findings.training.steps > alone.card.findings.training.steps


def test_no_copy_is_a_held_out_text(few: Task) -> None:
    """A short run of words often is one."""
    judging = replace(
        few,
        dev=Split((("A  Pear",), ("a plum",)), (0, 0)),
        selection=Split((("the saw",),), (1,)),
        reserved=(("a drill",),),
    )
    texts = "a pear", "The saw", "a drill", "a melon"
    copies = Split(tuple((text,) for text in texts), (NO_LABEL,) * 4)
    assert without_held_out(copies, judging).examples == (("a melon",),)


def test_masks_that_a_student_reads_otherwise_are_refused(
    few: Task, trained_teacher: Artifact, tmp_path: Path
) -> None:
    encoder = save_encoder("bert", tmp_path / "encoder")
    for file in encoder.iterdir():
        if file.suffix in (".json", ".txt"):
            file.write_text(file.read_text().replace("[MASK]", "<blank>"))
    settings = {**QUICK, "student": str(encoder)}
    settings |= {"method": "distilbert", "weights": {"cosine": 0}}
    with pytest.raises(ModelError, match=r"writes the teacher's \[MASK\].*Take tinybert"):
        config = DistillConfig(**settings, augmentation="bilstm")
        distill(trained_teacher, few, config, tmp_path / "student")
    assert not (tmp_path / "student").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"augmentation": "tinybrt"}, "no augmentation 'tinybrt'. Did you mean 'tinybert'"),
        (
            {"method": "hard", "augmentation": "tinybert"},
            "augmentation=tinybert: method 'hard' learns from labels alone",
        ),
        (
            {"weights": "soft=0,cosine=0", "augmentation": "bilstm"},
            "method 'distilbert' learns from labels alone",
        ),
        (
            {"augmented_copies": 3},
            "augmented_copies=3: nothing is rewritten .*Name one",
        ),
        (
            {"augmentation_model": "x"},
            "augmentation_model=x: nothing is rewritten without",
        ),
        (
            {"augmentation": "bilstm", "augmentation_model": "x"},
            "augmentation 'bilstm' asks no language model. Leave it out; tinybert does",
        ),
        ({"augmentation": "bilstm", "augmented_copies": 0}, "augmented_copies=0: .*equal to 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DistillConfig.parse(settings)


def test_without_an_augmentation_nothing_is_done(few: Task, trained_teacher: Artifact) -> None:
    model = torch.nn.Identity()
    assert augmented(few, trained_teacher, model, ["nowhere"], AugmentedConfig()) is few  # type: ignore[arg-type]


def test_a_methods_own_augmentation_is_a_row_and_off_by_default() -> None:
    suggested = {name: row.augmentation for name, row in METHODS.items() if row.augmentation}
    assert set(suggested.values()) == set(AUGMENTATIONS)
    assert suggested == {"tinybert": "tinybert", "bilstm": "bilstm"}
    for name in METHODS:
        assert DistillConfig.model_validate({"method": name}).augmentation is None


def test_an_unknown_augmentation_has_a_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Known: bilstm, tinybert"):
        AUGMENTATIONS["bilstn"]
