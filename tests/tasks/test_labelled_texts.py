"""Labelled texts from official files, from a copy of the hub's data, and from nowhere."""

from __future__ import annotations

import lzma
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from huggingface_hub import constants

from bertender.core.errors import DataError, HubUnreachableError
from bertender.core.hub import PROBE_SECONDS, hub_knows
from bertender.tasks.loading import load_task, scored_too
from bertender.tasks.named import TASKS, HubSplit, TextsTask
from bertender.tasks.task import TaskConfig, with_model_labels
from bertender.text.batch import Example
from tests.online import forget_sessions
from tests.quick import quick
from tests.tasks.writers import write_texts

ROWS = {name: row for name, row in TASKS.items() if isinstance(row, TextsTask)}

INFERENCE: tuple[tuple[Example, float], ...] = (
    (("It rains.", "It is wet."), 0),
    (("It rains.", "It is cold."), 1),
    (("It rains.", "It is dry."), 2),
)
EXPECTED: dict[str, tuple[tuple[Example, float], ...]] = {
    "sst2": ((("a fine film",), 1), (("a dull film",), 0)),
    "cola": ((("The sailors rode.",), 1), (("Sailors the rode.",), 0)),
    "mrpc": ((('He said "yes.', '"Yes, he said.'), 1), (("He said no.", "She left."), 0)),
    "rte": ((("It rains.", "It is wet."), 0), (("It rains.", "It is dry."), 1)),
    "qnli": ((("Who came?", "Ann came."), 0), (("Who came?", "It rains."), 1)),
    "qqp": ((("Who is it?", "Who was that?"), 1), (("Who is it?", "What is it?"), 0)),
    "mnli": INFERENCE,
    "mnli-mismatched": INFERENCE[::-1],
    "ax": (
        (('The "cat sat.', "The cat did not sit."), 2),
        (("A cat sat.", "An animal sat."), 0),
        (("A cat sat.", "A grey cat sat."), 1),
    ),
    **{
        f"xnli-{language}": (
            (("Es regnet.", f"{language} neutral."), 1),
            (("Es regnet.", f"{language} contradiction."), 2),
            (("Es regnet.", f"{language} entailment."), 0),
        )
        for language in ("de", "en", "fr", "zh")
    },
    "ag_news": tuple(
        ((f'Title {number}, or "so" (AP) AP - A \\second text.',), number - 1)
        for number in (3, 1, 2, 4)
    ),
    "wnli": ((("Ann ran. She won.", "Ann won."), 1), (("Ann ran. She won.", "Eve won."), 0)),
    "stsb": (
        (("A plane lands.", "An air plane lands."), 4.75),
        (("A plane lands.", "A man eats."), 0.0),
    ),
}
EXPECTED["stsb-embedding"] = EXPECTED["stsb"]
OFFICIAL_ROWS = {
    "sst2": (67349, 872),
    "cola": (8551, 1043),
    "mrpc": (3668, 408),
    "rte": (2490, 277),
    "mnli": (40181, 9815),
    "mnli-mismatched": (40181, 1000),
    **{f"xnli-{language}": (40181, 5010) for language in ("de", "en", "fr", "zh")},
    "ag_news": (10001, 7600),
    "wnli": (635, 71),
    "stsb": (5749, 1500),
}
LIKE_OTHERS = {"mnli", "xnli-en", "xnli-fr", "xnli-zh"}
"""Large files that are read as others are."""
OFFICIAL_DEV_SUMS = {
    "sst2": 444,
    "cola": 721,
    "mrpc": 279,
    "rte": 131,
    "mnli": 3123 + 2 * 3213,
    "mnli-mismatched": 319 + 2 * 335,
    **{f"xnli-{language}": 3 * 1670 for language in ("de", "en", "fr", "zh")},
    "ag_news": 1900 * 6,
    "wnli": 31,
    "stsb": 3545.861,
}
"""Of the numbers of the labels, or of the scores."""


@pytest.fixture
def official_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BERTENDER_DATA", str(tmp_path))
    return write_texts(tmp_path)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.usefixtures("official_files")
def test_local_files(name: str) -> None:
    row = ROWS[name]
    train, dev = row.load()
    assert tuple(zip(dev.examples, dev.label_ids, strict=True)) == EXPECTED[name]
    of_train = EXPECTED["mnli" if row.text_columns == ("premise", "hypothesis") else name] * 3
    assert tuple(zip(train.examples, train.label_ids, strict=True)) == of_train
    assert row.load_held_out() == dev


@pytest.mark.parametrize("name", ROWS)
def test_a_wrong_label_in_local_files(official_files: Path, name: str) -> None:
    row = ROWS[name]
    file = row.files[1][0]
    path, end = official_files / file.place, "," if file.place.endswith(".csv") else "\t"
    header, *lines = path.read_text().splitlines()
    columns = file.columns or header.removeprefix("\ufeff").split(end)
    place = next(
        n for n, line in enumerate(lines) if not file.only or line.startswith(file.only[1])
    )
    cells = lines[place].split(end)
    cells[columns.index(file.label)] = "x"
    lines[place] = end.join(cells)
    path.write_text("\n".join((header, *lines)) + "\n")
    has_numbers = row.problem_type in ("regression", "sentence_embedding")
    wrong = "'x' is not a number" if has_numbers else "label 'x' is not one"
    with pytest.raises(DataError, match=rf"{path.name}, line \d+, column .*{wrong}"):
        row.load()


def test_a_validation_file_chooses(official_files: Path) -> None:
    task = load_task(TaskConfig(task="xnli-de"))
    assert task.chosen_on == "selection"
    assert task.selection.examples == (
        ("Es schneit.", "de contradiction."),
        ("Es schneit.", "de entailment."),
    )
    assert task.selection.label_ids == (2, 0)
    again = load_task(TaskConfig.parse(task.source))
    assert (again.selection, again.train) == (task.selection, task.train)
    assert load_task(TaskConfig(task="xnli-de", select=0)).chosen_on == "dev"
    (official_files / "XNLI" / "xnli.dev.tsv").unlink()
    without = load_task(TaskConfig(task="xnli-de"))
    assert without.train == task.train and not len(without.selection), "too few"


def test_a_missing_split(official_files: Path) -> None:
    (official_files / "RTE" / "dev.tsv").unlink()
    with pytest.raises(HubUnreachableError, match=r"^RTE/dev.tsv is not on this machine"):
        ROWS["rte"].load()
    (official_files / "AX" / "diagnostic-full.tsv").unlink()
    with pytest.raises(DataError, match=r"AX/diagnostic-full.tsv is not .* no hub has its labels"):
        ROWS["ax"].load()


def test_a_compressed_file(official_files: Path) -> None:
    path = official_files / "RTE" / "dev.tsv"
    Path(f"{path}.xz").write_bytes(lzma.compress(path.read_bytes()))
    path.unlink()
    assert ROWS["rte"].load_held_out().label_ids == (0, 1)


@pytest.mark.usefixtures("official_files")
def test_a_model_of_mnli_is_scored_on_the_mismatched_texts(official_files: Path) -> None:
    task = load_task(TaskConfig(task="mnli", max_dev=2))
    (further,) = scored_too(task).items()
    assert further[0] == "mnli-mismatched" and further[1].labels == task.labels
    assert len(further[1].dev) == 2 and not len(further[1].train)
    of_model = with_model_labels(task, ("NEUTRAL", "CONTRADICTION", "ENTAILMENT"), None, "a model")
    (renumbered,) = scored_too(of_model).values()
    assert renumbered.labels == of_model.labels
    names = [renumbered.labels[number].lower() for number in renumbered.dev.label_ids]
    assert names == [task.labels[number] for number in further[1].dev.label_ids]
    assert scored_too(load_task(TaskConfig(task="rte"))) == {}


def test_mismatched_texts_that_are_nowhere(
    official_files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (official_files / "MNLI" / "dev_mismatched.tsv").unlink()
    assert scored_too(load_task(TaskConfig(task="mnli"))) == {}
    assert "models of mnli are not scored on mnli-mismatched" in caplog.text


def hub_copy(root: Path, name: str, split: HubSplit) -> Path:
    """Write what the hub's repository holds of one split: a Parquet file."""
    columns, config = ROWS[name].text_columns, split.config or "default"
    examples, label_ids = zip(*EXPECTED[name], strict=True)
    rows = {
        **dict(zip(columns, map(list, zip(*examples, strict=True)), strict=True)),
        "label": list(label_ids),
        "idx": list(range(len(examples))),
    }
    (root / config).mkdir(parents=True)
    pyarrow.parquet.write_table(pyarrow.table(rows), root / config / "rows.parquet")
    (root / "README.md").write_text(
        f"---\nconfigs:\n- config_name: {config}\n  data_files:\n"
        f"  - split: {split.split}\n    path: {config}/rows.parquet\n---\n"
    )
    return root


@pytest.mark.parametrize("name", ROWS)
def test_the_hubs_layout(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    row = ROWS[name]
    for split in filter(None, row.hub):
        copy = hub_copy(tmp_path / split.split, name, split)
        read = split.read(row, str(copy))
        assert tuple(zip(read.examples, read.label_ids, strict=True)) == EXPECTED[name]


@pytest.mark.parametrize("offline", [True, False])
def test_no_hub(offline: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:  # bound, but it does not listen: connections are refused
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
        monkeypatch.setenv("BERTENDER_DATA", str(tmp_path))
        started = time.monotonic()
        with pytest.raises(HubUnreachableError, match=r"BERTENDER_DATA.*SST-2/train.tsv.*--train"):
            ROWS["sst2"].load()
        assert time.monotonic() - started < 10


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let huggingface_hub connect: it keeps a session a thread, and offline ones refuse to."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    forget_sessions()
    yield
    forget_sessions()


@pytest.mark.usefixtures("online")
@pytest.mark.parametrize(("status", "answer"), [(200, True), (403, False), (503, False)])
def test_hubs_that_answer(status: int, answer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/api/datasets/nyu-mll/glue" else 404)
            self.end_headers()

        def log_message(self, *arguments: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Hub) as server:
        server.timeout = 10
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        assert hub_knows("api/datasets/nyu-mll/glue") is answer
        thread.join()


@pytest.mark.usefixtures("online")
def test_a_hub_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        started = time.monotonic()
        assert not hub_knows("api/datasets/nyu-mll/glue", seconds=0.5)
        assert 0.4 < time.monotonic() - started < PROBE_SECONDS


@pytest.mark.data
@pytest.mark.parametrize("name", quick(OFFICIAL_ROWS, *OFFICIAL_ROWS.keys() - LIKE_OTHERS))
@pytest.mark.usefixtures("data_directory")
def test_official_counts(name: str) -> None:
    train, dev = ROWS[name].load()
    assert (len(train), len(dev)) == OFFICIAL_ROWS[name]
    assert sum(dev.label_ids) == pytest.approx(OFFICIAL_DEV_SUMS[name], abs=1e-2)
