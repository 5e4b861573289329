"""Figures of a busy machine never enter the published results, or a document made from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from benchmarks import readme
from benchmarks.common import saving
from benchmarks.common.kernel_times import KernelTimes
from benchmarks.common.saving import (
    RESULTS,
    check_noisy_files,
    check_noisy_out,
    save_benchmark,
)
from benchmarks.documents.block import Block
from bertender.core.errors import MachineBusyError
from bertender.measure.load import MachineLoad, noisy_loads

QUIET, NOISY = (
    KernelTimes(tokens=1, operators_ms={}, load=MachineLoad(other_work=share, steal=0.0))
    for share in (0.01, 0.3)
)


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of published results, somewhere else."""
    folder = tmp_path / "results"
    folder.mkdir()
    monkeypatch.setattr(saving, "RESULTS", folder)
    return folder


def test_a_noisy_result_is_written_only_elsewhere(published: Path, tmp_path: Path) -> None:
    save_benchmark(QUIET, published / "quiet.json")
    save_benchmark(NOISY, tmp_path / "noisy.json")
    for out in (published / "noisy.json", published / "deeper" / "noisy.json"):
        with pytest.raises(MachineBusyError, match=r"30\.0% of the cores' time.*--out elsewhere"):
            save_benchmark(NOISY, out)
    assert [path.name for path in published.iterdir()] == ["quiet.json"]


def test_a_noisy_run_for_publication_is_refused_before_it_starts(
    published: Path, tmp_path: Path
) -> None:
    check_noisy_out(True, tmp_path / "noisy.json")
    check_noisy_out(True, None)
    check_noisy_out(False, published / "quiet.json")
    with pytest.raises(typer.BadParameter, match=r"--noisy: .*never enter results/"):
        check_noisy_out(True, published / "noisy.json")


def test_no_document_is_made_of_a_noisy_file(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (published / "noisy.json").write_text(NOISY.model_dump_json())
    with pytest.raises(MachineBusyError, match=r"noisy\.json holds figures of a busy machine"):
        check_noisy_files([published / "noisy.json"])
    block = Block("README.md", ("results/noisy.json",), lambda files: "a table")
    monkeypatch.setattr(readme, "BLOCKS", {"some": block})
    monkeypatch.setattr(readme, "ROOT", published.parent)
    with pytest.raises(MachineBusyError, match="no document is made"):
        readme.rewritten("README.md", "<!-- begin some -->\n<!-- end some -->")


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.name)
def test_no_published_result_is_noisy(path: Path) -> None:
    assert noisy_loads(json.loads(path.read_text(encoding="utf-8"))) == []
