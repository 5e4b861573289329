"""A Python environment with the packages of some extras and no others, made without a network.

The project is a copy, Triton a link. Each package is a link to the one that is installed here,
found as pip would: from the lists of pyproject.toml, through what the packages themselves require.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bertender.core.machine import server_folder
from tests.packages import PACKAGES, ROOT

__all__ = ["CLEAN", "FreshEnvironment", "closure", "fresh_environment", "written_packages"]

PROJECT = "bertender"
COMPILED = shutil.ignore_patterns("__pycache__")


@dataclass(frozen=True)
class FreshEnvironment:
    """A folder as `python -m venv` makes it."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        (folder,) = self.folder.glob("lib/python3.*/site-packages")
        return folder

    def run(
        self, *words: str | Path, status: int = 0, **options: object
    ) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments."""
        command = [str(self.python), *map(str, words)]
        done = subprocess.run(command, **RUN, **options)  # type: ignore[call-overload]
        assert done.returncode == status, (words, done.stdout, done.stderr)
        assert isinstance(done, subprocess.CompletedProcess)
        return done


CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
RUN = {"capture_output": True, "text": True, "timeout": 120, "env": CLEAN, "cwd": "/"}


def written_packages(*extras: str) -> tuple[str, ...]:
    """Return the requirements in pyproject.toml of the project with some extras."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    return (
        *project["dependencies"],
        *(each for extra in extras for each in project["optional-dependencies"][extra]),
    )


def closure(requirements: Iterable[str]) -> Mapping[str, metadata.Distribution]:
    """Return the installed distributions that some requirements lead to, by canonical name.

    The project's own extras, which its other extras name, are followed as well.
    """
    seen: dict[tuple[str, str], metadata.Distribution] = {}
    todo = [Requirement(each) for each in requirements]
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name == PROJECT:
            own = written_packages(*requirement.extras)
            todo.extend(each for each in map(Requirement, own) if each.name != PROJECT)
            continue
        for extra in {"", *requirement.extras} - {extra for own, extra in seen if own == name}:
            seen[name, extra] = metadata.distribution(name)
            todo.extend(required_by(seen[name, extra], extra))
    return {name: distribution for (name, _), distribution in seen.items()}


def required_by(distribution: metadata.Distribution, extra: str) -> list[Requirement]:
    """Return what a distribution requires on this machine, with one of its extras."""
    all_of_them = map(Requirement, distribution.requires or ())
    return [
        each
        for each in all_of_them
        if each.marker is None or each.marker.evaluate({"extra": extra})
    ]


def fresh_environment(folder: Path, *extras: str) -> FreshEnvironment:
    """Make an environment with the project, as it is here, and the packages of some extras."""
    venv.create(folder, symlinks=True, with_pip=False)
    environment = FreshEnvironment(folder)
    for distribution in closure(written_packages(*extras)).values():
        for top in {Path(str(file)).parts[0] for file in distribution.files or ()} - {".."}:
            link = environment.packages / top
            if not link.exists() and top != "__pycache__":
                link.symlink_to(Path(str(distribution.locate_file(top))))
    if "serve" in extras and server_folder().exists():
        link = folder / server_folder().relative_to(sys.prefix)
        link.parent.mkdir(parents=True)
        link.symlink_to(server_folder())
    for package in PACKAGES:
        shutil.copytree(ROOT / package, environment.packages / package, ignore=COMPILED)
    described = environment.packages / f"{PROJECT}-0.dist-info" / "METADATA"
    described.parent.mkdir()
    described.write_text(f"Metadata-Version: 2.1\nName: {PROJECT}\nVersion: 0\n")
    return environment
