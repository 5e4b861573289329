"""GLUE sets from local files as GLUE writes them, from a copy of the hub's, and from nowhere."""

from __future__ import annotations

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
from huggingface_hub.utils._http import reset_sessions

from bertender.core.errors import DataError, HubUnreachableError
from bertender.core.hub import PROBE_SECONDS, hub_knows
from bertender.tasks.named import HUB_PLACE, TASKS, GlueTask
from bertender.text.batch import Example
from tests.tasks.writers import write_glue

GLUE = {name: row for name, row in TASKS.items() if isinstance(row, GlueTask)}

EXPECTED: dict[str, tuple[tuple[Example, float], ...]] = {
    "sst2": ((("a fine film",), 1), (("a dull film",), 0)),
    "cola": ((("The sailors rode.",), 1), (("Sailors the rode.",), 0)),
    "mrpc": ((('He said "yes.', '"Yes, he said.'), 1), (("He said no.", "She left."), 0)),
    "rte": ((("It rains.", "It is wet."), 0), (("It rains.", "It is dry."), 1)),
    "qnli": ((("Who came?", "Ann came."), 0), (("Who came?", "It rains."), 1)),
    "qqp": ((("Who is it?", "Who was that?"), 1), (("Who is it?", "What is it?"), 0)),
    "mnli": (
        (("It rains.", "It is wet."), 0),
        (("It rains.", "It is cold."), 1),
        (("It rains.", "It is dry."), 2),
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
    "wnli": (635, 71),
    "stsb": (5749, 1500),
}
OFFICIAL_DEV_SUMS = {
    "sst2": 444,
    "cola": 721,
    "mrpc": 279,
    "rte": 131,
    "wnli": 31,
    "stsb": 3545.861,
}
"""Of the numbers of the labels, or of the scores."""


@pytest.fixture
def glue_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BERTENDER_DATA", str(tmp_path))
    return write_glue(tmp_path)


@pytest.mark.parametrize("name", GLUE)
@pytest.mark.usefixtures("glue_files")
def test_local_files(name: str) -> None:
    train, dev = GLUE[name].load()
    assert tuple(zip(dev.examples, dev.label_ids, strict=True)) == EXPECTED[name]
    assert (train.examples, train.label_ids) == (dev.examples * 3, dev.label_ids * 3)


@pytest.mark.parametrize("name", GLUE)
def test_a_wrong_label_in_local_files(glue_files: Path, name: str) -> None:
    row = GLUE[name]
    file = glue_files / row.folder / row.held_out[0]
    header, *lines = file.read_text().splitlines()
    columns = row.file_columns or header.removeprefix("\ufeff").split("\t")
    cells = lines[-1].split("\t")
    cells[columns.index(row.file_label_column)] = "x"
    file.write_text("\n".join((header, *lines[:-1], "\t".join(cells))) + "\n")
    has_numbers = row.problem_type in ("regression", "sentence_embedding")
    wrong = "'x' is not a number" if has_numbers else "label 'x' is none"
    with pytest.raises(DataError, match=rf"{row.held_out[0]}, line \d, column .*{wrong}"):
        row.load()


def test_a_missing_split(glue_files: Path) -> None:
    (glue_files / "RTE" / "dev.tsv").unlink()
    with pytest.raises(DataError, match=r"RTE/dev.tsv: cannot be read: No such file"):
        GLUE["rte"].load()


def hub_copy(root: Path, name: str) -> Path:
    """Write what the hub's repository of GLUE holds for one set: Parquet files by split."""
    columns, hub_name = GLUE[name].text_columns, GLUE[name].hub_name
    examples, label_ids = zip(*EXPECTED[name], strict=True)
    rows = {
        **dict(zip(columns, map(list, zip(*examples, strict=True)), strict=True)),
        "label": list(label_ids),
        "idx": list(range(len(examples))),
    }
    (root / hub_name).mkdir(parents=True)
    held_out = GLUE[name].held_out[1]
    for split in ("train", held_out):
        pyarrow.parquet.write_table(pyarrow.table(rows), root / hub_name / f"{split}.parquet")
    (root / "README.md").write_text(
        f"---\nconfigs:\n- config_name: {hub_name}\n  data_files:\n"
        f"  - split: train\n    path: {hub_name}/train.parquet\n"
        f"  - split: {held_out}\n    path: {hub_name}/{held_out}.parquet\n---\n"
    )
    return root


@pytest.mark.parametrize("name", GLUE)
def test_the_hubs_layout(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    train, dev = GLUE[name].read_hub(str(hub_copy(tmp_path / "hub", name)))
    assert tuple(zip(dev.examples, dev.label_ids, strict=True)) == EXPECTED[name]
    assert train == dev


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
            GLUE["sst2"].load()
        assert time.monotonic() - started < 10


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let huggingface_hub connect: it keeps a session a thread, and offline ones refuse to."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    reset_sessions()
    yield
    reset_sessions()


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
        assert hub_knows(HUB_PLACE) is answer
        thread.join()


@pytest.mark.usefixtures("online")
def test_a_hub_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        started = time.monotonic()
        assert not hub_knows(HUB_PLACE, seconds=0.5)
        assert 0.4 < time.monotonic() - started < PROBE_SECONDS


@pytest.mark.data
@pytest.mark.parametrize("name", OFFICIAL_ROWS)
@pytest.mark.usefixtures("data_directory")
def test_official_counts(name: str) -> None:
    train, dev = GLUE[name].load()
    assert (len(train), len(dev)) == OFFICIAL_ROWS[name]
    assert sum(dev.label_ids) == pytest.approx(OFFICIAL_DEV_SUMS[name], abs=1e-2)
