"""Token rows on disk: what was written comes back, whole or not at all, and is written once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bertender.core import files as atomic
from bertender.core.errors import DataError
from bertender.text.tokenizer import Padding
from bertender.training.config import TrainingConfig
from bertender.training.examples import TokenDataset
from bertender.training.loop import planned
from bertender.training.steps import Steps
from distill.pretraining.rows import StoredTokens, stored
from tests.forked import start

PAD = Padding(7)


def rows(count: int = 2500) -> Iterator[dict[str, Any]]:
    """Rows of different lengths, more of them than are written at a time."""
    for row in range(count):
        ids = [row % 50 + place for place in range(1 + row % 9)]
        yield {"input_ids": ids, "attention_mask": [1] * len(ids), "follows": row % 2}


def in_memory(count: int = 2500) -> TokenDataset:
    columns = {
        name: [row[name] for row in rows(count)]
        for name in ("input_ids", "attention_mask", "follows")
    }
    return TokenDataset(columns, PAD)


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    there, here = stored(rows, tmp_path / "rows", PAD), in_memory()
    assert len(there) == len(here) == 2500 and there.lengths == here.lengths
    assert [there[index] for index in (0, 999, 1000, 2499)] == [
        here[index] for index in (0, 999, 1000, 2499)
    ]
    assert list(there.columns["follows"]) == here.columns["follows"]


def test_batches_are_those_of_rows_in_memory(tmp_path: Path) -> None:
    batches = [[3, 2100, 3], [2499], [8, 17, 1000, 5]]
    store = stored(rows, tmp_path / "rows", PAD)
    there, here = (
        [examples.batch(batch) for batch in batches] for examples in (store, in_memory())
    )
    for one, other in zip(there, here, strict=True):
        assert {name: tensor.tolist() for name, tensor in one.items()} == {
            name: tensor.tolist() for name, tensor in other.items()
        }
        assert {tensor.dtype for tensor in one.values()} == {here[0]["input_ids"].dtype}
    assert there[0]["input_ids"][0].tolist()[4:] == []
    assert there[2]["input_ids"].shape == (4, 9) and PAD.token_id in there[2]["input_ids"][2]


def test_a_finished_store_is_not_written_again(tmp_path: Path) -> None:
    stored(rows, tmp_path / "rows", PAD)
    again = stored(lambda: pytest.fail("written again"), tmp_path / "rows", PAD)
    assert again.lengths == in_memory().lengths


def write_and_die(directory: Path) -> None:
    """Write rows in a process that ends as by `kill -9` before they are published."""
    atomic.publish = lambda draft, out: os.kill(os.getpid(), signal.SIGKILL)
    stored(rows, directory, PAD)


def test_rows_of_a_killed_process_are_written_again(tmp_path: Path) -> None:
    directory = tmp_path / "rows"
    process = start(write_and_die, directory, said=tmp_path / "said")
    process.join(120)
    assert process.exitcode == -signal.SIGKILL, (tmp_path / "said.err").read_text()
    assert not directory.exists()
    assert any("draft" in path.name for path in tmp_path.iterdir())
    assert stored(rows, directory, PAD).lengths == in_memory().lengths
    assert not any("draft" in path.name for path in tmp_path.iterdir())


def test_an_error_on_the_way_leaves_nothing(tmp_path: Path) -> None:
    def breaks() -> Iterator[dict[str, Any]]:
        yield from rows(1500)
        raise DataError("the file is damaged")

    with pytest.raises(DataError, match="the file is damaged"):
        stored(breaks, tmp_path / "rows", PAD)
    assert not (tmp_path / "rows").exists()


def test_no_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is too short for training and held-out rows"):
        stored(lambda: rows(0), tmp_path / "rows", PAD)
    assert not (tmp_path / "rows").exists()


def test_rows_are_read_from_the_file_and_not_kept(tmp_path: Path) -> None:
    examples = stored(rows, tmp_path / "rows", PAD)
    assert [Path(file["filename"]).parent for file in examples.table.cache_files] == [
        tmp_path / "rows"
    ]


def test_a_step_reads_its_rows_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one takes five times as long."""
    examples = stored(rows, tmp_path / "rows", PAD)
    plan = planned(examples, TrainingConfig(batch_size=50))
    monkeypatch.setattr(StoredTokens, "__getitem__", lambda *given: pytest.fail("one by one"))
    (batch,) = next(iter(Steps(plan, examples, TrainingConfig(batch_size=50)).loader()))
    assert len(batch["input_ids"]) > 1
