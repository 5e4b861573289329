"""The README is short and true: its tables are those of the raw results, and so are the pages'.

Its commands are run in test_docs.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache

import pytest
from transformers import BertConfig

from benchmarks.documents.block import ROOT
from benchmarks.documents.blocks import BLOCKS, PICTURES
from benchmarks.readme import drawn, rewritten
from bertender.cli.main import commands
from bertender.measure.comparison import Comparison
from bertender.measure.gate import GateConfig
from bertender.measure.samples import speedup_over_processes
from bertender.models.fusions import FUSIONS
from bertender.report.cells import speedup_cell
from distill.augmentation import AUGMENTATIONS
from distill.corpora.files import READERS
from distill.methods import GENERAL_METHODS, METHODS
from distill.methods.method import Method
from distill.objectives import FULL_SENTENCES, OBJECTIVES
from distill.vocabularies import TOKENIZERS
from export.onnx_export import ExportConfig
from quantize.schemes import SCHEMES
from quantize.targets import TARGETS
from tests.packages import PACKAGES

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_says_the_runtime_and_the_model_apart() -> None:
    """Both ratios are computed from the file; no endpoint was timed there."""
    path = ROOT / BLOCKS["results"].files[0]
    rows = {row.name: row for row in Comparison.model_validate_json(path.read_text()).rows}
    within, runtime = (
        " ".join(speedup_cell(speedup_over_processes(*(rows[n].latency.single_ms for n in names))))
        for names in (("teacher-onnx", "student-int8"), ("teacher", "teacher-onnx"))
    )
    (text,) = re.findall(r"<!-- begin results -->\n(.*?)<!-- end", README, re.S)
    assert f"`student-int8` is {within} as fast as `teacher-onnx`" in text
    assert f"from PyTorch to ONNX Runtime, gives {runtime}" in text
    assert "not an endpoint" in (ROOT / BLOCKS["sst2-reading"].document).read_text()


def test_the_readme_has_the_short_table() -> None:
    (text,) = re.findall(r"<!-- begin results -->\n(.*?)<!-- end", README, re.S)
    assert [
        line for line in text.splitlines() if line.startswith("| ") and line.count("|") > 7
    ] == []
    assert "| Artifact |" in text and "-seed-" not in text


def test_every_command_that_is_named_exists() -> None:
    named = set(re.findall(r"(?:^|[`/ ])bertender ([a-z]+)\b", README, re.M))
    assert named
    assert named <= {*commands(), "turns"}, "a command in the README that bertender does not have"


rewritten_once = cache(rewritten)
"""Each document has several tables, and all of them are made together."""


@pytest.mark.parametrize("name", BLOCKS)
def test_the_tables_are_those_of_the_raw_results(name: str) -> None:
    document = BLOCKS[name].document
    text = (ROOT / document).read_text(encoding="utf-8")
    assert all((ROOT / file).is_file() for file in BLOCKS[name].files)
    assert f"<!-- begin {name} -->" in text
    assert rewritten_once(document, text) == text, "run `python -m benchmarks.readme`"


@pytest.mark.parametrize("picture", PICTURES)
def test_the_pictures_are_those_of_the_raw_results(picture: str) -> None:
    assert (ROOT / picture).read_text(encoding="utf-8") == drawn(picture)


@pytest.mark.slow  # what it computes is computed above; a process of its own imports everything
def test_the_command_that_writes_the_tables_runs() -> None:
    command = [sys.executable, "-m", "benchmarks.readme", "--check"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(
    ("head", "rows"),
    [("When to choose it", METHODS), ("On a corpus it learns", GENERAL_METHODS)],
    ids=["on a task", "on a corpus"],
)
def test_every_method_is_explained(head: str, rows: Mapping[str, Method]) -> None:
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    (table,) = (table for table in text.split("\n\n") if f"| {head} |" in table)
    explained = re.findall(r"^\| `([a-z0-9-]+)` \| [^|]{30,} \|", table, re.M)
    assert sorted(explained) == sorted(rows)


@pytest.mark.parametrize(("head", "rows"), [("When to choose", SCHEMES), ("What is", TARGETS)])
def test_every_scheme_and_target_is_explained(head: str, rows: Mapping[str, object]) -> None:
    text = (ROOT / "docs" / "quantization.md").read_text(encoding="utf-8")
    (table,) = (table for table in text.split("\n\n") if f"| {head} " in table)
    assert re.findall(r"^\| `([a-z0-9-]+)` \| [^|]{30,} \|", table, re.M) == list(rows)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_is_explained(name: str) -> None:
    """With its paper, and as what it is written, a class of transformers."""
    text = (ROOT / "docs" / "pretraining.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z+-]+)` \| ([^|]{40,}) \| ([^|]+) \| ([^|]+) \| (\w+)", text, re.M)
    assert sorted(name for name, *_ in rows) == sorted(OBJECTIVES)
    (_, _, papers, kind, written) = next(row for row in rows if row[0] == name)
    chosen = OBJECTIVES[name]
    for paper in re.findall(r"arXiv [0-9.]+\d", chosen.paper):
        assert paper in papers
    assert kind == ("full sentences" if chosen.rows is FULL_SENTENCES else "pairs")
    shape = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=9)
    assert written == type(chosen.model(shape)).__name__


def test_every_tokenizer_is_explained() -> None:
    text = (ROOT / "docs" / "pretraining.md").read_text(encoding="utf-8")
    section = text.partition("## The text and the vocabulary")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z]+)` \| [^|]{40,} \| ([^|]+) \|$", section, re.M)
    assert dict(rows) == {name: kind.paper for name, kind in TOKENIZERS.items()}
    for ending in READERS:
        assert f"`{ending}`" in section


def test_every_augmentation_is_explained() -> None:
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    section = text.partition("## More texts out of few")[2].partition("\n## ")[0]
    explained = re.findall(r"^- `([a-z0-9-]+)`: .{40,}", section, re.M)
    assert sorted(explained) == sorted(AUGMENTATIONS)


def test_whose_attention_is_fused_is_explained() -> None:
    text = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    section = text.partition("## Optimised graphs")[2].partition("\n## ")[0]
    explained = dict(re.findall(r"^\| `([a-z0-9-]+)` \| ([^|]+) \|$", section, re.M))
    assert explained.keys() == FUSIONS.keys()
    for name, row in FUSIONS.items():
        assert explained[name].startswith(f"No: {row.obstacle}" if row.obstacle else ("Yes", "In"))
    flags = set(re.findall(r"^\| `--([a-z-]+)`", text, re.M)) | {"overflow"}
    fields = set(ExportConfig.model_fields) - set(GateConfig.model_fields)
    assert flags == {name.replace("_", "-") for name in fields}


def test_every_folder_of_the_tree_is_there() -> None:
    rows = re.findall(r"^\| (`[a-z/]+/`(?:, `[a-z/]+/`)*) \|", README, re.M)
    folders = [folder.strip("`") for row in rows for folder in row.split(", ")]
    assert len(folders) >= len(PACKAGES)
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []
