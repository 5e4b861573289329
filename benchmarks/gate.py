"""How often the gate is wrong: sound candidates refused, planted faults let pass.

Each teacher is exported and quantized by every row of VARIANTS; each fault of FAULTS is planted in
some of them. A candidate is judged by every check that `export` and `quantize` have, without their
raising. No bound was chosen on a teacher that is read here.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import onnx
import typer
from scipy.stats import binomtest

from benchmarks.cells import DASH, Table
from benchmarks.faults import FAULTS, Fault, kind_of, planted, saturating
from benchmarks.harness import Out, Row, Run, Work, names_in, recorded, save_runs
from benchmarks.making import made_of
from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.gate.config import PARITY_TEXTS
from bertender.gate.judge import TOLERANCES, check_parity, labelled_sample
from bertender.models.classifier import Classifier, onnx_file, open_classifier
from bertender.models.graphs import save_graph
from bertender.models.onnx_session import MOST_MB, ONNX_NAME
from bertender.models.runtimes import RUNTIMES, Predictor
from bertender.recipes.recorded_task import recorded_task
from bertender.tasks.task import Task
from bertender.text.batch import Batch
from export.config import ExportConfig
from export.exporter import export
from quantize import product_check
from quantize.config import SCHEMES, QuantizeConfig
from quantize.context import QuantizationContext
from quantize.graph import run_subgraph
from quantize.graph_check import PROBED_TEXTS, check_float_nodes, compare_float_nodes
from quantize.integers import CALIBRATORS, TARGETS
from quantize.quantizer import WRITERS, Fit
from quantize.smoothing import smoothed_like

VARIANTS: Mapping[str, dict[str, Any]] = {
    "float32": {},
    "dynamic": {"scheme": "dynamic"},
    **{f"static-{name}": {"scheme": "static", "calibrator": name} for name in CALIBRATORS},
    "mixed": {"scheme": "mixed", "max_drop": 1.0, "sensitivity_texts": 64},
    "four-bit-embeddings": {"scheme": "four-bit-embeddings"},
    "four-bit": {"scheme": "four-bit"},
}
"""Name -> the settings of its quantization; the float graph has none."""
CHECK_TITLES = {
    "rest": "graph besides products",
    "products": "8-bit products",
    "inputs": "texts read",
    "median_difference_low": "median_difference",
}
"""Check, as records name it -> as the table does."""


def run(
    teachers: Annotated[list[Path], typer.Argument(help="artifacts of torch classifiers")],
    work: Work,
    out: Out = None,
    sound: Annotated[bool, typer.Option(help="or planted faults alone")] = True,
    faults: Annotated[bool, typer.Option(help="or sound candidates alone")] = True,
    variants: Annotated[str, typer.Option(help="by commas; all by default")] = "",
) -> None:
    """Judge every candidate of every teacher."""
    chosen = names_in("--variants", variants, VARIANTS)
    runs = []
    for path in teachers:
        subject = Subject.of(path, work)
        rows = [judged(subject, variant, None) for variant in chosen if sound]
        for name, fault in FAULTS.items() if faults else ():
            if subject.can_have(fault):
                able = [variant for variant in fault.variants if variant in chosen]
                rows += [judged(subject, variant, name) for variant in able]
        runs.append(recorded("gate", rows, model=subject.name))
    save_runs(runs, out)


class Remembering:
    """A predictor that runs once for a batch: all candidates have one reference."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.known: dict[bytes, npt.NDArray[np.float32]] = {}

    def logits(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Return the logits (batch, labels) of a batch, computed once."""
        read = hashlib.sha256()
        for name, array in sorted(batch.arrays.items()):
            read.update(f"{name} {array.dtype.str} {array.shape}".encode() + array.tobytes())
        key = read.digest()
        if key not in self.known:
            self.known[key] = self.predictor.logits(batch)
            self.known[key].setflags(write=False)
        return self.known[key]


def remembering(artifact: Artifact) -> Classifier:
    """Open a reference."""
    found = open_classifier(artifact)
    return replace(found, predictor=Remembering(found.predictor))


@dataclass(frozen=True)
class Subject:
    """A teacher's export, and its task."""

    name: str
    teacher: Artifact
    source: Artifact
    task: Task
    folder: Path

    @classmethod
    def of(cls, teacher: Path, work: Path) -> Subject:
        """Export a teacher, unless its export is there."""
        artifact, folder = Artifact.load(teacher), work / teacher.name
        task = recorded_task(artifact, {})
        source = made_of(artifact, task, export, ExportConfig(), folder / "float32")
        return cls(teacher.name, artifact, source, task, folder)

    @cached_property
    def reference(self) -> Classifier:
        return remembering(self.source)

    @cached_property
    def torch(self) -> Classifier:
        return remembering(self.teacher)

    def can_have(self, fault: Fault) -> bool:
        """Return whether a fault can be planted: single texts have no second one, some models read
        no token types, and answers are of one kind."""
        graph = onnx.load(onnx_file(self.source), load_external_data=False).graph
        pairs = len(self.task.text_columns) > 1
        inputs = [each.name for each in graph.input]
        return (
            (pairs or not fault.pairs_only)
            and fault.reads in (None, *inputs)
            and fault.problem in (None, kind_of(self.task.problem))
        )

    def context(self, settings: dict[str, Any], graph: Path) -> QuantizationContext:
        config, folder, target = QuantizeConfig(**settings), self.folder, TARGETS["vnni"]
        opened = open_classifier(self.source)
        return QuantizationContext(
            self.source, self.task, config, target, graph, folder, folder, opened
        )

    def written(self, variant: str, fault: Fault | None, folder: Path) -> tuple[Path, Any]:
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
        if SCHEMES[settings["scheme"]].fitted:
            (target.parent / "fit").mkdir()
            context = Fit().applied(replace(context, folder=target.parent / "fit"))
        ranges = WRITERS[settings["scheme"]].write(context, target).ranges
        if fault is None or fault.product is None:
            return target, ranges
        products = context.inventory.products
        chosen = products[len(products) // 2]
        shape = (chosen.inputs, chosen.outputs)
        other = next(
            each for each in products if each != chosen and (each.inputs, each.outputs) == shape
        )
        faulty = target.with_name("faulty.onnx")
        return planted(target, fault.product, chosen, other, faulty), ranges


def judged(subject: Subject, variant: str, name: str | None) -> Row:
    """Judge a candidate by every check; a planted fault only until a check refuses it."""
    fault, scheme = FAULTS[name] if name else None, VARIANTS[variant].get("scheme")
    precision = QuantizeConfig(**VARIANTS[variant]).graph_precision if scheme else "float32"
    reference = subject.reference if scheme else subject.torch
    examples, truth = labelled_sample(subject.task, subject.task.choices, PARITY_TEXTS, 0)
    with TemporaryDirectory(dir=subject.folder) as folder:
        graph, ranges = subject.written(variant, fault, Path(folder))
        candidate = replace(
            subject.reference, name=variant, predictor=RUNTIMES["onnxruntime"].open(graph)
        )
        if fault and fault.classifier:
            candidate = fault.classifier(candidate)
        of_graph = _refusals(subject, graph, ranges, fault) if ranges is not None else iter(())
        refused = [*of_graph] if fault is None else [*filter(None, [next(of_graph, "")])]
        tolerance = TOLERANCES[precision]
        parity = check_parity(reference, candidate, examples, tolerance, truth=truth)
        failures = [failure.split()[0].rstrip(":,") for failure in parity.failures]
        refused = (refused + failures)[: 1 if fault else None]
    print(f"{subject.name} {variant} {name or 'sound'}: {refused or 'passed'}")
    return {
        "teacher": subject.name,
        "variant": variant,
        "fault": name,
        "refused_by": refused,
    }


def _refusals(subject: Subject, graph: Path, ranges: Any, fault: Fault | None) -> Iterator[str]:
    """Yield the checks that refuse a quantized graph, by the graph alone."""
    floats = smoothed_like(onnx_file(subject.source), graph, graph.parent)
    texts = subject.context({"scheme": "dynamic"}, floats).texts(PROBED_TEXTS, "check")
    run_product = saturating if fault and fault.saturates else run_subgraph
    parts = product_check.find_parts(floats, graph)
    samples = product_check.sample_rows(graph, parts, texts)
    checks: Mapping[str, Callable[[], object]] = {
        "products": lambda: product_check.check_products(
            product_check.compare_products(parts, samples, ranges)
        ),
        "rest": lambda: check_float_nodes(compare_float_nodes(floats, graph, texts)),
        "saturation": lambda: product_check.check_sums(parts, samples, run_product),
    }
    for name, check in checks.items():
        try:
            check()
        except ModelError:
            yield name


def table(runs: Sequence[Run]) -> Table:
    """Sound candidates refused, and planted faults caught, by kind."""
    found = [row for run in runs for row in run.rows]
    sound = [row for row in found if row["fault"] is None]
    rows = []
    for variant in dict.fromkeys(row["variant"] for row in sound):
        own = [row for row in sound if row["variant"] == variant]
        rows.append([f"sound, `{variant}`", *_counted(own)])
    faulty = [row for row in found if row["fault"] is not None]
    for group in dict.fromkeys(fault.group for fault in FAULTS.values()):
        own = [row for row in faulty if FAULTS[row["fault"]].group == group]
        if own:  # each kind of problem has faults of its own
            rows.append([f"fault: {group}", *_counted(own)])
    models = len({row["teacher"] for row in found})
    note = (
        f"{models} models of 5 data sets. Of {len(sound)} sound candidates {_share(sound)} were "
        f"refused, of {len(faulty)} planted faults {_share(faulty)}; brackets are 95 % intervals."
    )
    return Table(["Candidate or planted fault", "Tried", "Refused", "By"], rows, note)


def _counted(rows: Sequence[Row]) -> list[str]:
    refused = [row for row in rows if row["refused_by"]]
    names = [row["refused_by"][0] for row in refused]
    titles = Counter(CHECK_TITLES.get(name, name) for name in names)
    listed = [f"{title} ({count})" for title, count in titles.most_common()]
    return [str(len(rows)), str(len(refused)), ", ".join(listed) or DASH]


def _share(rows: Sequence[Row]) -> str:
    refused = sum(bool(row["refused_by"]) for row in rows)
    low, high = binomtest(refused, len(rows)).proportion_ci(method="wilson")
    return f"{100 * refused / len(rows):.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
