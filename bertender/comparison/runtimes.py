"""Runtimes of the artifacts that are measured: those of kind onnx run in one."""

from __future__ import annotations

from collections.abc import Sequence

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, RuntimeMissingError
from bertender.core.hardware import gpu_problem
from bertender.models.runtimes import (
    DEFAULT_RUNTIME,
    FLOAT_PRECISIONS,
    RUNTIMES,
    check_suits,
    suits,
)


def check_used(artifacts: Sequence[Artifact], *names: str) -> None:
    """Check that runtimes have something to run.

    Raises:
        ConfigError: one is not the default and no artifact is of kind onnx, or an artifact has no
            runtime among them that suits it, or a runtime no artifact.
    """
    if set(names) - {DEFAULT_RUNTIME} and not any(each.card.kind == "onnx" for each in artifacts):
        raise ConfigError(
            f"runtime={','.join(names)} runs onnx artifacts, and none of these is one: "
            f"{', '.join(str(each.path) for each in artifacts)}. Export the model first: bertender "
            "export."
        )
    graphs = [each for each in artifacts if each.card.kind == "onnx"]
    for artifact in graphs:
        if not any(suits(name, artifact) for name in names):
            check_suits(names[0], artifact)
    for name in names if graphs else ():
        if not any(suits(name, artifact) for artifact in graphs):
            check_suits(name, graphs[0])


def runtime_of(artifact: Artifact, name: str) -> str | None:
    """Return the runtime where it runs the artifact; None for what has a library of its own."""
    return name if artifact.card.kind == "onnx" else None


def check_installed(*names: str) -> None:
    """Check that runtimes can run here, before any work.

    Raises:
        RuntimeMissingError: one is not installed, or this CPU lacks what it needs, or there is no
            GPU for it.
    """
    for name in names:
        if obstacle := _obstacle(name):
            usable = ", ".join(other for other in RUNTIMES if not _obstacle(other))
            raise RuntimeMissingError(f"runtime {name!r} {obstacle}: {usable}.")


def _obstacle(name: str) -> str:
    """Return why a runtime cannot run here, up to the list of those that can; empty if it can."""
    runtime = RUNTIMES[name]
    if runtime.version is None:
        return f"is not installed. Install it with `{runtime.install}`, or use one that is"
    if lacking := runtime.lacking_flags():
        flags = " or ".join(lacking)
        return f"needs a CPU with {flags}, and this one has neither. Use another"
    problem = gpu_problem() if runtime.needs_gpu else ""
    return f"{problem}. Use another" if problem else ""


def tolerance_in(runtime: str, precision: str) -> str:
    """Return the row of TOLERANCES for an artifact of a precision in a runtime.

    A runtime that rounds activations to fewer bits than float32 has moves single texts far.

    Args:
        runtime: a row of RUNTIMES, or what runs elsewhere.
        precision: of the artifact.
    """
    if precision not in FLOAT_PRECISIONS or runtime not in RUNTIMES:
        return precision
    activations = RUNTIMES[runtime].activations_of(precision)
    return precision if activations == "float32" else f"{activations}-activations"
