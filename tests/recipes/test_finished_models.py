"""A finished model goes the whole way without training: held-out texts alone, labels, data."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

import bertender
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ParityError
from bertender.models.importing import open_artifact
from bertender.recipes.recorded_task import recorded_task
from bertender.tasks.loading import load_task
from bertender.tasks.task import Split, Task, TaskConfig
from serve.config import ServeConfig
from serve.repository import write_repository
from tests.front import fail
from tests.tasks.writers import write_texts
from tests.toy_models import save_artifact, save_classifier, save_encoder, tiny_classifier
from tests.toys import toy_task


def write_rows(path: Path, split: Split, names: tuple[str, ...]) -> Path:
    """A CSV file of examples with a column of labels."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "label"))
        for example, label in zip(split.examples, split.label_ids, strict=True):
            writer.writerow((*example, names[label]))
    return path


@pytest.fixture(scope="module")
def finished(trained: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier that has learned, without any file of ours."""
    folder = tmp_path_factory.mktemp("theirs") / "model"
    folder.mkdir()
    for name in trained.card.files:
        (folder / name).write_bytes((trained.path / name).read_bytes())
    return folder


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Held-out texts, enough to set some apart."""
    folder = tmp_path_factory.mktemp("data")
    return write_rows(folder / "reviews.csv", toy_task(2, 400).dev, ("fruit", "tool"))


def test_a_held_out_file_alone_sets_some_texts_apart(finished: Path, dev: Path) -> None:
    task = recorded_task(open_artifact(finished), {"dev": dev})
    assert len(task.train) == 0
    assert len(task.selection) >= 50
    assert len(task.selection) + len(task.dev) == 400
    assert not set(task.selection.examples) & set(task.dev.examples)
    assert task.calibration == task.selection
    again = recorded_task(open_artifact(finished), {"dev": dev, "select": 0.0})
    assert len(again.dev) == 400 and again.chosen_on == "dev"


def test_three_commands_from_a_finished_model_to_8_bits(
    finished: Path, dev: Path, tmp_path: Path
) -> None:
    """It is exported on the way, knows its data afterwards, and what judges it asks for nothing."""
    settings = {"scheme": "dynamic", "parity_texts": 40, "golden_texts": 2}
    int8 = bertender.quantize(finished, {"dev": dev}, out=tmp_path / "int8", **settings)
    assert (int8.card.kind, int8.card.precision) == ("onnx", "int8")
    assert int8.card.task.source["dev"] == str(dev)
    assert bertender.verify(finished, int8, texts=40).passed
    size = {"rounds": 2, "single_texts": 8, "batch_size": 4, "warmup_rounds": 0}
    quick = {"noisy": True, "processes": 1, "threads": 1, **size}
    first, second = bertender.compare([finished, int8], **quick).rows
    assert (first.name, second.name) == ("model", "int8")
    assert second.score.value == pytest.approx(first.score.value, abs=0.02)


@pytest.mark.slow
def test_a_student_learns_from_texts_without_labels(
    finished: Path, dev: Path, tmp_path: Path
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"{text}\n" for (text,) in toy_task(300).train.examples))
    settings = {"layers": 1, "epochs": 6, "learning_rate": 3e-3, "batch_size": 16}
    student = bertender.distill(
        finished, {"dev": dev}, out=tmp_path / "student", unlabelled=texts, **settings
    )
    scores = student.card.findings.scores
    assert scores is not None and scores.score > 0.9


def test_what_learns_from_labels_says_that_it_has_none(
    finished: Path, dev: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="--unlabelled FILE"):
        bertender.distill(finished, {"dev": dev}, out=tmp_path / "o", layers=1)
    with pytest.raises(ConfigError, match="--train FILE"):
        bertender.prune(finished, {"dev": dev}, out=tmp_path / "o", heads=0.5)
    with pytest.raises(ConfigError, match="--train FILE"):
        bertender.quantize(finished, {"dev": dev}, out=tmp_path / "o", scheme="qat")


def test_swapped_labels_are_refused(finished: Path, tmp_path: Path) -> None:
    """Nothing else shows them: what damages such a model raises its score."""
    dev = write_rows(tmp_path / "dev.csv", toy_task(2, 200).dev, ("sweet", "hard"))
    swapped = {"dev": dev, "label_map": "sweet=tool,hard=fruit"}
    with pytest.raises(ConfigError, match=r"less than a guess: its labels look swapped"):
        bertender.export(finished, swapped, out=tmp_path / "onnx")
    right = {"dev": dev, "label_map": "sweet=fruit,hard=tool"}
    graph = bertender.export(finished, right, out=tmp_path / "onnx", parity_texts=40)
    assert graph.card.kind == "onnx"


def test_texts_that_calibrated_do_not_score(finished: Path, dev: Path, tmp_path: Path) -> None:
    made = bertender.import_model(finished, {"dev": dev}, out=tmp_path / "made")
    assert len(recorded_task(made, {}).dev) < 400
    for changes in ({"select": 0.0}, {"select": 0.1}, {"train": dev, "dev": dev}):
        with pytest.raises(ConfigError, match=r"was chosen and calibrated on a share of 0\.2"):
            recorded_task(made, changes)


def test_a_model_of_pairs_is_imported_without_data(finished: Path, tmp_path: Path) -> None:
    made = bertender.import_model(finished, {"pair_column": "hypothesis"}, out=tmp_path / "pairs")
    assert made.card.task.text_columns == ("text", "hypothesis")
    with pytest.raises(ConfigError, match="label_column: for data"):
        bertender.import_model(finished, {"label_column": "x"}, out=tmp_path / "other")


def test_a_folder_that_is_not_there_is_asked_of_no_hub(tmp_path: Path) -> None:
    """By the command line, too: a dot before a name means a folder."""
    assert "no such directory. Give a directory" in fail("show", "./nowhere")


def test_without_data_the_flag_is_named(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--dev FILE"):
        bertender.export(finished, out=tmp_path / "onnx")


def test_labels_in_another_order_score_alike(finished: Path, tmp_path: Path) -> None:
    """Sorted names of a file are not the order of a model's logits."""
    config = json.loads((finished / "config.json").read_text())
    config["id2label"] = {"0": "zebra", "1": "ant"}
    config["label2id"] = {"zebra": 0, "ant": 1}
    other = tmp_path / "other"
    other.mkdir()
    for path in finished.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    (other / "config.json").write_text(json.dumps(config))
    names = ("zebra", "ant")
    dev = write_rows(tmp_path / "dev.csv", toy_task(2, 200).dev, names)
    task = recorded_task(open_artifact(other), {"dev": dev, "select": 0.0})
    assert task.labels == names
    model = bertender.open_model(other)
    predicted = model.logits(task.dev.examples).argmax(1)
    assert (predicted == task.dev.label_ids).mean() > 0.9


def test_a_ruined_graph_of_others_is_refused(finished: Path, dev: Path, tmp_path: Path) -> None:
    """It loads without a word, and half of its weights are another model's."""
    exported = bertender.export(finished, {"dev": dev}, out=tmp_path / "onnx", parity_texts=40)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    for name in exported.card.files:
        (theirs / name).write_bytes((exported.path / name).read_bytes())
    assert bertender.verify(finished, theirs, {"dev": dev}, texts=40).passed
    graph = onnx.load(theirs / "model.onnx")
    for tensor in graph.graph.initializer:
        if tensor.name.endswith("word_embeddings.weight"):
            table = numpy_helper.to_array(tensor)[::-1].copy()
            tensor.CopyFrom(numpy_helper.from_array(table, tensor.name))
    onnx.save(graph, theirs / "model.onnx")
    with pytest.raises(ParityError):
        bertender.verify(finished, theirs, {"dev": dev}, texts=40)


def test_data_that_have_changed_are_said(
    finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = toy_task(120, 60)
    train = write_rows(tmp_path / "train.csv", task.train, task.labels)
    dev = write_rows(tmp_path / "dev.csv", task.dev, task.labels)
    made = bertender.import_model(finished, {"train": train, "dev": dev}, out=tmp_path / "made")
    assert set(made.card.task.data) == {"train", "dev"}
    recorded_task(made, {"max_train": 5})
    assert "have changed" not in caplog.text
    write_rows(train, task.train.first(100), task.labels)
    recorded_task(made, {})
    assert f"the training examples ({train}) have changed" in caplog.text
    assert "the held-out examples" not in caplog.text


def test_changed_data_of_one_of_several_tasks_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BERTENDER_DATA", str(tmp_path))
    write_texts(tmp_path)
    task = load_task(TaskConfig(task="sst2,cola"))
    made = save_artifact(tiny_classifier("bert", len(task.labels)), task, tmp_path / "made")
    train = tmp_path / "SST-2/train.tsv"
    train.write_text(train.read_text(encoding="utf-8") + "a new film\t1\n", encoding="utf-8")
    recorded_task(made, {})
    assert "the training examples of sst2 have changed" in caplog.text
    assert "of cola have changed" not in caplog.text


def test_a_file_judges_a_model_of_a_named_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user names no task besides, and the file has samples and columns of its own."""
    monkeypatch.setenv("BERTENDER_DATA", str(tmp_path))
    write_texts(tmp_path)
    learned = load_task(TaskConfig(task="sst2", max_dev=2))
    made = save_artifact(tiny_classifier("bert", len(learned.labels)), learned, tmp_path / "made")
    file = tmp_path / "mine.csv"
    rows = "".join(f"film {row},{learned.labels[row % 2]}\n" for row in range(300))
    file.write_text(f"text,label\n{rows}", encoding="utf-8")
    task = recorded_task(made, {"dev": file})
    assert (task.name, task.labels) == ("mine", learned.labels)
    assert len(task.dev) + len(task.selection) == 300
    with pytest.raises(ConfigError, match="is a task by name, and train and dev are files"):
        recorded_task(made, {"dev": file, "task": "sst2"})


def test_a_validation_file_that_has_gone_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BERTENDER_DATA", str(tmp_path))
    write_texts(tmp_path)
    task = load_task(TaskConfig(task="xnli-de"))
    made = save_artifact(tiny_classifier("bert", len(task.labels)), task, tmp_path / "made")
    recorded_task(made, {})
    (tmp_path / "XNLI/xnli.dev.tsv").unlink()
    monkeypatch.setattr("bertender.tasks.task.LEAST_TEXTS", 0)  # there are 9
    recorded_task(made, {"select": 0})
    assert "since the artifact was made" not in caplog.text
    recorded_task(made, {})
    assert "the validation examples have gone since" in caplog.text


def test_a_task_of_other_labels_names_the_map(finished: Path, tmp_path: Path) -> None:
    dev = write_rows(tmp_path / "dev.csv", toy_task(2, 60).dev, ("sweet", "hard"))
    with pytest.raises(ConfigError, match="--label-map"):
        recorded_task(open_artifact(finished), {"dev": dev})
    mapped = {"dev": dev, "label_map": "sweet=fruit,hard=tool"}
    task: Task = recorded_task(open_artifact(finished), mapped)
    assert task.labels == ("fruit", "tool")


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["albert", "bert", "modernbert"])
def test_a_finished_classifier_goes_the_whole_way(
    model_type: str, dev: Path, tmp_path: Path
) -> None:
    """Its parameters are random: what a gate says of its 8 bits decides which scheme is taken."""
    theirs, task = save_classifier(tmp_path / "theirs", model_type), {"dev": dev}
    onnx = bertender.export(theirs, task, out=tmp_path / "onnx")
    assert bertender.verify(theirs, onnx, texts=40).passed
    int8 = bertender.quantize(theirs, task, out=tmp_path / "int8")
    assert int8.card.precision in ("int8", "int4")
    quick = {"noisy": True, "processes": 1, "rounds": 2, "single_texts": 4}
    rows = bertender.compare([theirs, onnx, int8], task, **quick).rows
    assert [row.name for row in rows] == ["theirs", "onnx", "int8"]
    assert rows[1].score == rows[0].score
    config = ServeConfig.parse({"http_port": 0})
    repository = write_repository({"classifier": int8}, tmp_path / "models", config)
    assert (repository / "classifier" / "config.pbtxt").is_file()
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"{text}\n" for (text,) in toy_task(60).train.examples))
    encoder = save_encoder("bert", tmp_path / "encoder")
    start = {"student": encoder, "layers": 1, "method": "distilbert", "allow_constant": True}
    out = tmp_path / "student"
    student = bertender.distill(theirs, task, out=out, unlabelled=texts, epochs=1, **start)
    assert student.card.findings.training.unlabelled_texts == 60


def test_texts_that_a_model_may_know_are_not_held_out(
    finished: Path, dev: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"may have learned from .*Give --dev"):
        recorded_task(open_artifact(finished), {"train": dev})
