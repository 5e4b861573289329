"""Questions with choices: how they are read, cut, decided, imported and answered."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForMultipleChoice

from bertender.cli.asking import lines_of
from bertender.comparison.accuracy import constant_row, evaluate
from bertender.comparison.calibration import CalibrateConfig
from bertender.comparison.compare import compare
from bertender.comparison.records import CompareConfig
from bertender.core.artifact import Artifact, lineage
from bertender.core.errors import ConfigError, DataError, ModelError
from bertender.gate.artifacts import VerifyConfig, verify
from bertender.models.classifier import open_classifier
from bertender.models.importing import import_model, open_artifact
from bertender.models.sequence_scorers import CHOICE_HEADS, scorer_of
from bertender.problems.multiple_choice import MULTIPLE_CHOICE
from bertender.problems.problem import Outputs
from bertender.recipes.recorded_task import recorded_task
from bertender.recipes.stages import STAGES
from bertender.scoring.scorer import Scorer
from bertender.tasks.loading import load_task
from bertender.tasks.task import TaskConfig
from bertender.text.tokenizer import open_tokenizer
from bertender.training.examples import token_dataset
from bertender.training.heads import HEADS
from distill.finetuning.baseline import train_bag_of_words
from distill.finetuning.config import BagOfWordsConfig
from export.config import ExportConfig
from quantize.config import QuantizeConfig
from quantize.graph_check import failures_if_quantized
from serve.bulk import read_file
from serve.client.endpoint import Classification
from serve.wire import input_names, row_in
from tests.toy_models import SHAPES
from tests.toys import choice_task, tiny_bert, tiny_tokenizer, write_model

PLACE = np.zeros(1, dtype=np.int64)


def loaded(path: Path, **settings: Any) -> Any:
    config = TaskConfig(train=path, dev=path, problem_type="multiple_choice", select=0, **settings)
    return load_task(config)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


LIST = '{"question": "q", "choices": ["red", "green"], "label": %s}\n'
FILES = {
    "a.csv": "question,choice_0,choice_1,label\nq,red,green,1\nr,red,green,0\n",
    "b.csv": "question,choice_1,choice_2,label\nq,red,green,2\nr,red,green,1\n",
    "c.tsv": "question\tending0\tending1\tlabel\nq\tred\tgreen\tB\nr\tred\tgreen\ta\n",
    "d.csv": "label,choice_1,choice_0,question\ngreen,green,red,q\nred,green,red,r\n",
    "e.jsonl": LIST % 1 + LIST % 0,
    "f.jsonl": LIST % '"green"' + LIST % '"A"',
}


@pytest.mark.parametrize("name", FILES)
def test_the_right_choice_is_a_number_a_letter_or_a_text(name: str, tmp_path: Path) -> None:
    task = loaded(write(tmp_path / name, FILES[name]))
    assert (task.labels, task.metric) == (("0", "1"), "accuracy")
    assert task.train.label_ids == (1, 0)
    assert [example[1:] for example in task.train.examples] == [("red", "green")] * 2
    assert len(task.text_columns) == 3


def test_columns_of_any_name_are_given(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "sent,sol1,sol2,right\nq,red,green,0\nr,red,green,1\n")
    names = {"text_column": "sent", "pair_column": "sol1,sol2", "label_column": "right"}
    with pytest.raises(DataError, match=r"line 2, column 'right': '0' is not one of the 2 choices"):
        loaded(path, **names)
    path = write(tmp_path / "a.csv", "sent,first,second,right\nq,red,green,0\nr,red,green,1\n")
    task = loaded(path, **{**names, "pair_column": "first, second"})
    assert task.text_columns == ("sent", "first", "second")
    assert task.train.label_ids == (0, 1)


WRONG = {
    "the text of one choice": '{"question": "q", "choices": ["1", "2"], "label": 1}\n',
    "not one of the 2 choices": LIST % 2,
    "3 choices, and the first question has 2": LIST % 0
    + '{"question": "r", "choices": ["a", "b", "c"], "label": 0}\n',
    "occurs twice": '{"question": "q", "choices": ["red", "red"], "label": 0}\n',
    "1 choices": '{"question": "q", "choices": ["red"], "label": 0}\n',
    "is not a list": '{"question": "q", "choices": "red", "label": 0}\n',
    "choice_0": '{"question": "q", "choices": "red|green", "label": 0}\n',
}


@pytest.mark.parametrize("said", WRONG)
def test_what_is_no_question_is_named(said: str, tmp_path: Path) -> None:
    text = WRONG[said]
    with pytest.raises(DataError, match=f"line {text.count(chr(10))}, column .*{said}"):
        loaded(write(tmp_path / "a.jsonl", text))


def test_a_held_out_file_has_as_many_choices(tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", LIST % 0 + LIST % 1)
    three = '{"question": "q", "choices": ["a", "b", "c"], "label": 0}\n'
    dev = write(tmp_path / "dev.jsonl", three)
    config = TaskConfig(train=train, dev=dev, problem_type="multiple_choice", select=0)
    with pytest.raises(DataError, match=r"dev.jsonl, line 1, .*3 choices, .* has 2"):
        load_task(config)


def test_an_oracle_decodes_to_its_targets() -> None:
    """Each choice is a row with one score, which another batch may have computed."""
    task = choice_task(8, 20)
    for target, example in zip(task.dev.label_ids, task.dev.examples, strict=True):
        rows = [
            Outputs(np.array([[float(place == target)]], np.float32), PLACE) for place in range(3)
        ]
        outputs = MULTIPLE_CHOICE.joined(rows)
        assert outputs.logits.shape == (1, 3)
        assert MULTIPLE_CHOICE.decode(outputs, example) == target
        assert MULTIPLE_CHOICE.joined([outputs]).logits.shape == (1, 3), "of an endpoint"


def test_choices_of_the_shortest_question_of_the_gate_differ() -> None:
    """Equal ones would tie, and noise would turn the decision."""
    choices = ("The man ran.", "The man sat.", "It rained.")
    short, long = MULTIPLE_CHOICE.edge_examples([("What then?", *choices)], 9)
    assert short == ("What", "The man ran.", "The man sat.", "It rained.")
    assert long[1:] == choices
    (same, _) = MULTIPLE_CHOICE.edge_examples([("What then?", "The end", "The end")], 9)
    assert same == ("What", "The", "The")


def test_the_control_is_the_most_frequent_place() -> None:
    task = choice_task()
    row = constant_row(task)
    counts = [task.train.label_ids.count(place) for place in range(3)]
    assert row.label == str(int(np.argmax(counts)))
    assert row.score.value == pytest.approx(
        task.dev.label_ids.count(int(row.label)) / len(task.dev)
    )


@pytest.mark.parametrize("of_file", [True, False])
def test_a_long_question_is_cut_and_its_choices_are_not(of_file: bool, tmp_path: Path) -> None:
    tokenizer: Any = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    encode = MULTIPLE_CHOICE.encoder(open_tokenizer(tmp_path) if of_file else tokenizer, 12)
    batch = encode([("apple " * 20, "saw", "drill hammer saw"), ("apple", "saw", "drill")])
    assert batch.truncated is not None
    assert batch.truncated.tolist() == [True, False]
    assert (batch.counts, batch.lengths()) == ([2, 2], [12, 5])
    rows = [tokenizer.decode(ids, skip_special_tokens=True) for ids in batch.arrays["input_ids"]]
    assert rows[0].endswith("apple saw")
    assert rows[1].endswith("apple drill hammer saw")
    types = batch.arrays["token_type_ids"][1]
    assert types.tolist() == [0] * 8 + [1] * 4


def test_training_reads_the_rows_of_the_endpoint() -> None:
    task = choice_task(8, 8)
    tokenizer = tiny_tokenizer()
    examples = token_dataset(task.train, tokenizer, task.problem_type)
    batch = examples.collate([examples[row] for row in range(8)])
    arrays = MULTIPLE_CHOICE.encoder(tokenizer)(task.train.examples).arrays
    for name, array in arrays.items():
        np.testing.assert_array_equal(batch[name].numpy(), array)
    head, scores = HEADS["multiple_choice"], torch.arange(24.0)[:, None]
    logits = head.joined(scores, batch)
    assert logits.tolist() == scores.view(8, 3).tolist()
    expected = torch.nn.functional.cross_entropy(logits, batch["labels"])
    torch.testing.assert_close(head.hard_loss(logits, batch), expected)


def choice_model(family: str) -> Any:
    torch.manual_seed(5)
    settings = {**SHAPES[family], "vocab_size": len(tiny_tokenizer())}
    return AutoModelForMultipleChoice.from_config(AutoConfig.for_model(family, **settings)).eval()


@pytest.mark.parametrize("family", sorted(CHOICE_HEADS))
def test_a_head_of_choices_is_one_of_a_value_exactly(family: str) -> None:
    choices = choice_model(family)
    scorer = scorer_of(choices)
    ids = torch.randint(5, 90, (2, 3, 9), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    mask[1, 1, 6:] = 0
    with torch.no_grad():
        expected = choices(input_ids=ids, attention_mask=mask).logits
        found = scorer(input_ids=ids.flatten(0, 1), attention_mask=mask.flatten(0, 1)).logits
    torch.testing.assert_close(found.view(2, 3), expected)


def saved_choices(family: str, folder: Path) -> Path:
    choice_model(family).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_a_finished_model_takes_any_number_of_choices(tmp_path: Path) -> None:
    made = open_artifact(saved_choices("bert", tmp_path / "choices"))
    assert (made.card.task.problem_type, made.card.task.labels) == ("multiple_choice", ("0",))
    rows = "".join(LIST % label for label in (0, 1, 1))
    dev = write(tmp_path / "dev.jsonl", rows)
    task = recorded_task(made, {"dev": dev})
    judged = made.of_task(task.record())
    assert judged.card.task.labels == ("0", "1")
    score, predictions = evaluate(open_classifier(judged), task.dev, task.metric)
    assert (score.n, len(predictions)) == (3, 3)
    predicted = Scorer(made)([("q", "red", "green"), ("q", "red", "green", "blue")])
    chosen = open_classifier(judged).logits([("q", "red", "green")])[0].argmax()
    assert predicted[0]["predicted"] == str(chosen)
    named = import_model(tmp_path / "choices", tmp_path / "named", labels=("0", "1", "2"))
    assert named.card.task.text_columns == ("question", "choice_0", "choice_1", "choice_2")
    again = open_artifact(plain_copy(named, tmp_path / "again"))
    assert again.card.task.problem_type == "multiple_choice", "by the name of its output"
    with pytest.raises(ConfigError, match="Give 0,1,2,3"):
        import_model(tmp_path / "choices", tmp_path / "other", labels=("a", "b"))


@pytest.mark.parametrize("labels", [None, ("0", "1", "2")])
def test_models_are_compared_on_any_number_of_choices(
    labels: tuple[str, ...] | None, tmp_path: Path
) -> None:
    made = import_model(saved_choices("bert", tmp_path / "in"), tmp_path / "out", labels=labels)
    dev = write(tmp_path / "dev.jsonl", "".join(LIST % label for label in (0, 1, 1)))
    config = CompareConfig(
        single_texts=2, batch_size=2, processes=1, rounds=2, warmup_rounds=0, noisy=True, threads=1
    )
    task = recorded_task(made, {"dev": dev})
    (row,) = compare([made], task, config).rows
    assert row.score.n == 3 and {*row.scores.by_label} <= {"0", "1"}


def plain_copy(artifact: Artifact, out: Path) -> Path:
    """The folder as transformers reads it, without the card."""
    out.mkdir()
    for path in artifact.path.iterdir():
        if path.name != "artifact.json":
            (out / path.name).write_bytes(path.read_bytes())
    return out


@pytest.fixture(scope="module")
def finished(
    teacher_of: Callable[[str], Artifact], tmp_path_factory: pytest.TempPathFactory
) -> Artifact:
    """A finished model, which does not say how many choices it is for."""
    folder = tmp_path_factory.mktemp("finished")
    made = import_model(
        plain_copy(teacher_of(MULTIPLE_CHOICE.name), folder / "theirs"), folder / "finished"
    )
    assert (made.card.task.labels, made.card.task.source) == (("0",), {})
    return made


def test_what_is_made_of_a_finished_model_knows_it(finished: Artifact, tmp_path: Path) -> None:
    task = choice_task()
    graph = STAGES["export"].make([finished], task, ExportConfig(), tmp_path / "graph")
    small = STAGES["quantize"].make([graph], task, QuantizeConfig(scheme="dynamic"), tmp_path / "8")
    assert small.card.task.labels == task.labels
    assert [isinstance(each, Artifact) and each.digest for each in lineage(small)] == [
        each.digest for each in (small, graph, finished)
    ]
    # as it was recorded once
    card, of_task = graph.card, replace(finished.of_task(task.record()), labels_on_disk=None)
    assert card.parent is not None and of_task.digest != card.parent.digest
    parent = card.parent.model_copy(update={"digest": of_task.digest})
    earlier = replace(graph, card=card.model_copy(update={"parent": parent}))
    assert [*lineage(earlier)][1] == finished
    found = verify(finished, small, task, VerifyConfig(), failures_if_quantized)
    assert found.passed and found.graphs_compared and found.score_change is not None


def test_the_calibration_of_a_finished_model_is_its_own(finished: Artifact, tmp_path: Path) -> None:
    task = choice_task()
    labels = tuple(0 if row % 5 == 0 else each for row, each in enumerate(task.train.label_ids))
    apart = replace(task, selection=replace(task.train, label_ids=labels))
    calibrated = STAGES["calibrate"].make([finished], apart, CalibrateConfig(), tmp_path / "own")
    assert calibrated.has_own_calibration


def test_a_head_that_was_not_compared_is_refused(tmp_path: Path) -> None:
    config = transformers.BigBirdConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    transformers.BigBirdForMultipleChoice(config).save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    with pytest.raises(ModelError, match=r"head of a 'big_bird' model, .*Known: albert, bert"):
        open_artifact(tmp_path / "model")


def test_a_bag_of_words_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bag of words"):
        train_bag_of_words(choice_task(), BagOfWordsConfig(), tmp_path / "out")


def test_inputs_of_a_server_have_names() -> None:
    assert input_names(1) == ("TEXT",)
    assert input_names(2) == ("TEXT", "TEXT_PAIR")
    assert input_names(4) == ("TEXT", "CHOICE_0", "CHOICE_1", "CHOICE_2")
    refusal = row_in("CHOICE_1 row 3 is empty: there is nothing to classify.")
    assert refusal is not None
    assert (refusal.row, refusal.column) == (3, 2)


def test_an_answer_is_shown_with_its_text() -> None:
    answer = Classification(label="1", score=0.75, logits=(0.0, 1.1))
    example = ("what?", "red", "green")
    (line,) = lines_of(answer, example, MULTIPLE_CHOICE)
    assert line == "1\t0.7500\tgreen\twhat?"


@pytest.mark.parametrize("name", FILES)
def test_questions_of_a_file_are_asked_about(name: str, tmp_path: Path) -> None:
    texts = read_file(write(tmp_path / name, FILES[name]), "text", None, 3)
    assert texts.texts[0] == ("q", "red", "green")
    assert len(texts.columns) == 3
    with pytest.raises(ConfigError, match="a question and 3 choices"):
        read_file(tmp_path / name, "text", None, 4)


def test_a_model_of_choices_says_so_in_its_folder(tmp_path: Path) -> None:
    model, task = tiny_bert(len(tiny_tokenizer()), ("choice",)), choice_task(8, 8)
    written = write_model(model, tiny_tokenizer(), task, tmp_path / "model")
    config = json.loads((written.path / "config.json").read_text())
    assert config["id2label"] == {"0": "choice"}
