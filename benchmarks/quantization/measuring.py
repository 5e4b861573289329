"""Quantizes a classifier by every scheme and calibrator, and measures all of them together.

    python -m benchmarks.quantization TEACHER --work DIR --out FILE.json [--epochs 1]

The models stay in `--work`; one that is there already is not made again, so that a first call
(`--no-measure`) may run on a busy machine and a last one measures on a quiet one. A scheme that
a gate refuses is a row with the reason. Latency is measured twice, interleaved in fresh processes:
on texts at their natural length, and on texts joined until they have 128 tokens; of one of the
latter ONNX Runtime's profile shows where the time goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import Field

from benchmarks.common.kernel_times import KernelTimes, kernel_times
from benchmarks.common.long_texts import LONG_TOKENS, long_texts
from benchmarks.common.making import made_once
from benchmarks.common.options import OptionalOutFile
from benchmarks.common.saving import NoisyFlag, check_noisy_out, save_benchmark
from bertender.comparison.accuracy import evaluate
from bertender.comparison.compare import compare
from bertender.comparison.latency import TimedModel, measure_models, threads_of
from bertender.comparison.records import CompareConfig, Comparison, LatencyConfig, LatencyReport
from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.errors import AccuracyError, ModelError, ParityError
from bertender.core.progress import show_progress
from bertender.metrics.resampling import Score
from bertender.models.opening import onnx_file, open_classifier
from bertender.recipes.recorded_task import recorded_task
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Task
from quantize.schemes import SCHEMES

__all__ = ["VARIANTS", "QuantizationBenchmark", "run"]

LONG_TEXTS = 20
"""Timed one by one in a round."""

VARIANTS: Mapping[str, dict[str, Any]] = {
    "dynamic": {"scheme": "dynamic"},
    "static-minmax": {"scheme": "static", "calibrator": "minmax"},
    "static-percentile": {"scheme": "static", "calibrator": "percentile"},
    "static-entropy": {"scheme": "static", "calibrator": "entropy"},
    "static-mse": {"scheme": "static", "calibrator": "mse"},
    "mixed": {
        "scheme": "mixed",
        "base": "static",
        "sensitivity": "hessian-trace",
        "max_drop": 0.3,
    },
    "four-bit-embeddings": {"scheme": "four-bit-embeddings"},
    "four-bit": {"scheme": "four-bit"},
    "four-bit-eigenvalue": {
        "scheme": "four-bit",
        "sensitivity": "hessian-eigenvalue",
        "sensitivity_texts": 64,
        "max_drop": 0.1,
    },
    "qat": {"scheme": "qat"},
    **{f"q-bert-{bits}": {"scheme": "q-bert", "weight_bits": bits} for bits in (4, 3, 2)},
    "q-bert-2-4": {
        "scheme": "q-bert",
        "weight_bits": 2,
        "sensitive_bits": 4,
        "sensitivity": "hessian-eigenvalue",
        "sensitivity_texts": 64,
    },
}
"""Name of a row -> the settings of its quantization."""


class QuantizationBenchmark(Record):
    """Every variant that passed its gates, measured, and why others did not."""

    comparison: Comparison = Field(description="at natural lengths; the float32 graph is first")
    long: LatencyReport = Field(description="the same rows on texts of 128 tokens")
    refused: dict[str, str] = Field(description="variant -> the error")
    found: dict[str, dict[str, Any]] = Field(description="variant -> its card's findings")
    kernels: dict[str, KernelTimes] = Field(description="row -> where a long text's time goes")
    choices: dict[str, Score] = Field(
        default_factory=dict,
        description="row -> its score on texts of the training file that nothing learned from, to "
        "choose a row by; empty where none were set apart",
    )


def _made(
    teacher: Artifact, task: Task, work: Path, **training: Any
) -> tuple[list[Artifact], dict[str, str]]:
    """Export and quantize what is not there yet; return what there is, and what was refused."""
    onnx = _stage("export", {}, [teacher], task, work / "float32")
    made, refused = [onnx], {}
    for name, settings in VARIANTS.items():
        trains = SCHEMES[settings["scheme"]].source == "torch"
        source, settings = (teacher, {**settings, **training}) if trains else (onnx, settings)
        try:
            made.append(_stage("quantize", settings, [source], task, work / name))
        except (AccuracyError, ModelError, ParityError) as error:
            refused[name] = _reason(error).replace(f"{work}/", "")
            typer.echo(f"{name}: {error}", err=True)
    return made, refused


def _reason(error: Exception) -> str:
    """Return the first failure of a refusal, without the text of the data set that it quotes."""
    lines = (line.partition("; worst:")[0].strip(" -") for line in str(error).splitlines()[:2])
    return " ".join(lines)


def _stage(
    name: str, settings: dict[str, Any], sources: list[Artifact], task: Task, out: Path
) -> Artifact:
    stage = STAGES[name]
    config = stage.config.parse(settings)
    return made_once(out, config, task, sources[0], partial(stage.make, sources, task))


def run(
    teacher: Annotated[Path, typer.Argument(help="artifact of a torch classifier")],
    work: Annotated[Path, typer.Option(help="where the models stay")],
    out: OptionalOutFile = None,
    max_train: Annotated[int | None, typer.Option(help="texts that qat learns from")] = None,
    epochs: Annotated[int, typer.Option(help="of qat")] = 1,
    learning_rate: Annotated[float, typer.Option(help="of qat")] = 2e-5,
    rounds: Annotated[int, typer.Option(help="of the timings, in each process")] = 4,
    measure: Annotated[bool, typer.Option(help="or only make the models")] = True,
    processes: Annotated[int, typer.Option(help="fresh ones that time every model")] = 3,
    noisy: NoisyFlag = False,
) -> None:
    """Make every variant, measure them together and write the JSON."""
    show_progress()
    check_noisy_out(noisy, out)
    source = Artifact.load(teacher)
    task = recorded_task(source, {"max_train": max_train} if max_train else {})
    training = {"epochs": epochs, "learning_rate": learning_rate}
    artifacts, refused = _made(source, task, work, **training)
    if not measure:
        return
    config = CompareConfig(rounds=rounds, processes=processes, noisy=noisy)
    benchmark = QuantizationBenchmark(
        comparison=compare(artifacts, task, config),
        long=_timed_long(artifacts, task, config),
        refused=refused,
        found={each.name: _findings(each) for each in artifacts[1:]},
        kernels={each.name: _kernels(each, task, config) for each in artifacts},
        choices=_choices(artifacts, task),
    )
    if out is not None:
        save_benchmark(benchmark, out)


def _choices(artifacts: Sequence[Artifact], task: Task) -> dict[str, Score]:
    """Return what a row is chosen by: the held-out texts are for the score alone."""
    if task.chosen_on == "dev":
        return {}
    return {
        each.name: evaluate(open_classifier(each), task.selection, task.metric)[0]
        for each in artifacts
    }


def _timed_long(artifacts: Sequence[Artifact], task: Task, config: CompareConfig) -> LatencyReport:
    encode = open_classifier(artifacts[0], max_length=LONG_TOKENS).encode
    texts = long_texts(task.dev.examples, encode, 2 * LONG_TEXTS)
    settings = config.model_dump(include=set(LatencyConfig.model_fields))
    few = LatencyConfig(**{**settings, "single_texts": LONG_TEXTS})
    models = [TimedModel(name=each.name, artifact=each.path.resolve()) for each in artifacts]
    return measure_models(models, texts, few, max_length=LONG_TOKENS)


def _kernels(artifact: Artifact, task: Task, config: CompareConfig) -> KernelTimes:
    encode = open_classifier(artifact, max_length=LONG_TOKENS).encode
    batch = encode(long_texts(task.dev.examples, encode, 1))
    return kernel_times(onnx_file(artifact), batch, threads_of(config), config.noisy)


def _findings(artifact: Artifact) -> dict[str, Any]:
    """Return a card's findings of the quantization, without what is long.

    The names of the parts that returned are those of earlier results.
    """
    findings = artifact.card.findings
    assert findings.quantization is not None, "its artifacts are quantized"
    quantization = findings.quantization.model_dump(mode="json", exclude={"ranges", "sensitivity"})
    sensitivity = findings.quantization.sensitivity
    returned = sensitivity.model_dump(mode="json") if sensitivity else {}
    if returned:
        returned["sensitivity"] = returned.pop("by_node")
    return {
        **quantization,
        **returned,
        **(findings.scores.model_dump(mode="json") if findings.scores else {}),
        **({"epochs": findings.training.epochs} if findings.training else {}),
        "settings": artifact.card.config,
        "float_nodes": len(findings.quantization.float_nodes),
    }
