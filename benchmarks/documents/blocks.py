"""BLOCKS: the marked parts of the documents, and the raw results that each is made from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchmarks.compression.table import compression_block
from benchmarks.controls.table import control_block
from benchmarks.documents.advice_table import advice_block
from benchmarks.documents.advisory_table import advisories_block
from benchmarks.documents.api_page import api_block
from benchmarks.documents.block import RESULTS, Block, of_each, of_one
from benchmarks.documents.command_table import commands_block
from benchmarks.documents.comparison_block import comparison_block, short_block
from benchmarks.documents.compress_block import compress_block, short_compress_block
from benchmarks.documents.lint_rule_table import lint_rules_block
from benchmarks.documents.newest import newest_blocks
from benchmarks.documents.readings import READINGS
from benchmarks.documents.readings.teachers import teachers_reading
from benchmarks.documents.tolerance_table import tolerances_block
from benchmarks.float_parity.table import float_parity_block, verified_block
from benchmarks.fusion.table import fusion_block, fusion_profile_block
from benchmarks.gate.table import bounds_block, gate_block
from benchmarks.methods.table import method_block
from benchmarks.pretraining_memory.table import memory_block
from benchmarks.profiles.table import profile_block
from benchmarks.pruning.curve import pruning_block
from benchmarks.quantization.table import quantization_block
from benchmarks.runtimes.table import runtime_block
from benchmarks.serving.gpu_table import gpu_servers_block
from benchmarks.serving.table import serving_block
from benchmarks.step_memory.table import step_memory_block
from benchmarks.students.start_table import start_layers_block
from benchmarks.students.table import students_block
from benchmarks.tagging.table import tagging_block
from benchmarks.training.table import training_block

__all__ = ["BLOCKS", "PICTURES", "TABLES", "reading_blocks"]

COMPRESSION = (
    "2026-11-23-sst2-bert-base-compress-cpu.json",
    "2026-11-23-sst2-bert-base-compress-table-cpu.json",
)
"""The report of a compression, and its table."""
SST2 = "2026-11-23-sst2-cpu-ort1.31.1.json"
"""The comparison that the README shows a part of."""
AMX_FUSION = "2026-11-26-sst2-fusion-cpu.json"
"""Fused graphs where AMX is there."""
VNNI_FUSION = "2026-11-26-sst2-vnni-fusion-cpu.json"
"""Fused graphs where AMX is denied."""
NO_AMX_FUSION = "2026-11-26-sst2-no-amx-fusion-cpu.json"
"""Fused graphs on a CPU without AMX."""
THREE_SETS = ("sst2", "mrpc", "cola")

PICTURES: Mapping[str, str] = {
    f"docs/pruning-{task}.svg": f"{RESULTS}/2026-11-22-{task}-pruning-cpu.json"
    for task in THREE_SETS
}
"""Curves, and the raw results that they are drawn from."""


def _table(document: str, write: Callable[[Mapping[str, Path]], str], *results: str) -> Block:
    """Return a block of raw results by the names of their files."""
    return Block(document, tuple(f"{RESULTS}/{name}" for name in results), write)


def _of_six_sets(day: str, name: str) -> Iterator[str]:
    for task in ("sst2", "cola", "mrpc", "rte", "snips", "ag-news"):
        yield f"{day}-{task}-{name}-cpu.json"


TABLES: Mapping[str, Block] = {
    "results": _table("README.md", of_one(short_block), SST2),
    "compress-short": _table("README.md", short_compress_block, *COMPRESSION),
    "compress": _table("docs/compressing.md", compress_block, *COMPRESSION),
    "sst2": _table("docs/results.md", of_one(comparison_block), SST2),
    "bert-base": _table(
        "docs/results.md", of_one(comparison_block), "2026-11-23-sst2-bert-base-cpu.json"
    ),
    "bert-base-sentences": _table(
        "docs/results.md", of_one(comparison_block), "2026-11-23-sst2-bert-base-sentences-cpu.json"
    ),
    "seeds": _table("docs/results.md", of_one(students_block), "2026-11-25-sst2-seeds-cpu.json"),
    "bert-base-seeds": _table(
        "docs/results.md", of_one(comparison_block), "2026-11-25-sst2-bert-base-cpu.json"
    ),
    "vocabulary": _table(
        "docs/results.md", of_one(students_block), "2026-11-23-sst2-vocabulary-cpu.json"
    ),
    "methods": _table(
        "docs/methods.md",
        method_block,
        "2026-11-22-sst2-methods-cpu.json",
        "2026-11-21-mrpc-methods-cpu.json",
        "2026-11-21-cola-methods-cpu.json",
        "2026-11-21-sst2-methods-cpu.json",
    ),
    "controls": _table("docs/methods.md", control_block, *_of_six_sets("2026-11-23", "controls")),
    "few-labels": _table(
        "docs/methods.md", control_block, *_of_six_sets("2026-11-25", "few-labels")
    ),
    "few-labels-first": _table(
        "docs/methods.md", control_block, *_of_six_sets("2026-11-24", "few-labels")
    ),
    "sst2-compression-first": _table(
        "docs/systems.md", of_one(compression_block), "2026-11-26-sst2-compression-cpu.json"
    ),
    "first-layers": _table(
        "docs/systems.md",
        start_layers_block,
        "2026-11-27-sst2-own-class-cpu.json",
        "2026-11-27-cola-own-class-cpu.json",
        "2026-11-27-mrpc-own-class-cpu.json",
        "2026-11-27-sst2-first-layers-deep-cpu.json",
        "2026-11-27-sst2-first-layers-three-cpu.json",
        "2026-11-27-sst2-first-layers-cpu.json",
        "2026-11-27-ag-news-first-layers-cpu.json",
        "2026-11-27-cola-first-layers-cpu.json",
    ),
    "training": _table(
        "docs/methods.md", of_one(training_block), "2026-11-22-sst2-training-pools-cpu.json"
    ),
    "tagging": _table("docs/methods.md", of_one(tagging_block), "2026-11-21-snips-slots-cpu.json"),
    "fusion": _table("docs/export.md", of_one(fusion_block), AMX_FUSION),
    "fusion-profile": _table("docs/export.md", of_one(fusion_profile_block), AMX_FUSION),
    "fusion-vnni": _table("docs/export.md", of_one(fusion_block), VNNI_FUSION),
    "fusion-vnni-profile": _table("docs/export.md", of_one(fusion_profile_block), VNNI_FUSION),
    "fusion-no-amx": _table("docs/export.md", of_one(fusion_block), NO_AMX_FUSION),
    "runtimes": _table(
        "docs/runtimes.md",
        runtime_block,
        "2026-11-24-sst2-deep-runtimes-cpu.json",
        "2026-11-24-sst2-runtimes-cpu.json",
        "2026-11-25-sst2-deep-runtimes-cpu.json",
        "2026-11-25-sst2-runtimes-cpu.json",
        "2026-11-26-sst2-no-amx-deep-runtimes-cpu.json",
        "2026-11-26-sst2-no-amx-runtimes-cpu.json",
        "2026-11-26-sst2-vnni-deep-runtimes-cpu.json",
        "2026-11-26-sst2-vnni-runtimes-cpu.json",
    ),
    "float-parity": _table(
        "docs/runtimes.md",
        of_one(float_parity_block),
        "2026-11-26-sst2-float-parity-both-cpu.json",
    ),
    "gpu-parity": _table(
        "docs/serving.md",
        verified_block,
        "2026-11-26-cola-float32-parity-h200.json",
        "2026-11-26-cola-float16-parity-h200.json",
    ),
    "gpu-servers": _table(
        "docs/serving.md",
        gpu_servers_block,
        "2026-11-26-sst2-serving-h200.json",
        "2026-11-26-sst2-serving-float16-h200.json",
    ),
    "runtimes-gpu": _table("docs/runtimes.md", runtime_block, "2026-11-26-sst2-runtimes-h200.json"),
    "runtimes-avx2": _table(
        "docs/runtimes.md", runtime_block, "2026-11-24-sst2-avx2-runtimes-cpu.json"
    ),
    "pruning": Block("docs/pruning.md", tuple(PICTURES.values()), pruning_block),
    "quantization": _table(
        "docs/quantization.md",
        quantization_block,
        *(f"2026-11-22-{task}-quantization-cpu.json" for task in THREE_SETS),
    ),
    "operators": _table(
        "docs/runtimes.md",
        of_each(profile_block),
        "2026-11-26-sst2-12-layers-vnni-operators-cpu.json",
        "2026-11-26-sst2-6-layers-vnni-operators-cpu.json",
        "2026-11-26-sst2-12-layers-operators-cpu.json",
        "2026-11-26-sst2-12-layers-no-amx-operators-cpu.json",
        "2026-11-26-sst2-6-layers-no-amx-operators-cpu.json",
    ),
    "static-servers": _table(
        "docs/serving.md",
        of_each(serving_block),
        "2026-11-26-sst2-static-servers-every-shape-cpu.json",
        "2026-11-26-sst2-static-servers-cpu.json",
    ),
    "few-bits": _table(
        "docs/quantization.md", of_one(students_block), "2026-11-24-sst2-few-bits-cpu.json"
    ),
    "bit-groups": _table(
        "docs/quantization.md", of_one(students_block), "2026-11-26-sst2-bit-groups-cpu.json"
    ),
    "chain": _table("docs/pruning.md", of_one(comparison_block), "2026-11-22-sst2-chain-cpu.json"),
    "pretraining-memory": _table(
        "docs/pretraining.md", of_one(memory_block), "2026-11-21-pretraining-memory-cpu.json"
    ),
    "step-memory": _table(
        "docs/resources.md", of_one(step_memory_block), "2026-11-22-docs-step-memory-cpu.json"
    ),
    "commands": _table("docs/reference.md", commands_block),
    "advisories": _table("docs/serving.md", advisories_block),
    "advice": _table("docs/choosing.md", advice_block),
    "lint-rules": _table("docs/serving.md", lint_rules_block),
    "api": _table("docs/api.md", api_block),
    "tolerances": _table("docs/gate.md", tolerances_block),
    "gate-bounds": _table("docs/quantization.md", bounds_block),
    "gate": _table(
        "docs/quantization.md",
        gate_block,
        "2026-11-22-sst2-gate-cpu.json",
        "2026-11-22-docs-gate-cpu.json",
        "2026-11-22-mrpc-gate-cpu.json",
        "2026-11-22-cola-gate-cpu.json",
    ),
    "gate-weak": _table("docs/quantization.md", gate_block, "2026-11-26-weak-gate-cpu.json"),
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
    "teachers": _table(
        "benchmarks/README.md", teachers_reading, "2026-11-21-sst2-teachers-cpu.json"
    ),
}
"""Everything in the documents that is made from raw results."""
