"""The Triton model repository: a folder that holds all that the endpoint serves.

    DIRECTORY/classifier/config.pbtxt      settings of Triton and the backend
    DIRECTORY/classifier/1/model.py        imports `serve.classifier_backend`
    DIRECTORY/classifier/1/artifact/       the artifact's files, digests included

Where a backend of Triton runs the graph (`--runtime triton-onnxruntime`), the artifact is another
model, which `classifier` calls, and reads for its tokenizer:

    DIRECTORY/classifier-encoder/config.pbtxt
    DIRECTORY/classifier-encoder/1/        the artifact's files; Triton reads model.onnx

The model's data is all inside, as hard links where the file system has them; only a repository that
goes with its server may have symbolic links. Its code is not: model.py imports the installed
`serve` package, so that code exists once and a repaired backend needs no new repository. The Python
that Triton runs must therefore have bertender installed; `serve.server` sees to that.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bertender.core.artifact import Artifact
from bertender.core.atomic import replacing_directory
from bertender.core.card import CARD_NAME
from bertender.core.errors import ArtifactError, ModelError
from bertender.models.onnx_predictor import ONNX_NAME
from bertender.problems import PROBLEMS
from bertender.text.tokenizer_file import open_tokenizer
from serve.config import ServeConfig
from serve.encoder_config import encoder_config
from serve.encoder_predictor import ENCODER_OUTPUT
from serve.graph_signature import read_signature
from serve.lint.linting import check_repository
from serve.placing import place_artifact
from serve.served_runtimes import ENCODER_NAME, SERVED_RUNTIMES
from serve.triton_config import ENCODER_ARTIFACT, VERSION, model_config, write_model_config
from serve.warm_up import bucket_shapes
from serve.wire import MODEL_NAME

__all__ = ["is_repository", "write_repository"]

LAYOUTS = {
    frozenset({MODEL_NAME}): "artifact",
    frozenset({MODEL_NAME, ENCODER_NAME}): ENCODER_ARTIFACT,
}
"""Models of a repository -> where the artifact is, from the classifier's version."""

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

    All of it appears at once and replaces a repository written before, or nothing does. One that no
    server is started with, which would prove it, is linted first.

    Args:
        artifact: what to serve; its digests are checked here.
        directory: where to.
        config: settings of Triton and the backend.
        is_temporary: the repository goes with its server, while the artifact is still there.

    Raises:
        ModelError: the artifact is not an ONNX classifier.
        DamagedArtifactError: the artifact's files differ from its card.
        ArtifactError: `directory` exists and is not such a repository, it cannot be written, or
            Triton would not load it.
    """
    _check_servable(artifact)
    directory = directory.resolve()
    _check_foreign(directory)
    try:
        with replacing_directory(directory) as draft:
            _fill(draft, artifact, config, is_temporary)
            if not config.starts_server:
                check_repository(draft)
    except OSError as error:
        size_mb = sum(file.size_bytes for file in artifact.card.files.values()) / 1e6
        raise ArtifactError(
            f"the model repository {directory} cannot be written: {error.strerror}. It takes "
            f"{size_mb:.1f} MB. Make room, or choose another directory (TMPDIR for `serve`). "
            "Nothing has changed there."
        ) from error
    return directory


def _fill(repository: Path, artifact: Artifact, config: ServeConfig, is_temporary: bool) -> None:
    version = repository / MODEL_NAME / VERSION
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL_FILE, encoding="utf-8")
    encoder = SERVED_RUNTIMES[config.runtime].triton_backend
    place = repository / ENCODER_NAME / VERSION if encoder else version / "artifact"
    stamp = place_artifact(artifact, place, is_temporary=is_temporary)
    inputs = _write_encoder(place, artifact, config) if encoder else ()
    write_model_config(
        version.parent / "config.pbtxt",
        model_config(artifact.card, config, artifact.digest, stamp, inputs),
    )


def _write_encoder(version: Path, artifact: Artifact, config: ServeConfig) -> tuple[str, ...]:
    """Write the configuration of the model that runs the graph, and return its inputs."""
    signature = read_signature(version / ONNX_NAME)
    tokenize = PROBLEMS[artifact.card.task.problem_type].encoder(
        open_tokenizer(artifact.path), config.max_length
    )
    shapes = bucket_shapes(config.tokens_per_bucket, tokenize.max_length, config.max_batch_size)
    outputs = tuple(each for each in signature.outputs if each.name == ENCODER_OUTPUT)
    used = replace(signature, outputs=outputs)
    write_model_config(version.parent / "config.pbtxt", encoder_config(used, config, shapes))
    return tuple(each.name for each in signature.inputs)


def is_repository(directory: Path) -> bool:
    """Return whether `directory` holds a repository that `write_repository` wrote, and no more."""
    if not directory.is_dir():
        return False
    place = LAYOUTS.get(frozenset(path.name for path in directory.iterdir()))
    return place is not None and (directory / MODEL_NAME / VERSION / place / CARD_NAME).is_file()


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
