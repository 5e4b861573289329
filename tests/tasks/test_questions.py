"""Files of questions: SQuAD's JSON, lists of `datasets`, and tables with an answer a row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertender.core.errors import ConfigError, DataError
from bertender.problems.question_answering import QUESTION_ANSWERING
from bertender.tasks.loading import load_task
from bertender.tasks.task import Split, Task, TaskConfig, held_out_of

CONTEXT = "  Paris is the capital of France. "
PARIS = {"text": "Paris", "answer_start": 2}
FRANCE = {"text": "France", "answer_start": 26}


def loaded(path: Path, **settings: Any) -> Task:
    return load_task(TaskConfig(train=path, dev=path, select=0, **settings))


def squad(path: Path, *questions: dict[str, Any]) -> Path:
    paragraph = {"context": CONTEXT, "qas": [*questions]}
    content = {"version": "2.0", "data": [{"title": "Paris", "paragraphs": [paragraph]}]}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def asked(number: str, *answers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": number, "question": f" Which {number}? ", "answers": [*answers], **more}


def test_a_question_of_squad_has_its_paragraph_and_its_answers(tmp_path: Path) -> None:
    path = squad(tmp_path / "a.json", asked("one", PARIS, FRANCE, PARIS), asked("two"))
    task = loaded(path)
    assert (task.problem_type, task.metric) == ("question_answering", "answer_f1")
    assert task.text_columns == ("question", "context")
    assert task.train.examples[0] == ("Which one?", CONTEXT), "answers are at characters of it"
    assert task.train.label_ids == ((("Paris", 2), ("France", 26)), ())


def test_what_others_might_answer_is_no_answer(tmp_path: Path) -> None:
    path = squad(tmp_path / "a.json", asked("one", PARIS, is_impossible=True), asked("two", PARIS))
    assert loaded(path).train.label_ids == ((), (("Paris", 2),))


LISTS = {"text": ["Paris", "France"], "answer_start": [2, 26]}
ROWS: dict[str, list[dict[str, Any]]] = {
    "lists of datasets": [{"answers": LISTS}, {"answers": {"text": [], "answer_start": []}}],
    "lists of SQuAD": [{"answers": [PARIS, FRANCE]}, {"answers": []}],
    "null": [{"answers": [PARIS, FRANCE]}, {"answers": None}],
}


@pytest.mark.parametrize("form", ROWS)
def test_answers_come_in_lists(form: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"question": "Which?", "context": CONTEXT, **row} for row in ROWS[form]]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = loaded(path, problem_type="question_answering")
    assert task.train.label_ids == ((("Paris", 2), ("France", 26)), ())


def test_a_table_has_an_answer_a_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    lines = ("question,context,answer,answer_start", 'Which?,"Paris, France",Paris,0.0')
    path.write_text("\n".join([*lines, 'Who?,"Paris, France",,\n']), encoding="utf-8")
    task = loaded(path, problem_type="question_answering")
    assert task.train.label_ids == ((("Paris", 0),), ())
    other = tmp_path / "b.csv"
    other.write_text(path.read_text().replace("question,context", "q,paragraph"), encoding="utf-8")
    columns = {"text_column": "q", "pair_column": "paragraph"}
    same = loaded(other, problem_type="question_answering", **columns)
    assert same.train == task.train


def test_white_space_around_an_answer_is_none_of_it(tmp_path: Path) -> None:
    path = squad(tmp_path / "a.json", asked("one", {"text": " Paris ", "answer_start": 1}))
    assert loaded(path).train.label_ids == ((("Paris", 2),),)


WRONG: dict[str, tuple[Any, str]] = {
    "offset": ({"text": "Paris", "answer_start": 3}, "at 3 is 'aris ', not 'Paris'.*begins at 2"),
    "other text": ({"text": "Rome", "answer_start": 3}, "nowhere in the context"),
    "beyond": ({"text": "Paris", "answer_start": 99}, "at 99 is '', not 'Paris'"),
    "no text": ({"text": "", "answer_start": 0}, "an answer without text.*leave the list empty"),
    "no number": ({"text": "Paris", "answer_start": "two"}, "'two' is not an index of a character"),
    "negative": ({"text": "Paris", "answer_start": -1}, "-1 is not an index of a character"),
    "no start": ({"text": "Paris"}, "is not an answer with text and answer_start"),
    "no answer": ("Paris", "'Paris' is not an answer with text"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_answer_is_named_with_its_question(name: str, tmp_path: Path) -> None:
    answer, said = WRONG[name]
    path = squad(tmp_path / "a.json", asked("one", PARIS), asked("two", answer))
    with pytest.raises(DataError, match=rf"a\.json, question 'two', column 'answers': .*{said}"):
        loaded(path)
    left = loaded(path, skip_bad_rows=True)
    assert len(left.train) == 1 and left.left_out is not None and left.left_out.count == 2


def test_a_text_instead_of_a_list_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    row = {"question": "Which?", "context": CONTEXT, "answers": "Paris"}
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"'Paris' is not a list of answers.*answer,answer_start"):
        loaded(path, problem_type="question_answering")


@pytest.mark.parametrize("content", ["[]", '{"data": 3}', '{"data": [{"text": "x"}]}', "{"])
def test_what_is_not_of_squad_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match="not JSON" if content == "{" else "not a file of SQuAD"):
        loaded(path)


def test_a_question_has_no_labels_to_map(tmp_path: Path) -> None:
    from bertender.tasks.task import with_model_labels

    task = loaded(squad(tmp_path / "a.json", asked("one", PARIS)))
    assert with_model_labels(task, ("a", "b"), None, "a model").labels == ("a", "b")
    with pytest.raises(ConfigError, match="has no labels"):
        with_model_labels(task, ("a", "b"), "start=a", "a model")


def test_questions_of_a_context_are_in_one_split() -> None:
    """A model would learn from the contexts of the questions that score it."""
    examples = [(f"question {row % 8}", f"context {row // 8}") for row in range(1600)]
    train, dev = held_out_of(Split(tuple(examples), ((),) * 1600), "mine", QUESTION_ANSWERING)
    assert len(dev) == pytest.approx(320, abs=160)
    assert {context for _, context in train.examples}.isdisjoint(
        context for _, context in dev.examples
    )
    for start in range(0, 160, 8):  # a single context cannot be in both
        alone = Split(tuple(examples[start : start + 8] * 9), ((),) * 72)
        with pytest.raises(ConfigError, match="too few to score by"):
            held_out_of(alone, "mine", QUESTION_ANSWERING)
