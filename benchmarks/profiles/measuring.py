"""Where the time of an inference goes: operators of the same graphs, in every runtime.

    python -m benchmarks.profiles GRAPH ... --out FILE.json [--runtime NAME,NAME]

Each runtime measures its own operators: ONNX Runtime by its profile, OpenVINO by its performance
counters. Both fuse nodes, and name what they run in their own way. The inputs are a text of
LONG_TOKENS tokens, and a batch of texts of natural length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import typer

from benchmarks.common.kernel_times import RUNS, WARM_UP_RUNS, KernelTimes, kernel_times
from benchmarks.common.long_texts import LONG_TOKENS, long_texts
from benchmarks.common.options import (
    OnnxArtifactArguments,
    OptionalOutFile,
    RuntimesOption,
    ThreadsOption,
)
from benchmarks.common.saving import NoisyFlag, check_noisy_out, save_benchmark
from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.environment import Environment, environment
from bertender.core.errors import ModelError
from bertender.core.progress import show_progress, track
from bertender.core.table import Table
from bertender.measure.comparison import CompareConfig
from bertender.measure.latency import LatencyConfig, threads_of
from bertender.measure.load import check_load_now, watched_load
from bertender.measure.runtimes import check_installed
from bertender.models.opening import onnx_file
from bertender.models.openvino_graph import compiled
from bertender.pipeline.recorded_task import recorded_task
from bertender.tasks.task import Task
from bertender.text.batch import Batch, Tokenize, load_tokenizer

__all__ = [
    "PROFILERS",
    "Profile",
    "ProfileBenchmark",
    "check_timeable",
    "measure_profiles",
    "run",
]

BATCH_TEXTS = 32
EXECUTED = "EXECUTED"
"""OpenVINO's status of a node that has run."""


class Profile(Record):
    """One graph in one runtime, on one input."""

    name: str
    precision: str
    runtime: str
    texts: int
    times: KernelTimes


class ProfileBenchmark(Record):
    """All profiles, and their conditions."""

    task: str
    threads: int
    profiles: tuple[Profile, ...]
    environment: Environment


def openvino_times(
    graph: Path, batch: Batch, threads: int, noisy: bool = False, *, float_type: str
) -> KernelTimes:
    """Run a graph on a batch in OpenVINO with its performance counters.

    Raises:
        RuntimeMissingError, ModelError: OpenVINO is not installed, or cannot open the graph.
        MachineBusyError: other work disturbs the times, and noisy ones are not allowed.
    """
    with watched_load(noisy) as meter:
        request = compiled(graph, threads, 1, float_type, profile=True).create_infer_request()
        inputs = (each.get_any_name() for each in request.model_inputs)
        arrays = {name: batch.arrays[name] for name in inputs}
        seconds: Counter[str] = Counter()
        for number in range(WARM_UP_RUNS + RUNS):
            request.infer(arrays, share_inputs=True)
            for node in request.profiling_info if number >= WARM_UP_RUNS else ():
                if node.status.name == EXECUTED:
                    seconds[node.node_type] += node.real_time.total_seconds()
    operators = {name: round(1000 * total / RUNS, 4) for name, total in sorted(seconds.items())}
    tokens = batch.arrays["input_ids"].shape[1]
    return KernelTimes(tokens=tokens, operators_ms=operators, load=meter.load)


Profiler = Callable[[Path, Batch, int, bool], KernelTimes]

PROFILERS: Table[Profiler] = Table(
    "profiled runtime",
    {
        "onnxruntime": kernel_times,
        "openvino": partial(openvino_times, float_type="f32"),
        "openvino-bf16": partial(openvino_times, float_type="bf16"),
    },
)
"""A row of RUNTIMES that runs on the CPU -> what measures its operators."""


def check_timeable(
    artifacts: Sequence[Artifact], runtimes: Sequence[str], config: LatencyConfig
) -> None:
    """Check what is wrong before any work: with the runtimes, the artifacts, or the machine.

    Raises:
        RuntimeMissingError: a runtime is not installed.
        ModelError: an artifact has no graph.
        MachineBusyError: other work disturbs the times, and the config allows no noisy ones.
    """
    check_installed(*runtimes)
    for each in artifacts:
        if each.card.kind != "onnx":
            raise ModelError(f"{each.path} has no graph. Export it first: `bertender export`.")
    if not config.noisy:
        check_load_now()


def measure_profiles(
    artifacts: Sequence[Artifact], task: Task, runtimes: Sequence[str], config: LatencyConfig
) -> ProfileBenchmark:
    """Profile every graph in every runtime, on a long text and on a batch.

    Raises:
        RuntimeMissingError: a runtime is not installed.
        UnknownNameError: one has no measure.
        ModelError: an artifact has no graph, or a runtime cannot open it.
        MachineBusyError: other work disturbs the times, and the config allows no noisy ones.
    """
    check_timeable(artifacts, runtimes, config)
    profilers = {runtime: PROFILERS[runtime] for runtime in runtimes}
    threads, profiles = threads_of(config), []
    rows = [(artifact, runtime) for artifact in artifacts for runtime in runtimes]
    for artifact, runtime in track(rows, "profile", len(rows)):
        for batch in _batches(artifact, task):
            times = profilers[runtime](onnx_file(artifact), batch, threads, config.noisy)
            profiles.append(
                Profile(
                    name=artifact.name,
                    precision=artifact.card.precision,
                    runtime=runtime,
                    texts=len(batch),
                    times=times,
                )
            )
    return ProfileBenchmark(
        task=task.name, threads=threads, profiles=tuple(profiles), environment=environment()
    )


def _batches(artifact: Artifact, task: Task) -> list[Batch]:
    encode = Tokenize(load_tokenizer(artifact.path), LONG_TOKENS)
    examples = task.dev.examples
    return [encode(long_texts(examples, encode, 1)), encode(examples[:BATCH_TEXTS])]


def run(
    artifacts: OnnxArtifactArguments,
    out: OptionalOutFile = None,
    runtime: RuntimesOption = "onnxruntime,openvino",
    threads: ThreadsOption = 0,
    noisy: NoisyFlag = False,
) -> None:
    """Profile graphs in several runtimes."""
    show_progress()
    check_noisy_out(noisy, out)
    opened = [Artifact.load(path) for path in artifacts]
    config = LatencyConfig(threads=threads, noisy=noisy)
    runtimes = CompareConfig.parse({"runtime": runtime}).runtime
    result = measure_profiles(opened, recorded_task(opened[0], {}), runtimes, config)
    for each in result.profiles:
        largest = sorted(each.times.operators_ms.items(), key=lambda pair: -pair[1])[:3]
        shown = ", ".join(f"{name} {ms:.2f} ms" for name, ms in largest)
        typer.echo(f"{each.name} in {each.runtime}, {each.texts} x {each.times.tokens}: {shown}")
    if out is not None:
        save_benchmark(result, out)
