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

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import onnx
import typer
from pydantic import Field

from benchmarks.common.making import made_once
from benchmarks.common.resuming import continued
from benchmarks.gate.faults import FAULTS, Fault
from benchmarks.gate.product_faults import planted
from benchmarks.gate.saturating import saturating
from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.environment import Environment, environment
from bertender.core.errors import ModelError
from bertender.core.progress import show_progress
from bertender.core.saving import save_result
from bertender.core.table import Table
from bertender.measure.accuracy import evaluate
from bertender.measure.parity import (
    PARITY_TEXTS,
    TOLERANCES,
    Parity,
    check_parity,
    labelled_sample,
)
from bertender.measure.parity_checks import CHECKS, Figures
from bertender.metrics.changes import paired_change
from bertender.metrics.records import Change, LabelSet
from bertender.models.graph_file import MOST_MB, save_graph
from bertender.models.onnx_predictor import ONNX_NAME, OnnxPredictor
from bertender.models.opening import onnx_file, open_classifier
from bertender.models.predictor import Classifier, Predictor
from bertender.pipeline.recorded_task import recorded_task
from bertender.pipeline.stages import STAGES
from bertender.tasks.task import Task
from bertender.text.batch import Batch
from quantize.calibrators import Range
from quantize.context import QuantizationContext
from quantize.cuts import run_cut
from quantize.part_findings import check_products
from quantize.products import judge_products
from quantize.proof import PROBED_TEXTS
from quantize.quantizer import QuantizeConfig
from quantize.rest import check_rest, compare_rest
from quantize.saturation import probe
from quantize.schemes import SCHEMES
from quantize.targets import TARGETS
from quantize.twins import Sample, Twins, find_twins, sample_rows

__all__ = ["VARIANTS", "GateBenchmark", "Judged", "run", "subject_of"]

Ranges = Mapping[str, Range]
FloatArray = npt.NDArray[np.float32]

VARIANTS: Table[dict[str, Any]] = Table(
    "variant",
    {
        "float32": {},
        "dynamic": {"scheme": "dynamic"},
        "static-mse": {"scheme": "static", "calibrator": "mse"},
        "static-minmax": {"scheme": "static", "calibrator": "minmax"},
        "static-percentile": {"scheme": "static", "calibrator": "percentile"},
        "static-entropy": {"scheme": "static", "calibrator": "entropy"},
        "mixed": {"scheme": "mixed", "max_drop": 1.0, "sensitivity_texts": 64},
        "four-bit-embeddings": {"scheme": "four-bit-embeddings"},
        "four-bit": {"scheme": "four-bit"},
    },
)
"""Name -> the settings of its quantization; the float graph has none."""


FIGURES = frozenset(check.figure for check in CHECKS)
"""Checks of the logits; others of the parity gate are of inputs and labels."""


class Judged(Record):
    """A candidate and the gate's findings of it."""

    teacher: str
    variant: str = Field(description="a row of VARIANTS")
    fault: str | None = Field(description="a row of FAULTS; None of a sound candidate")
    refused_by: tuple[str, ...] = Field(
        description="every check that refused it; of a fault the first alone"
    )
    refused_by_logits: tuple[str, ...] | None = Field(
        None, description="every check of the logits that did; None in older results"
    )
    figures: Figures | None = Field(
        None, description="what the checks of the logits judge; None in older results"
    )
    change: Change | None = Field(
        description="of the score on all held-out texts, where it was asked"
    )


class GateBenchmark(Record):
    """Every candidate, judged."""

    environment: Environment
    candidates: tuple[Judged, ...]


class Cached:
    """A predictor of token arrays that runs once for a batch: all candidates have one reference."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.known: dict[bytes, FloatArray] = {}

    def logits(self, batch: Batch) -> FloatArray:
        """Return the logits (batch, labels) of a batch, computed now or before."""
        key = b"".join(
            f"{name} {array.dtype.str} {array.shape}".encode() + array.tobytes()
            for name, array in sorted(batch.arrays.items())
        )
        digest = hashlib.sha256(key).digest()
        if digest not in self.known:
            self.known[digest] = self.predictor.logits(batch)
            self.known[digest].setflags(write=False)
        return self.known[digest]


@dataclass(frozen=True)
class Subject:
    """A teacher's export, and its task."""

    name: str
    teacher: Artifact
    source: Artifact
    task: Task
    folder: Path

    @cached_property
    def reference(self) -> Classifier:
        return _cached(open_classifier(self.source))

    @cached_property
    def torch(self) -> Classifier:
        return _cached(open_classifier(self.teacher))

    def can_have(self, fault: Fault) -> bool:
        """Return whether a fault can be planted: single texts have no second one, and some models
        read no token types."""
        pairs = len(self.task.text_columns) > 1
        return (pairs or not fault.pairs_only) and fault.reads <= self._inputs

    @cached_property
    def _inputs(self) -> set[str]:
        """Inputs of the float graph."""
        graph = onnx.load(onnx_file(self.source), load_external_data=False).graph
        return {each.name for each in graph.input}

    def context(self, settings: dict[str, Any], graph: Path) -> QuantizationContext:
        config, folder = QuantizeConfig(**settings), self.folder
        return QuantizationContext(
            self.source, graph, folder, self.task, config, TARGETS["vnni"], folder
        )

    def written(
        self, variant: str, fault: Fault | None, folder: Path
    ) -> tuple[Path, Ranges | None]:
        """Write a variant's graph, from the float one with a fault planted in it, if one is.

        Returns:
            The graph, and the ranges that its static activations shall have; None of a float one.
        """
        graph = onnx_file(self.source)
        if fault and fault.graph:
            model = onnx.load(graph)
            fault.graph(model)
            graph = folder / "planted.onnx"
            save_graph(model, graph, MOST_MB)
        if variant == "float32":
            return graph, None
        settings, target = VARIANTS[variant], folder / ONNX_NAME
        context = self.context(settings, graph)
        ranges = SCHEMES[settings["scheme"]].write(context, target).ranges
        return planted_in(context, target, fault) if fault else target, ranges


def _cached(classifier: Classifier) -> Classifier:
    return replace(classifier, predictor=Cached(classifier.predictor))


def planted_in(context: QuantizationContext, graph: Path, fault: Fault) -> Path:
    """Plant a fault in the quantized graph at the product in its middle; others are left alone."""
    if fault.product is None:
        return graph
    products = context.inventory.products
    chosen = products[len(products) // 2]
    shape = (chosen.inputs, chosen.outputs)
    other = next(
        each for each in products if each != chosen and (each.inputs, each.outputs) == shape
    )
    return planted(graph, fault.product, chosen, other, graph.with_name("faulty.onnx"))


def judged(subject: Subject, variant: str, name: str | None) -> Judged:
    """Judge a candidate by every check; of a fault, by those of the graph until one refuses it."""
    fault = FAULTS[name] if name else None
    with TemporaryDirectory(dir=subject.folder) as folder:
        graph, ranges = subject.written(variant, fault, Path(folder))
        candidate = replace(subject.reference, name=variant, predictor=OnnxPredictor(graph))
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
    settings = VARIANTS[variant]
    scheme = settings.get("scheme")
    precision = SCHEMES[scheme].precision(QuantizeConfig(**settings)) if scheme else "float32"
    reference = subject.reference if scheme else subject.torch
    examples, truth = labelled_sample(subject.task, subject.task.choices, PARITY_TEXTS, 0)
    return check_parity(reference, candidate, examples, TOLERANCES[precision], truth=truth)


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


def subject_of(teacher: Path, work: Path) -> Subject:
    artifact = Artifact.load(teacher)
    task, folder = recorded_task(artifact, {}), work / teacher.name
    out = folder / "float32"
    config = STAGES["export"].config()
    folder.mkdir(parents=True, exist_ok=True)
    export = partial(STAGES["export"].make, [artifact], task)
    source = made_once(out, config, task, artifact, export)
    return Subject(teacher.name, artifact, source, task, folder)


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
    asked = (name.strip() for name in variants.split(","))
    chosen = [*dict.fromkeys(filter(None, asked))] or [*VARIANTS]
    for name in chosen:
        VARIANTS[name]  # an unknown name is an error before the first model is made
    benchmark = continued(
        GateBenchmark(environment=environment(), candidates=()), out, "candidates"
    )
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


def _with(benchmark: GateBenchmark, row: Judged) -> GateBenchmark:
    rows: Sequence[Judged] = (*benchmark.candidates, row)
    return benchmark.model_copy(update={"candidates": tuple(rows)})
