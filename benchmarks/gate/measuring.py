"""Runs the gate on sound candidates and on planted faults, and counts where it is wrong.

    python -m benchmarks.gate TEACHER... --work DIR --out FILE.json [--no-sound | --no-faults]
        [--variants A,B]

Each teacher is exported and quantized by every row of VARIANTS; each fault of FAULTS is planted in
some of them. A candidate is judged by every check that `export` and `quantize` have, without their
raising. A fault counts as caught by the first check that refuses it; the checks of the logits are
asked in any case, since they alone see what a machine does wrong with a sound graph. No bound was
chosen on a teacher that is read here. A call continues where an earlier one of the same `--out` has
stopped.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks.common.options import names_in
from benchmarks.common.resuming import continued
from benchmarks.gate.faults import FAULTS, Fault
from benchmarks.gate.records import GateBenchmark, Judged
from benchmarks.gate.saturating import saturating
from benchmarks.gate.subject import VARIANTS, Ranges, Subject, subject_of
from bertender.comparison.accuracy import evaluate
from bertender.core.errors import ModelError
from bertender.core.files import save_result
from bertender.core.machine import environment
from bertender.core.progress import show_progress
from bertender.gate.config import PARITY_TEXTS
from bertender.gate.figures import CHECKS, Figures
from bertender.gate.judge import Parity, check_parity, labelled_sample
from bertender.gate.tolerances import TOLERANCES
from bertender.metrics.resampling import Change, LabelSet
from bertender.metrics.scores import paired_change
from bertender.models.opening import onnx_file
from bertender.models.predictor import Classifier
from bertender.models.runtimes import RUNTIMES
from quantize.graph import run_cut
from quantize.graph_check import check_rest, compare_rest
from quantize.kernels import probe
from quantize.product_check import (
    Sample,
    Twins,
    check_products,
    find_twins,
    judge_products,
    sample_rows,
)
from quantize.quantize_config import QuantizeConfig
from quantize.quantizer import PROBED_TEXTS
from quantize.schemes import SCHEMES

__all__ = ["judged", "run", "started"]

FIGURES = frozenset(check.figure for check in CHECKS)
"""Checks of the logits; others of the parity gate are of inputs and labels."""


def judged(subject: Subject, variant: str, name: str | None) -> Judged:
    """Judge a candidate by every check; of a fault, by those of the graph until one refuses it."""
    fault = FAULTS[name] if name else None
    with TemporaryDirectory(dir=subject.folder) as folder:
        graph, ranges = subject.written(variant, fault, Path(folder))
        candidate = replace(
            subject.reference, name=variant, predictor=RUNTIMES["onnxruntime"].open(graph)
        )
        if fault and fault.classifier:
            candidate = fault.classifier(candidate)
        of_graph = _refusals_of_graph(subject, graph, ranges, fault) if ranges is not None else ()
        by_graph = tuple(itertools.islice(of_graph, 1 if fault else None))
        parity = _parity_of(subject, variant, candidate)
        others = tuple(failure.split()[0].rstrip(":,") for failure in parity.failures)
        refused = (*by_graph, *others)[: 1 if fault else None]
        # a fault that was caught needs no further proof
        change = None if fault and refused else _change(subject, candidate)
    return Judged(
        teacher=subject.name,
        variant=variant,
        fault=name,
        refused_by=refused,
        refused_by_logits=tuple(name for name in others if name in FIGURES),
        figures=Figures(**{each: getattr(parity, each) for each in Figures.model_fields}),
        change=change,
    )


def _parity_of(subject: Subject, variant: str, candidate: Classifier) -> Parity:
    """Return what the parity gate finds of a candidate."""
    reference = subject.reference if "scheme" in VARIANTS[variant] else subject.torch
    examples, truth = labelled_sample(subject.task, subject.task.choices, PARITY_TEXTS, 0)
    tolerance = TOLERANCES[_precision(variant)]
    return check_parity(reference, candidate, examples, tolerance, truth=truth)


def _precision(variant: str) -> str:
    settings = VARIANTS[variant]
    scheme = settings.get("scheme")
    return SCHEMES[scheme].precision(QuantizeConfig(**settings)) if scheme else "float32"


def _refusals_of_graph(
    subject: Subject, graph: Path, ranges: Ranges, fault: Fault | None
) -> Iterator[str]:
    """Yield the checks that refuse a quantized graph, by the graph alone."""
    floats = onnx_file(subject.source)
    texts = subject.context({"scheme": "dynamic"}, floats).texts(PROBED_TEXTS, "check")
    run = saturating if fault and fault.saturates else run_cut

    @cache
    def parts() -> tuple[Sequence[Twins], Mapping[str, Sample]]:
        twins = find_twins(floats, graph)
        return twins, sample_rows(graph, twins, texts)

    checks: Mapping[str, Callable[[], object]] = {
        "products": lambda: check_products(judge_products(*parts(), ranges)),
        "rest": lambda: check_rest(compare_rest(floats, graph, texts)),
        "saturation": lambda: probe(*parts(), run),
    }
    for name, check in checks.items():
        try:
            check()
        except ModelError:
            yield name


def _change(subject: Subject, candidate: Classifier) -> Change:
    """Return what the candidate's score gains over the reference's, on all held-out texts."""
    task = subject.task
    first, second = (
        evaluate(each, task.dev, task.metric)[1] for each in (subject.reference, candidate)
    )
    return paired_change(task.metric, task.dev.label_ids, first, second, LabelSet(len(task.labels)))


def _asked(
    subject: Subject, variants: Sequence[str], sound: bool, faults: bool
) -> Iterator[tuple[str, str | None]]:
    """Yield each candidate, as a variant and a fault."""
    yield from ((variant, None) for variant in variants if sound)
    for name, fault in FAULTS.items() if faults else ():
        if subject.can_have(fault):
            yield from ((variant, name) for variant in fault.variants if variant in variants)


def run(
    teachers: Annotated[list[Path], typer.Argument(help="artifacts of torch classifiers")],
    work: Annotated[Path, typer.Option(help="where the exports stay")],
    out: Annotated[Path, typer.Option(help="the JSON to write, and to go on from")],
    sound: Annotated[bool, typer.Option(help="or planted faults alone")] = True,
    faults: Annotated[bool, typer.Option(help="or sound candidates alone")] = True,
    variants: Annotated[str, typer.Option(help="by commas; all by default")] = "",
) -> None:
    """Judge every candidate of every teacher and write the JSON as each is done."""
    show_progress()
    chosen = names_in("--variants", variants, VARIANTS) or [*VARIANTS]
    for name in chosen:
        VARIANTS[name]  # an unknown name is an error before the first model is made
    benchmark = continued(started(), out, "candidates")
    done = {(each.teacher, each.variant, each.fault) for each in benchmark.candidates}
    for teacher in teachers:
        subject = subject_of(teacher, work)
        for variant, fault in _asked(subject, chosen, sound, faults):
            if (subject.name, variant, fault) in done:
                continue
            row = judged(subject, variant, fault)
            typer.echo(f"{row.teacher} {variant} {fault or 'sound'}: {row.refused_by or 'passed'}")
            benchmark = _with(benchmark, row)
            save_result(benchmark, out)


def started() -> GateBenchmark:
    """Return the record of this machine and gate, without candidates."""
    bounds = {name: TOLERANCES[name] for name in sorted({_precision(each) for each in VARIANTS})}
    return GateBenchmark(environment=environment(), bounds=bounds, candidates=())


def _with(benchmark: GateBenchmark, row: Judged) -> GateBenchmark:
    rows: Sequence[Judged] = (*benchmark.candidates, row)
    return benchmark.model_copy(update={"candidates": tuple(rows)})
