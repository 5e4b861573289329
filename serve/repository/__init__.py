"""The Triton model repository: a folder with everything that the endpoint serves.

    DIRECTORY/classifier/config.pbtxt      settings of Triton and the backend, and the version
    DIRECTORY/classifier/1/model.py        imports `serve.backend.model`
    DIRECTORY/classifier/1/artifact/       the artifact's files, digests included

with a folder for each model. `bertender deploy` adds versions. Where a backend of Triton runs the
graph (`--runtime triton-onnxruntime`), the artifact is another model, which `classifier` calls and
whose tokenizer it loads:

    DIRECTORY/classifier-encoder/config.pbtxt
    DIRECTORY/classifier-encoder/1/        the artifact's files; Triton reads model.onnx

The repository has all data of the model. A permanent repository has copies, so that writing into
the artifact's files (`cp` does so) does not change what the server loads, now or after a restart. A
temporary repository, removed with its server, has links where possible, since a model may be large
and temporary files may be in memory; the server has read them by the time it is ready, and they are
watched. The repository has no code: model.py imports the installed `serve` package, so that a fixed
backend needs no new repository. The Python that Triton runs must therefore have bertender
installed; `serve.server` ensures that.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from bertender.core.artifact import Artifact, foreign_files, shown_names, write_moved_card
from bertender.core.card import CARD_NAME
from bertender.core.errors import ArtifactError, ConfigError, DamagedArtifactError, ModelError
from bertender.core.files import replacing_directory
from bertender.models.onnx_session import ONNX_DATA_NAME, ONNX_NAME
from bertender.models.runtimes import FLOAT_PRECISIONS, RUNTIMES, check_suits, saturates
from bertender.problems import PROBLEMS
from bertender.text.tokenizer import open_tokenizer, stated_longest_input
from serve.backend.opening import bucket_shapes
from serve.config import MOST_TOKENS, SERVED_RUNTIMES, ServeConfig
from serve.repository.config_pbtxt import (
    ANY,
    CONFIG_NAME,
    FIRST_VERSION,
    GraphSignature,
    ModelConfig,
    encoder_config,
    model_config,
    parameters_of,
    read_model_config,
    read_signature,
    triton,
    write_model_config,
)
from serve.wire import CANDIDATE_SUFFIX, ENCODER_NAME, ENCODER_OUTPUT, MODEL_NAME

logger = logging.getLogger(__name__)

FEWEST_CHOICES = 2
"""Of a question."""
DRAFT = re.compile(r"\..+\.draft-")
"""Name of a folder left by a killed deployment."""

Models = Artifact | Mapping[str, Artifact]
"""Artifacts to serve: one as the model `classifier`, or several by model name."""

MODEL_FILE = '''\
"""The Python side of this Triton model. Its code is bertender's, as installed with Triton."""

import os
import sys

# the stub reads no PYTHONPATH itself, and so would find other packages than who starts it
sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))

from serve.backend.model import TritonPythonModel  # noqa: E402

__all__ = ["TritonPythonModel"]
'''


def by_name(models: Models) -> Mapping[str, Artifact]:
    """Return the artifacts by model name."""
    return {MODEL_NAME: models} if isinstance(models, Artifact) else models


def write_repository(
    models: Models, directory: Path, config: ServeConfig, *, is_temporary: bool = False
) -> Path:
    """Write the model repository of ONNX artifacts at `directory`, and return its path.

    The repository appears atomically, replacing an earlier one. A permanent repository, which no
    server loads at once, is read back first.

    Args:
        models: artifacts to serve; their digests are checked.
        directory: directory of the repository.
        config: settings of Triton and the backend.
        is_temporary: whether the repository is removed with its server, before the artifacts.

    Raises:
        ConfigError: Triton runs the graph, and there are several models, or one of another name.
        ModelError: an artifact is not an ONNX classifier, or Triton would add its products wrongly.
        DamagedArtifactError: an artifact's files differ from its card.
        ArtifactError: `directory` exists and is not a repository, it cannot be written, or Triton
            would not load it.
    """
    artifacts = by_name(models)
    for artifact in artifacts.values():
        check_servable(artifact)
        if runtime := SERVED_RUNTIMES[config.runtime].in_process:
            check_suits(runtime, artifact)
    if config.triton_backend:
        _check_encoders(artifacts, config)
    directory = directory.resolve()
    _check_foreign(directory)
    try:
        with replacing_directory(directory) as draft:
            for name, artifact in artifacts.items():
                _fill(draft / name, artifact, config, is_temporary)
            if not config.starts_server:
                check_written(draft)
            if config.gpu or not config.starts_server:
                for artifact in artifacts.values():
                    _warn_of_device(artifact, config)
    except OSError as error:
        raise cannot_be_written(directory, [*artifacts.values()], error) from error
    return directory


def check_written(repository: Path) -> None:
    """Check written folders without a server: each config.pbtxt must fit a version, the files of
    its artifact, and the tensors of its graph.

    Raises:
        ArtifactError: something does not fit; the message has all faults.
    """
    files = sorted(repository.glob(f"*/{CONFIG_NAME}"))
    if faults := [f"{file.parent.name}/{fault}" for file in files for fault in _faults(file)]:
        raise ArtifactError(
            "Triton would not load this repository, so it is not written. " + "; ".join(faults)
        )


def _faults(file: Path) -> Iterator[str]:
    """Yield the differences between a config.pbtxt and the folder of its model."""
    config = read_model_config(file)
    for number in config.version_policy.specific.versions or (FIRST_VERSION,):
        version = file.parent / str(number)
        if not version.is_dir():
            yield f"{number} is missing, the version of {CONFIG_NAME}"
        elif config.backend == "python":
            yield from _classifier_faults(version, config)
        else:
            yield from _graph_faults(version / ONNX_NAME, config)


def _classifier_faults(version: Path, config: ModelConfig) -> Iterator[str]:
    if not (version / "model.py").is_file():
        yield f"{version.name}/model.py is missing"
    parameters = parameters_of(config)
    try:
        artifact = Artifact.load(version / parameters.artifact, checked_at=parameters.stamp)
        signature = read_signature(artifact.path / ONNX_NAME)
    except (ArtifactError, ModelError) as error:
        yield f"{version.name}: {error}"
        return
    yield from _missing_weights(artifact.path, signature)
    task = artifact.card.task
    labels = len(PROBLEMS[task.problem_type].output_names(task.labels))
    if PROBLEMS[task.problem_type].gives_vectors:
        return
    for tensor in signature.outputs:
        if tensor.name == ENCODER_OUTPUT and tensor.dims and tensor.dims[-1] not in (ANY, labels):
            yield (
                f"{version.name}/{parameters.artifact}/{ONNX_NAME}, {tensor.name}: "
                f"{list(tensor.dims)}; allowed: {labels} at the end, the labels of the artifact"
            )


def _graph_faults(graph: Path, config: ModelConfig) -> Iterator[str]:
    """Yield the differences between a config.pbtxt and the graph that a backend of Triton runs."""
    try:
        signature = read_signature(graph)
    except ModelError as error:
        yield f"{graph.parent.name}: {error}"
        return
    yield from _missing_weights(graph.parent, signature)
    sides = (
        ("input", config.input, signature.inputs),
        ("output", config.output, signature.outputs),
    )
    for side, declared, own in sides:
        known = {each.name: _shown_tensor(each.data_type, each.dims or ()) for each in own}
        for tensor in declared:
            shown = _shown_tensor(triton.DataType.Name(tensor.data_type), tensor.dims)
            if shown != known.get(tensor.name):
                allowed = known.get(tensor.name) or f"an {side} of the graph: {', '.join(known)}"
                yield f"{CONFIG_NAME}, {side} {tensor.name!r}: {shown}; allowed: {allowed}"
    for name in {each.name for each in signature.inputs} - {each.name for each in config.input}:
        yield f"{CONFIG_NAME}, input: {name!r} is missing, and the graph needs it"


def _shown_tensor(data_type: str, dims: Sequence[int]) -> str:
    return f"{data_type} {[*dims]}"


def _missing_weights(folder: Path, signature: GraphSignature) -> Iterator[str]:
    for name in sorted(signature.weight_files):
        if not (folder / name).is_file():
            yield f"{folder.name}/{ONNX_NAME}: {name} with its weights is missing next to it"


def _warn_of_device(artifact: Artifact, config: ServeConfig) -> None:
    """Warn of a graph that mostly runs on another device, or in another data type."""
    precision, runtime = artifact.card.precision, SERVED_RUNTIMES[config.runtime].in_process
    if config.gpu and precision not in FLOAT_PRECISIONS:
        # by https://github.com/microsoft/onnxruntime/blob/main/docs/FAQ.md
        logger.warning(
            "%s is of precision %s, for KIND_GPU: of 8-bit operators, the CUDA provider has "
            "QuantizeLinear, DequantizeLinear and MatMulInteger, and others run on the CPU. Leave "
            "--gpu out, or give a graph of float32 or float16.",
            artifact.place,
            precision,
        )
    on_gpu = config.gpu or (runtime is not None and RUNTIMES[runtime].needs_gpu)
    if not on_gpu and precision == "float16":
        logger.warning(
            "%s is of float16, for %s on the CPU, which computes most of it in float32, with "
            "conversions between them. Take a runtime of a GPU, or a graph of float32 or 8 bits.",
            artifact.place,
            config.runtime,
        )


def check_servable(artifact: Artifact) -> None:
    """Raise ModelError unless an artifact is an ONNX classifier."""
    card = artifact.card
    if card.kind != "onnx":
        step = f"Export it first: `bertender export {artifact.place} --out FOLDER`."
        if card.kind == "bundle":
            step = "Give the graph that it was made of."
        raise ModelError(
            f"{artifact.place} is a {card.kind!r} artifact; only 'onnx' artifacts are served. "
            f"{step}"
        )
    if card.task.problem_type not in PROBLEMS:
        raise ModelError(
            f"{artifact.place} was made for {card.task.problem_type!r}; the endpoint serves "
            f"{', '.join(map(repr, PROBLEMS))}. Fine-tune it on a task first: `bertender finetune`."
        )
    task = artifact.card.task
    if PROBLEMS[task.problem_type].places_are_labels and len(task.labels) < FEWEST_CHOICES:
        raise ModelError(
            f"{artifact.place} scores choices, and does not say how many a question has. Import it "
            "with their numbers, as four: bertender import ... --labels 0,1,2,3."
        )


def _check_encoders(artifacts: Mapping[str, Artifact], config: ServeConfig) -> None:
    """Check the artifacts for a backend of Triton, which serves a single model.

    Raises:
        ConfigError: there are several models, or one of another name.
        ModelError: the backend would add 8-bit products wrongly on this CPU.
    """
    if [*artifacts] != [MODEL_NAME]:
        raise ConfigError(
            f"runtime={config.runtime} serves one artifact, as {MODEL_NAME!r}, and there are "
            f"{', '.join(artifacts)}. Write a repository for each."
        )
    quantization = artifacts[MODEL_NAME].card.findings.quantization
    is_exact = config.gpu or not config.starts_server or not saturates()
    if not is_exact and quantization is not None and quantization.target != "avx2":
        raise ModelError(
            f"{artifacts[MODEL_NAME].path} was quantized for target {quantization.target!r}. This "
            "CPU has no 8-bit dot products, and the backend of Triton would not add its products "
            "exactly. Use --runtime onnxruntime, or quantize again with --target avx2."
        )


def _fill(model: Path, artifact: Artifact, config: ServeConfig, is_temporary: bool) -> None:
    version = model / str(FIRST_VERSION)
    inputs: tuple[str, ...] = ()
    if config.triton_backend:
        version.mkdir(parents=True)
        (version / "model.py").write_text(MODEL_FILE, encoding="utf-8")
        encoder = model.with_name(ENCODER_NAME) / str(FIRST_VERSION)
        stamp = place_artifact(artifact, encoder, is_temporary=is_temporary)
        inputs = _write_encoder(encoder, artifact, config)
    else:
        stamp = fill_version(version, artifact, is_temporary=is_temporary)
    settings = model_config(
        artifact.card,
        config,
        artifact.digest,
        stamp,
        name=model.name,
        longest_input=stated_longest_input(artifact.path),
        encoder_inputs=inputs,
    )
    write_model_config(model / CONFIG_NAME, settings)


def fill_version(version: Path, artifact: Artifact, *, is_temporary: bool) -> str:
    """Fill the folder of a model's version; return the stamp of the artifact's files in it."""
    stamp = place_artifact(artifact, version / "artifact", is_temporary=is_temporary)
    (version / "model.py").write_text(MODEL_FILE, encoding="utf-8")
    return stamp


def _write_encoder(version: Path, artifact: Artifact, config: ServeConfig) -> tuple[str, ...]:
    """Write the configuration of the model that runs the graph, and return its inputs."""
    signature = read_signature(version / ONNX_NAME)
    tokenize = PROBLEMS[artifact.card.task.problem_type].encoder(
        open_tokenizer(artifact.path, config.max_length), None
    )
    shapes = bucket_shapes(
        config.tokens_per_bucket or MOST_TOKENS, tokenize.max_length, config.max_batch_size
    )
    outputs = tuple(each for each in signature.outputs if each.name == ENCODER_OUTPUT)
    used = replace(signature, outputs=outputs)
    write_model_config(version.parent / CONFIG_NAME, encoder_config(used, config, shapes))
    return tuple(each.name for each in signature.inputs)


def place_artifact(artifact: Artifact, out: Path, *, is_temporary: bool) -> str:
    """Put the card of an artifact and the files that it lists into a new folder.

    The new files are read once, to compare their digests with the card.

    Args:
        artifact: artifact to place.
        out: new folder.
        is_temporary: whether the folder is loaded once and removed before the artifact, so that
            links suffice.

    Returns:
        The stamp of the files, which changes when they are touched.

    Raises:
        DamagedArtifactError: the files differ from the card.
        OSError: the files cannot be written.
    """
    out.mkdir(parents=True)
    write_moved_card(artifact, out)
    # ONNX Runtime memory-maps a file of weights: writing into it would change the predictions of a
    # running server
    has_links = is_temporary and ONNX_DATA_NAME not in artifact.card.files
    for name in artifact.card.files:
        source, target = artifact.path / name, out / name
        if not source.is_file():  # the check below reports missing files
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        for link in (os.link, os.symlink) if has_links else ():
            with suppress(OSError):  # another file system, or a file system without links
                link(source.resolve(), target)
                break
        else:
            shutil.copyfile(source, target)
    placed = Artifact(out, artifact.card)
    stamp = placed.stamp
    try:
        placed.check_files()
    except DamagedArtifactError:
        artifact.check_files()  # its error has the path of the artifact itself
        raise
    return stamp


def cannot_be_written(
    directory: Path, artifacts: Sequence[Artifact], error: OSError
) -> ArtifactError:
    """Return the error for artifacts whose files cannot be written to a repository."""
    files = [file for artifact in artifacts for file in artifact.card.files.values()]
    size_mb = sum(file.size_bytes for file in files) / 1e6
    return ArtifactError(
        f"the model repository {directory} cannot be written: {error.strerror}. It takes "
        f"{size_mb:.1f} MB. Make room, or choose another directory (TMPDIR for `serve`). "
        "Nothing has changed there."
    )


def is_repository(directory: Path) -> bool:
    """Return whether `directory` has only a repository written by `write_repository`."""
    if not directory.is_dir():
        return False
    models = [path for path in directory.iterdir() if not _is_remainder(path.name)]
    return bool(models) and all(map(_is_model, models))


def _is_remainder(name: str) -> bool:
    """Return whether a folder may be left by a killed deployment."""
    return bool(DRAFT.match(name)) or name.endswith(CANDIDATE_SUFFIX)


def _is_model(path: Path) -> bool:
    cards = [*path.glob(f"*/artifact/{CARD_NAME}")]
    if path.name in (MODEL_NAME, ENCODER_NAME):  # ENCODER_NAME has the artifact of both
        cards += path.with_name(ENCODER_NAME).glob(f"*/{CARD_NAME}")
    return (path / CONFIG_NAME).is_file() and any(card.is_file() for card in cards)


def model_names(repository: Path) -> tuple[str, ...]:
    """Return the names of a repository's models, without candidates."""
    names = sorted(path.parent.name for path in repository.glob(f"*/{CONFIG_NAME}"))
    return tuple(name for name in names if not name.endswith(CANDIDATE_SUFFIX))


def _check_foreign(directory: Path) -> None:
    """Raise ArtifactError where a new repository would replace anything but an old repository."""
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return
    if not is_repository(directory):
        raise ArtifactError(
            f"{directory} exists and is not a model repository of bertender, so it will not be "
            "replaced. Choose another directory, or remove it yourself."
        )
    if deployed := [path for path in directory.glob("*/[0-9]*") if path.name != "1"]:
        raise ArtifactError(
            f"{directory} holds versions that were deployed there: "
            f"{', '.join(f'{path.name} of {path.parent.name}' for path in deployed)}. They would "
            f"be gone. Deploy another: bertender deploy ARTIFACT --to {directory}; or choose "
            "another directory."
        )
    if foreign := _foreign_files(directory):
        raise ArtifactError(
            f"{directory} holds files that bertender has not written, and they would be gone: "
            f"{shown_names(foreign)}. Choose another directory, or move them."
        )


def _foreign_files(repository: Path) -> list[str]:
    """Return the names of files in a repository that bertender has not written."""
    own = {*repository.glob(f"*/{CONFIG_NAME}"), *repository.glob("*/*/model.py")}
    artifacts = [card.parent for card in repository.glob(f"**/{CARD_NAME}")]
    foreign: list[Path] = []
    for path in repository.rglob("*"):
        place = path.relative_to(repository)
        if any(_is_remainder(part) or part == "__pycache__" for part in place.parts):
            continue
        inside = any(path.is_relative_to(artifact) for artifact in artifacts)
        if not inside and path not in own and (path.is_symlink() or not path.is_dir()):
            foreign.append(place)
    foreign += (
        (artifact / name).relative_to(repository)
        for artifact in artifacts
        for name in foreign_files(artifact)
        if artifact / name not in own
    )
    return sorted(path.as_posix() for path in foreign)


NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


def check_name(name: str) -> str:
    """Return the name of a model if it is valid.

    Raises:
        ConfigError: the name is not valid.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no name of a model: it begins with a letter, and has at most 64 letters, "
            "digits, _ and -."
        )
    if name == ENCODER_NAME:
        raise ConfigError(
            f"{name!r} is for the graph of {MODEL_NAME!r} where a backend of Triton runs it. "
            "Choose another."
        )
    if name.endswith(CANDIDATE_SUFFIX):
        raise ConfigError(
            f"{name!r}: names that end with {CANDIDATE_SUFFIX!r} are for what `bertender deploy` "
            "tries. Choose another."
        )
    return name
