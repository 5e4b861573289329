"""BLOCKS: the marked parts of the documents, and the raw results that each is made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.advice_table import advice_block
from benchmarks.advisory_table import advisories_block
from benchmarks.api_page import api_block
from benchmarks.bad_clients_table import bad_clients_block
from benchmarks.command_table import commands_block
from benchmarks.comparison_block import comparison_block, short_block
from benchmarks.compress_block import compress_block, short_compress_block
from benchmarks.compression.table import compression_block
from benchmarks.control_table import control_block
from benchmarks.endpoint_table import endpoint_block
from benchmarks.foreign_load_table import foreign_load_block
from benchmarks.fusion_table import fusion_block
from benchmarks.gate_table import bounds_block, gate_block
from benchmarks.lint_rule_table import lint_rules_block
from benchmarks.memory_table import memory_block
from benchmarks.method_table import method_block
from benchmarks.objectives_table import objectives_block
from benchmarks.profile_table import profile_block
from benchmarks.pruning_curve import pruning_block
from benchmarks.quantization_table import quantization_block
from benchmarks.readings import READINGS
from benchmarks.readings.demo import demo_reading
from benchmarks.readings.teachers import teachers_reading
from benchmarks.replica_table import replicas_block
from benchmarks.request_costs_table import request_costs_block
from benchmarks.rival_table import rivals_block
from benchmarks.runtime_table import runtime_block
from benchmarks.serving_table import serving_block
from benchmarks.soak_table import soak_block
from benchmarks.starting_table import starting_block
from benchmarks.step_memory_table import step_memory_block
from benchmarks.students_table import students_block
from benchmarks.tagging_table import tagging_block
from benchmarks.tolerance_table import tolerances_block
from benchmarks.training_table import training_block
from benchmarks.tune_table import tune_block

__all__ = [
    "BLOCKS",
    "NEWEST",
    "PICTURES",
    "ROOT",
    "TABLES",
    "Block",
    "newest_blocks",
    "reading_blocks",
]

ROOT = Path(__file__).resolve().parent.parent
COMPRESSION = (
    "benchmarks/results/2026-11-23-sst2-bert-base-compress-cpu.json",
    "benchmarks/results/2026-11-23-sst2-bert-base-compress-table-cpu.json",
)
"""The report of a compression, and its table."""
SST2 = "benchmarks/results/2026-11-23-sst2-cpu-ort1.31.1.json"
"""The comparison that the README shows a part of."""


@dataclass(frozen=True)
class Block:
    """A marked part of a document, made from raw results."""

    document: str
    files: tuple[str, ...]
    write: Callable[[Mapping[str, Path]], str]
    """places of the files by their names -> Markdown"""


def of_one(write: Callable[[str, Path], str]) -> Callable[[Mapping[str, Path]], str]:
    """Return what writes a table of one file, by its name and place, as a block of files."""

    def block(files: Mapping[str, Path]) -> str:
        ((name, path),) = files.items()
        return write(name, path)

    return block


PICTURES: Mapping[str, str] = {
    "docs/pruning-sst2.svg": "benchmarks/results/2026-11-22-sst2-pruning-cpu.json",
    "docs/pruning-mrpc.svg": "benchmarks/results/2026-11-22-mrpc-pruning-cpu.json",
    "docs/pruning-cola.svg": "benchmarks/results/2026-11-22-cola-pruning-cpu.json",
}
"""Curves, and the raw results that they are drawn from."""


@dataclass(frozen=True)
class Newest:
    """A row of NEWEST."""

    write: Callable[[str, Path], str]
    """name and place of the file -> Markdown"""
    document: str = "docs/serving.md"


NEWEST: Mapping[str, Newest] = {
    "endpoint": Newest(endpoint_block),
    "serving": Newest(serving_block),
    "starting": Newest(starting_block),
    "soak": Newest(soak_block),
    "bad-clients": Newest(bad_clients_block),
    "bad-clients-nginx": Newest(bad_clients_block),
    "replicas": Newest(replicas_block),
    "foreign-load": Newest(foreign_load_block),
    "request-costs": Newest(request_costs_block),
    "tune": Newest(tune_block),
    "rivals": Newest(rivals_block, "docs/comparing.md"),
    "rivals-pairs": Newest(rivals_block, "docs/comparing.md"),
    "profiles": Newest(profile_block, "docs/comparing.md"),
    "students": Newest(students_block, "docs/results.md"),
    "objectives": Newest(objectives_block, "docs/pretraining.md"),
    "compression": Newest(compression_block, "docs/methods.md"),
}
"""Measurements of one model among others: name of the block and of its files -> its table."""


def newest_blocks(results: Path = ROOT / "benchmarks" / "results") -> dict[str, Block]:
    """Return the blocks of the newest `DAY-...-NAME-cpu.json` of each row of NEWEST.

    One without a file has no block yet; its marks in the document stay empty until then.
    """
    blocks = {}
    for name, row in NEWEST.items():
        if files := sorted(path.name for path in results.glob(f"*-{name}-cpu.json")):
            file = f"benchmarks/results/{files[-1]}"
            blocks[name] = Block(row.document, (file,), of_one(row.write))
    return blocks


TABLES: Mapping[str, Block] = {
    "demo": Block(
        "README.md",
        (
            "benchmarks/results/2026-11-22-docs-demo-cpu.json",
            "benchmarks/results/2026-11-22-docs-demo-three-layers-cpu.json",
        ),
        demo_reading,
    ),
    "results": Block("README.md", (SST2,), of_one(short_block)),
    "compress-short": Block("README.md", COMPRESSION, short_compress_block),
    "compress": Block("docs/compressing.md", COMPRESSION, compress_block),
    "sst2": Block("docs/results.md", (SST2,), of_one(comparison_block)),
    "bert-base": Block(
        "docs/results.md",
        ("benchmarks/results/2026-11-23-sst2-bert-base-cpu.json",),
        of_one(comparison_block),
    ),
    "bert-base-sentences": Block(
        "docs/results.md",
        ("benchmarks/results/2026-11-23-sst2-bert-base-sentences-cpu.json",),
        of_one(comparison_block),
    ),
    "vocabulary": Block(
        "docs/results.md",
        ("benchmarks/results/2026-11-23-sst2-vocabulary-cpu.json",),
        of_one(students_block),
    ),
    "methods": Block(
        "docs/methods.md",
        (
            "benchmarks/results/2026-11-22-sst2-methods-cpu.json",
            "benchmarks/results/2026-11-21-mrpc-methods-cpu.json",
            "benchmarks/results/2026-11-21-cola-methods-cpu.json",
            "benchmarks/results/2026-11-21-sst2-methods-cpu.json",
        ),
        method_block,
    ),
    "controls": Block(
        "docs/methods.md",
        tuple(
            f"benchmarks/results/2026-11-23-{name}-controls-cpu.json"
            for name in ("sst2", "cola", "mrpc", "rte", "snips", "ag-news")
        ),
        control_block,
    ),
    "few-labels": Block(
        "docs/methods.md",
        tuple(
            f"benchmarks/results/2026-11-24-{name}-few-labels-cpu.json"
            for name in ("sst2", "cola", "mrpc", "rte", "snips", "ag-news")
        ),
        control_block,
    ),
    "training": Block(
        "docs/methods.md",
        ("benchmarks/results/2026-11-22-sst2-training-pools-cpu.json",),
        of_one(training_block),
    ),
    "tagging": Block(
        "docs/methods.md",
        ("benchmarks/results/2026-11-21-snips-slots-cpu.json",),
        of_one(tagging_block),
    ),
    "fusion": Block(
        "docs/export.md",
        ("benchmarks/results/2026-11-23-sst2-fusion-cpu.json",),
        of_one(fusion_block),
    ),
    "runtimes": Block(
        "docs/comparing.md",
        (
            "benchmarks/results/2026-11-24-sst2-deep-runtimes-cpu.json",
            "benchmarks/results/2026-11-24-sst2-runtimes-cpu.json",
            "benchmarks/results/2026-11-23-sst2-runtimes-cpu.json",
        ),
        runtime_block,
    ),
    "runtimes-avx2": Block(
        "docs/comparing.md",
        ("benchmarks/results/2026-11-24-sst2-avx2-runtimes-cpu.json",),
        runtime_block,
    ),
    "pruning": Block(
        "docs/pruning.md",
        tuple(PICTURES.values()),
        pruning_block,
    ),
    "quantization": Block(
        "docs/quantization.md",
        (
            "benchmarks/results/2026-11-22-sst2-quantization-cpu.json",
            "benchmarks/results/2026-11-22-mrpc-quantization-cpu.json",
            "benchmarks/results/2026-11-22-cola-quantization-cpu.json",
        ),
        quantization_block,
    ),
    "few-bits": Block(
        "docs/quantization.md",
        ("benchmarks/results/2026-11-24-sst2-few-bits-cpu.json",),
        of_one(students_block),
    ),
    "chain": Block(
        "docs/pruning.md",
        ("benchmarks/results/2026-11-22-sst2-chain-cpu.json",),
        of_one(comparison_block),
    ),
    "pretraining-memory": Block(
        "docs/pretraining.md",
        ("benchmarks/results/2026-11-21-pretraining-memory-cpu.json",),
        of_one(memory_block),
    ),
    "step-memory": Block(
        "docs/resources.md",
        ("benchmarks/results/2026-11-22-docs-step-memory-cpu.json",),
        of_one(step_memory_block),
    ),
    "commands": Block("docs/reference.md", (), commands_block),
    "advisories": Block("docs/serving.md", (), advisories_block),
    "advice": Block("docs/choosing.md", (), advice_block),
    "lint-rules": Block("docs/serving.md", (), lint_rules_block),
    "api": Block("docs/api.md", (), api_block),
    "tolerances": Block("docs/gate.md", (), tolerances_block),
    "gate-bounds": Block("docs/quantization.md", (), bounds_block),
    "gate": Block(
        "docs/quantization.md",
        (
            "benchmarks/results/2026-11-22-sst2-gate-cpu.json",
            "benchmarks/results/2026-11-22-docs-gate-cpu.json",
            "benchmarks/results/2026-11-22-mrpc-gate-cpu.json",
            "benchmarks/results/2026-11-22-cola-gate-cpu.json",
        ),
        gate_block,
    ),
    **newest_blocks(),
}
"""Marked parts that show what was measured."""


def reading_blocks() -> dict[str, Block]:
    """Return the words under the tables, made from the same files as these and a few more."""
    return {
        f"{name}-reading": Block(
            TABLES[name].document,
            (
                *TABLES[name].files,
                *row.further_files,
                *(file for table in row.further_tables for file in TABLES[table].files),
            ),
            row.write,
        )
        for name, row in READINGS.items()
    }


BLOCKS: Mapping[str, Block] = {
    **TABLES,
    **reading_blocks(),
    "teachers": Block(
        "benchmarks/README.md",
        ("benchmarks/results/2026-11-21-sst2-teachers-cpu.json",),
        teachers_reading,
    ),
}
"""Everything in the documents that is made from raw results."""
