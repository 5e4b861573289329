"""The Triton model repository: a folder that holds all that the endpoint serves.

    DIRECTORY/classifier/config.pbtxt      settings of Triton and the backend
    DIRECTORY/classifier/1/model.py        imports `serve.classifier_backend`
    DIRECTORY/classifier/1/artifact/       the artifact's files, digests included

The model's data is all inside, as hard links where the file system has them; only a repository that
goes with its server may have symbolic links. Its code is not: model.py imports the installed
`serve` package, so that code exists once and a repaired backend needs no new repository. The Python
that Triton runs must therefore have bertender installed; `serve.server` sees to that.
"""

from __future__ import annotations

from pathlib import Path

from bertender.core.artifact import Artifact
from bertender.core.atomic import replacing_directory
from bertender.core.card import CARD_NAME
from bertender.core.errors import ArtifactError, ModelError
from bertender.problems import PROBLEMS
from serve.config import ServeConfig
from serve.placing import place_artifact
from serve.triton_config import model_config, write_model_config
from serve.wire import MODEL_NAME

__all__ = ["is_repository", "write_repository"]

VERSION = "1"

MODEL_FILE = '''\
"""The Python side of this Triton model. Its code is bertender's, as installed with Triton."""

import os
import sys

# the stub reads no PYTHONPATH itself, and so would find other packages than who starts it
sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))

from serve.classifier_backend import TritonPythonModel  # noqa: E402

__all__ = ["TritonPythonModel"]
'''


def write_repository(
    artifact: Artifact, directory: Path, config: ServeConfig, *, is_temporary: bool = False
) -> Path:
    """Write the model repository of an ONNX artifact at `directory`, and return its path.

    All of it appears at once and replaces a repository written before, or nothing does.

    Args:
        artifact: what to serve; its digests are checked here.
        directory: where to.
        config: settings of Triton and the backend.
        is_temporary: the repository goes with its server, while the artifact is still there.

    Raises:
        ModelError: the artifact is not an ONNX classifier.
        DamagedArtifactError: the artifact's files differ from its card.
        ArtifactError: `directory` exists and is not such a repository, or it cannot be written.
    """
    _check_servable(artifact)
    directory = directory.resolve()
    _check_foreign(directory)
    try:
        with replacing_directory(directory) as draft:
            _fill(draft / MODEL_NAME / VERSION, artifact, config, is_temporary)
    except OSError as error:
        size_mb = sum(file.size_bytes for file in artifact.card.files.values()) / 1e6
        raise ArtifactError(
            f"the model repository {directory} cannot be written: {error.strerror}. It takes "
            f"{size_mb:.1f} MB. Make room, or choose another directory (TMPDIR for `serve`). "
            "Nothing has changed there."
        ) from error
    return directory


def _fill(version: Path, artifact: Artifact, config: ServeConfig, is_temporary: bool) -> None:
    stamp = place_artifact(artifact, version / "artifact", is_temporary=is_temporary)
    write_model_config(
        version.parent / "config.pbtxt",
        model_config(artifact.card, config, artifact.digest, stamp),
    )
    (version / "model.py").write_text(MODEL_FILE, encoding="utf-8")


def is_repository(directory: Path) -> bool:
    """Return whether `directory` holds a repository that `write_repository` wrote, and no more."""
    return (
        directory.is_dir()
        and [path.name for path in directory.iterdir()] == [MODEL_NAME]
        and (directory / MODEL_NAME / VERSION / "artifact" / CARD_NAME).is_file()
    )


def _check_foreign(directory: Path) -> None:
    if directory.exists() and not is_repository(directory) and any(directory.iterdir()):
        raise ArtifactError(
            f"{directory} exists and is not a model repository of bertender, so it will not be "
            "replaced. Choose another directory, or remove it yourself."
        )


def _check_servable(artifact: Artifact) -> None:
    card = artifact.card
    if card.kind != "onnx":
        raise ModelError(
            f"{artifact.path} is a {card.kind!r} artifact; only 'onnx' artifacts are served. "
            f"Export it first: `bertender export {artifact.path}`."
        )
    if card.task.problem_type not in PROBLEMS:
        raise ModelError(
            f"{artifact.path} was made for {card.task.problem_type!r}; the endpoint serves "
            f"{', '.join(map(repr, PROBLEMS))}. Fine-tune it on a task first: `bertender finetune`."
        )
