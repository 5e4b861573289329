"""LIBRARIES: the installed libraries whose documentation the task `docs-library` reads."""

from __future__ import annotations

import importlib.util
import platform
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from bertender.core.errors import DataError

__all__ = ["LIBRARIES", "STANDARD_LIBRARY", "Library", "StandardLibrary"]


@dataclass(frozen=True)
class Library:
    """Source of a class's text: a package to import, and its distribution."""

    package: str
    distribution: str

    def root(self) -> Path:
        spec = importlib.util.find_spec(self.package)  # of a top-level name: imports nothing
        if spec is None or not spec.submodule_search_locations:
            raise DataError(
                f"this task reads the documentation of {self.distribution}, which is not "
                "installed. Install bertender with its dependencies again."
            )
        return Path(next(iter(spec.submodule_search_locations)))

    def version(self) -> str:
        return metadata.version(self.distribution)


class StandardLibrary(Library):
    """The interpreter's own modules."""

    def root(self) -> Path:
        return Path(sysconfig.get_path("stdlib"))

    def version(self) -> str:
        return platform.python_version()


STANDARD_LIBRARY = "stdlib"

LIBRARIES: Mapping[str, Library] = {
    "numpy": Library("numpy", "numpy"),
    "scikit-learn": Library("sklearn", "scikit-learn"),
    "scipy": Library("scipy", "scipy"),
    STANDARD_LIBRARY: StandardLibrary("", "Python"),
    "torch": Library("torch", "torch"),
    "transformers": Library("transformers", "transformers"),
}
