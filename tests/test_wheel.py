"""The wheel: five packages with all their modules, the command, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PACKAGES = ("bertender", "distill", "export", "quantize", "serve")
PACKAGED_SUFFIXES = (".py", ".yaml", ".html", ".css", ".js", ".mjs")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel built offline from a copy of the tree: building leaves files behind."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in (*PACKAGES, "tests", "benchmarks"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", str(source), "--wheel-dir", str(target)]
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    result = subprocess.run([*command, *offline], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    return zipfile.ZipFile(next(target.glob("bertender-*.whl")))


def metadata(wheel: zipfile.ZipFile, name: str) -> str:
    member = next(member for member in wheel.namelist() if member.endswith(f".dist-info/{name}"))
    return wheel.read(member).decode()


def test_it_holds_every_module_of_the_five_packages_and_nothing_else(
    wheel: zipfile.ZipFile,
) -> None:
    expected = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in PACKAGED_SUFFIXES or path.name == "py.typed"
    }
    found = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert found == expected


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_is_typed(package: str, wheel: zipfile.ZipFile) -> None:
    assert f"{package}/py.typed" in wheel.namelist()


def test_the_recipes_are_in_it(wheel: zipfile.ZipFile) -> None:
    recipes = {Path(name).stem for name in wheel.namelist() if name.endswith(".yaml")}
    assert {"quickstart", "from-scratch", "sst2"} <= recipes


def test_it_gives_the_command_and_the_five_packages(wheel: zipfile.ZipFile) -> None:
    entry_points = metadata(wheel, "entry_points.txt")
    assert entry_points.split() == [
        "[console_scripts]",
        "bertender",
        "=",
        "bertender.cli.main:main",
    ]
    assert set(metadata(wheel, "top_level.txt").split()) == set(PACKAGES)


def test_its_metadata_names_the_extras_and_the_licence(wheel: zipfile.ZipFile) -> None:
    lines = metadata(wheel, "METADATA").splitlines()
    extras = {line.removeprefix("Provides-Extra: ") for line in lines if "Provides-Extra" in line}
    with (ROOT / "pyproject.toml").open("rb") as file:
        written = tomllib.load(file)["project"]["optional-dependencies"]
    assert extras == {*written}
    assert "License-Expression: Apache-2.0" in lines
    assert metadata(wheel, "licenses/LICENSE").strip().startswith("Apache License")
