"""Fixtures for all tests: no network, no hub, no file from outside."""

from __future__ import annotations

import gc
import os
import re
import shutil
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# also next to a GPU; set to its number, what trains is tested on it
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# before torch is imported: tiny models are slower on more threads, and far slower beside other work
os.environ.setdefault("OMP_NUM_THREADS", "1")

# fixtures import what loads PyTorch, which takes seconds: the process that hands out the tests
# needs none
from bertender.core import machine as load
from bertender.core.artifact import Artifact
from bertender.core.errors import ServerMissingError
from bertender.core.progress import show_progress
from bertender.tasks.task import Task
from quantize import integers
from serve.server.wheels import why_not_here
from tests.quick import repeats

# no test times what it calls: a machine that is busy is no fault of the code
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what tests cache out of the user's own cache, and its content out of the tests."""
    if os.environ.get("BERTENDER_CACHE"):
        yield
        return
    os.environ["BERTENDER_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    del os.environ["BERTENDER_CACHE"]


@pytest.fixture(scope="session", autouse=True)
def nobody_else() -> Iterator[None]:
    """Hide how busy the machine is: tests run beside each other, and none is to be refused."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "cpu_seconds", lambda: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_power_cut() -> Iterator[None]:
    """Wait for no disk: a twentieth of the suite, for files that need not survive the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_full_collection() -> Iterator[None]:
    """End a training without a full garbage collection: it empties the memory of GPUs alone."""
    # who has not imported it, trains nothing or little, and need not wait for it
    memory = sys.modules.get("accelerate.utils.memory")
    with pytest.MonkeyPatch.context() as patch:
        if memory and not os.environ["CUDA_VISIBLE_DEVICES"]:
            patch.setattr(memory, "gc", SimpleNamespace(collect=lambda: 0))
        yield


@pytest.fixture(scope="session", autouse=True)
def every_share(request: pytest.FixtureRequest) -> Iterator[Any]:
    """In `make test`, search each range among 100 in place of 2500; yield what is searched else."""
    shares = integers.TRIED_SHARES
    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("markexpr") == "not slow":
            patch.setattr(integers, "TRIED_SHARES", shares[::5])
        yield shares


@pytest.fixture(autouse=True)
def no_bars() -> Iterator[None]:
    """Turn off the bars that a test has turned on: its stream is closed when it ends."""
    yield
    show_progress(False)


@pytest.fixture(scope="session")
def task() -> Task:
    from tests.toys import toy_task

    return toy_task()


Once = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """Make a folder once in a run, whichever process needs it first: (name, fill) -> the folder.

    What is in it is shared by tests, which only read it.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def made(name: str, fill: Callable[[Path], object]) -> Path:
        folder = shared / "once" / name
        folder.parent.mkdir(parents=True, exist_ok=True)
        whole = folder.with_name(f"{name}.whole")
        with FileLock(folder.with_name(f"{name}.lock")):
            if not whole.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                fill(folder)
                whole.touch()
        return folder

    return made


@pytest.fixture(scope="session")
def teacher(once: Once, task: Task) -> Artifact:
    """A torch artifact of the tiny BERT."""
    from tests.toys import tiny_bert, tiny_tokenizer, write_model

    def fill(folder: Path) -> None:
        tokenizer = tiny_tokenizer()
        write_model(tiny_bert(len(tokenizer), task.labels), tokenizer, task, folder / "teacher")

    return Artifact.load(once("teacher", fill) / "teacher")


@pytest.fixture(scope="session")
def trained(once: Once, task: Task) -> Artifact:
    """A teacher that tells the labels apart, as a gate wants of what is quantized."""
    import bertender
    from tests.toy_models import save_encoder

    def fill(folder: Path) -> None:
        settings = {"epochs": 6, "learning_rate": 3e-3, "batch_size": 16}
        start = save_encoder("bert", folder / "encoder")
        bertender.finetune(task, out=folder / "teacher", teacher=start, **settings)

    return Artifact.load(once("trained-teacher", fill) / "teacher")


@pytest.fixture(scope="session")
def teacher_of(once: Once) -> Callable[[str], Artifact]:
    """A teacher of each toy task of `tests.toy_kinds`: (name or problem type) -> the teacher."""
    from tests.toy_kinds import write_teacher

    def teacher(name: str) -> Artifact:
        folder = once(
            f"teacher-{re.sub(r'[:,]', '-', name)}",
            lambda folder: write_teacher(name, folder),
        )
        return Artifact.load(folder / "teacher")

    return teacher


@pytest.fixture(scope="session")
def plain_export(once: Once, task: Task) -> Callable[[str], tuple[Artifact, Artifact]]:
    """The export of a tiny encoder of each architecture, as `tests.exports` says."""
    from tests.exports import write_plain_export

    def exported(model_type: str) -> tuple[Artifact, Artifact]:
        folder = once(
            f"export-{model_type}", lambda folder: write_plain_export(model_type, task, folder)
        )
        return Artifact.load(folder / "source"), Artifact.load(folder / "onnx")

    return exported


@pytest.fixture(scope="session")
def exported(once: Once, teacher: Artifact, task: Task) -> Artifact:
    """The teacher's graph, checked on a few texts."""
    from export.config import ExportConfig
    from export.exporter import export

    config = ExportConfig(parity_texts=8)
    return Artifact.load(
        once("exported-teacher", lambda folder: export(teacher, task, config, folder / "onnx"))
        / "onnx"
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage among imports: nearly all stays, and a seventh of the time is won."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what repeats a path, before `-m` chooses; skip what starts a Triton where its
    binary cannot run, as in Python 3.13."""
    for item in repeats(items):
        item.add_marker(pytest.mark.slow)
    if reason := why_not_here():
        for item in items:
            if item.get_closest_marker("server") and "embedded" not in item.name:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    with skipped_without_binary():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    with skipped_without_binary():
        return (yield)


@contextmanager
def skipped_without_binary() -> Iterator[None]:
    """Skip a test that turns out to start a Triton where its binary cannot run."""
    try:
        yield
    except ServerMissingError as error:
        if why_not_here() is None:
            raise
        pytest.skip(str(error))


def pytest_collection_finish() -> None:
    """Take what was imported and collected out of the garbage collector's sight.

    Every training ends in a full collection, which read two million objects of modules and tests:
    half a second, a fifth of the suite. A tenth of them is garbage, and to find it takes a second.
    """
    gc.freeze()


@pytest.fixture
def data_directory() -> Path:
    """The folder of real data sets, or a skip that says how to have it."""
    folder = os.environ.get("BERTENDER_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs real data sets: set BERTENDER_DATA to a folder of GLUE files")
    return Path(folder)
