"""BLOCKS: the marked parts of the documents, and the raw results that each is made from."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.compression.table import compression_block
from benchmarks.controls.table import control_block
from benchmarks.documents.advice_table import advice_block
from benchmarks.documents.advisory_table import advisories_block
from benchmarks.documents.api_page import api_block
from benchmarks.documents.block import Block, of_each, of_one
from benchmarks.documents.command_table import commands_block
from benchmarks.documents.comparison_block import comparison_block, short_block
from benchmarks.documents.compress_block import compress_block, short_compress_block
from benchmarks.documents.lint_rule_table import lint_rules_block
from benchmarks.documents.newest import newest_blocks
from benchmarks.documents.readings import READINGS
from benchmarks.documents.readings.demo import demo_reading
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
from benchmarks.students.table import students_block
from benchmarks.tagging.table import tagging_block
from benchmarks.training.table import training_block

__all__ = ["BLOCKS", "PICTURES", "TABLES", "reading_blocks"]

COMPRESSION = (
    "benchmarks/results/2026-11-23-sst2-bert-base-compress-cpu.json",
    "benchmarks/results/2026-11-23-sst2-bert-base-compress-table-cpu.json",
)
"""The report of a compression, and its table."""
SST2 = "benchmarks/results/2026-11-23-sst2-cpu-ort1.31.1.json"
"""The comparison that the README shows a part of."""
AMX_FUSION = "benchmarks/results/2026-11-26-sst2-fusion-cpu.json"
"""Fused graphs where AMX is there."""
VNNI_FUSION = "benchmarks/results/2026-11-26-sst2-vnni-fusion-cpu.json"
"""Fused graphs where AMX is denied."""
NO_AMX_FUSION = "benchmarks/results/2026-11-26-sst2-no-amx-fusion-cpu.json"
"""Fused graphs on a CPU without AMX."""

PICTURES: Mapping[str, str] = {
    "docs/pruning-sst2.svg": "benchmarks/results/2026-11-22-sst2-pruning-cpu.json",
    "docs/pruning-mrpc.svg": "benchmarks/results/2026-11-22-mrpc-pruning-cpu.json",
    "docs/pruning-cola.svg": "benchmarks/results/2026-11-22-cola-pruning-cpu.json",
}
"""Curves, and the raw results that they are drawn from."""


def _of_six_sets(day: str, name: str) -> tuple[str, ...]:
    return tuple(
        f"benchmarks/results/{day}-{task}-{name}-cpu.json"
        for task in ("sst2", "cola", "mrpc", "rte", "snips", "ag-news")
    )


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
    "seeds": Block(
        "docs/results.md",
        ("benchmarks/results/2026-11-25-sst2-seeds-cpu.json",),
        of_one(students_block),
    ),
    "bert-base-seeds": Block(
        "docs/results.md",
        ("benchmarks/results/2026-11-25-sst2-bert-base-cpu.json",),
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
    "controls": Block("docs/methods.md", _of_six_sets("2026-11-23", "controls"), control_block),
    "few-labels": Block("docs/methods.md", _of_six_sets("2026-11-25", "few-labels"), control_block),
    "few-labels-first": Block(
        "docs/methods.md", _of_six_sets("2026-11-24", "few-labels"), control_block
    ),
    "sst2-compression-first": Block(
        "docs/systems.md",
        ("benchmarks/results/2026-11-26-sst2-compression-cpu.json",),
        of_one(compression_block),
    ),
    **{
        name: Block(
            "docs/systems.md",
            (f"benchmarks/results/2026-11-27-sst2-{name}-cpu.json",),
            of_one(students_block),
        )
        for name in ("first-layers-deep", "first-layers")
    },
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
    "fusion": Block("docs/export.md", (AMX_FUSION,), of_one(fusion_block)),
    "fusion-profile": Block("docs/export.md", (AMX_FUSION,), of_one(fusion_profile_block)),
    "fusion-vnni": Block("docs/export.md", (VNNI_FUSION,), of_one(fusion_block)),
    "fusion-vnni-profile": Block("docs/export.md", (VNNI_FUSION,), of_one(fusion_profile_block)),
    "fusion-no-amx": Block("docs/export.md", (NO_AMX_FUSION,), of_one(fusion_block)),
    "runtimes": Block(
        "docs/runtimes.md",
        (
            "benchmarks/results/2026-11-24-sst2-deep-runtimes-cpu.json",
            "benchmarks/results/2026-11-24-sst2-runtimes-cpu.json",
            "benchmarks/results/2026-11-25-sst2-deep-runtimes-cpu.json",
            "benchmarks/results/2026-11-25-sst2-runtimes-cpu.json",
            "benchmarks/results/2026-11-26-sst2-no-amx-deep-runtimes-cpu.json",
            "benchmarks/results/2026-11-26-sst2-no-amx-runtimes-cpu.json",
            "benchmarks/results/2026-11-26-sst2-vnni-deep-runtimes-cpu.json",
            "benchmarks/results/2026-11-26-sst2-vnni-runtimes-cpu.json",
        ),
        runtime_block,
    ),
    "float-parity": Block(
        "docs/runtimes.md",
        ("benchmarks/results/2026-11-26-sst2-float-parity-both-cpu.json",),
        of_one(float_parity_block),
    ),
    "gpu-parity": Block(
        "docs/serving.md",
        tuple(
            f"benchmarks/results/2026-11-26-cola-{precision}-parity-h200.json"
            for precision in ("float32", "float16")
        ),
        verified_block,
    ),
    "gpu-servers": Block(
        "docs/serving.md",
        (
            "benchmarks/results/2026-11-26-sst2-serving-h200.json",
            "benchmarks/results/2026-11-26-sst2-serving-float16-h200.json",
        ),
        gpu_servers_block,
    ),
    "runtimes-gpu": Block(
        "docs/runtimes.md",
        ("benchmarks/results/2026-11-26-sst2-runtimes-h200.json",),
        runtime_block,
    ),
    "runtimes-avx2": Block(
        "docs/runtimes.md",
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
    "operators": Block(
        "docs/runtimes.md",
        tuple(
            f"benchmarks/results/2026-11-26-sst2-{name}-operators-cpu.json"
            for name in (
                "12-layers-vnni",
                "6-layers-vnni",
                "12-layers",
                "12-layers-no-amx",
                "6-layers-no-amx",
            )
        ),
        of_each(profile_block),
    ),
    "static-servers": Block(
        "docs/serving.md",
        (
            "benchmarks/results/2026-11-26-sst2-static-servers-every-shape-cpu.json",
            "benchmarks/results/2026-11-26-sst2-static-servers-cpu.json",
        ),
        of_each(serving_block),
    ),
    "few-bits": Block(
        "docs/quantization.md",
        ("benchmarks/results/2026-11-24-sst2-few-bits-cpu.json",),
        of_one(students_block),
    ),
    "bit-groups": Block(
        "docs/quantization.md",
        ("benchmarks/results/2026-11-26-sst2-bit-groups-cpu.json",),
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
    "gate-weak": Block(
        "docs/quantization.md", ("benchmarks/results/2026-11-26-weak-gate-cpu.json",), gate_block
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
