"""A model repository is whole or absent, and never takes the place of foreign work."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx.external_data_helper import set_external_data

from bertender.core.artifact import Artifact
from bertender.core.errors import ArtifactError, DamagedArtifactError, ModelError
from bertender.core.findings import ProductCheck, QuantizationFindings
from serve import repository
from serve.config import SERVED_RUNTIMES, ServeCommandConfig, ServeConfig
from serve.repository import check_written, is_repository, write_repository
from serve.repository.config_pbtxt import model_config, read_model_config, write_model_config
from serve.server.server import Watch, report_overwritten
from serve.wire import MODEL_NAME


def without_links(source: Path, target: Path) -> None:
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


def test_it_holds_config_code_and_verified_files(onnx_artifact: Artifact, tmp_path: Path) -> None:
    config = ServeConfig(max_batch_size=5)
    repository = write_repository(onnx_artifact, tmp_path / "new" / "models", config)
    model = repository / "classifier"
    stamp = Artifact.load(model / "1" / "artifact").stamp
    assert read_model_config(model / "config.pbtxt") == model_config(
        onnx_artifact.card, config, onnx_artifact.digest, stamp, longest_input=64
    )
    assert "serve.backend.model" in (model / "1" / "model.py").read_text()
    assert Artifact.load(model / "1" / "artifact").digest == onnx_artifact.digest
    assert is_repository(repository)
    assert [path.name for path in repository.parent.iterdir()] == ["models"]


TRITONS_BACKEND = "triton-onnxruntime"


@pytest.mark.parametrize("target", ["vnni", "arm64"])
def test_products_that_triton_would_add_wrongly_here_are_refused(
    target: str, onnx_artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "saturates", lambda: True)
    findings = onnx_artifact.card.findings.model_copy(update={"quantization": quantized(target)})
    card = onnx_artifact.card.model_copy(update={"findings": findings})
    artifact, place = replace(onnx_artifact, card=card), tmp_path / "models"
    with pytest.raises(ModelError, match=rf"{target}.*--runtime onnxruntime.*--target avx2"):
        write_repository(artifact, place, ServeConfig(runtime=TRITONS_BACKEND))
    assert not place.exists()
    write_repository(artifact, place, ServeConfig(runtime=TRITONS_BACKEND, gpu=True))
    monkeypatch.setattr(repository, "saturates", lambda: False)
    write_repository(artifact, place, ServeConfig(runtime=TRITONS_BACKEND))


def test_8_bits_for_the_gpu_of_triton_are_a_warning(
    onnx_artifact: Artifact, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    artifact = replace(
        onnx_artifact, card=onnx_artifact.card.model_copy(update={"precision": "int8"})
    )
    write_repository(artifact, tmp_path / "models", ServeConfig(runtime=TRITONS_BACKEND, gpu=True))
    assert "of precision int8, for KIND_GPU: of 8-bit operators" in caplog.text


def test_7_bit_and_float_products_are_added_exactly_everywhere(
    onnx_artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "saturates", lambda: True)
    for each in (None, quantized("avx2")):
        findings = onnx_artifact.card.findings.model_copy(update={"quantization": each})
        card = onnx_artifact.card.model_copy(update={"findings": findings})
        config = ServeConfig(runtime=TRITONS_BACKEND)
        write_repository(replace(onnx_artifact, card=card), tmp_path / "models", config)


def quantized(target: str) -> QuantizationFindings:
    return QuantizationFindings(
        target=target,
        products=1,
        operators={},
        float_nodes={},
        product_check=ProductCheck(checked=1, worst={}),
        largest_difference_between_products=0.0,
    )


def test_a_repository_is_replaced(onnx_artifact: Artifact, tmp_path: Path) -> None:
    for size in (5, 6):
        write_repository(onnx_artifact, tmp_path / "models", ServeConfig(max_batch_size=size))
    config = read_model_config(tmp_path / "models" / "classifier" / "config.pbtxt")
    assert config.max_batch_size == 6
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_a_foreign_directory_is_not_replaced(onnx_artifact: Artifact, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ArtifactError, match="not a model repository of bertender"):
        write_repository(onnx_artifact, tmp_path, ServeConfig())
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("place", ["notes.md", "classifier/notes.md", "classifier/1/artifact/a.md"])
def test_files_of_others_in_a_repository_stay(
    place: str, onnx_artifact: Artifact, tmp_path: Path
) -> None:
    repository = write_repository(onnx_artifact, tmp_path / "models", ServeConfig())
    cache = repository / "classifier" / "1" / "__pycache__"  # the stub's
    cache.mkdir()
    (cache / "model.pyc").touch()
    write_repository(onnx_artifact, repository, ServeConfig())
    (repository / place).write_text("words")
    with pytest.raises(ArtifactError, match="not a model repository|gone: " + place):
        write_repository(onnx_artifact, repository, ServeConfig())
    assert (repository / place).read_text() == "words"


def test_a_repository_with_a_model_of_someone_else_is_foreign(
    onnx_artifact: Artifact, tmp_path: Path
) -> None:
    repository = write_repository(onnx_artifact, tmp_path / "models", ServeConfig())
    (repository / "resnet").mkdir()
    with pytest.raises(ArtifactError, match="Choose another directory"):
        write_repository(onnx_artifact, repository, ServeConfig())


def test_a_deployed_version_is_not_replaced(onnx_artifact: Artifact, tmp_path: Path) -> None:
    repository = write_repository(onnx_artifact, tmp_path / "models", ServeConfig())
    (repository / "classifier" / "1").rename(repository / "classifier" / "2")
    with pytest.raises(ArtifactError, match=r"2 of classifier.*bertender deploy ARTIFACT --to"):
        write_repository(onnx_artifact, repository, ServeConfig())
    assert (repository / "classifier" / "2").is_dir()


def test_a_torch_artifact_is_sent_to_export(teacher: Artifact, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"`bertender export .*teacher --out FOLDER`"):
        write_repository(teacher, tmp_path / "models", ServeConfig())
    assert not (tmp_path / "models").exists()


def test_a_language_model_is_refused(onnx_artifact: Artifact, tmp_path: Path) -> None:
    task = onnx_artifact.card.task.model_copy(update={"problem_type": "masked_language_model"})
    card = onnx_artifact.card.model_copy(update={"task": task})
    with pytest.raises(ModelError, match="masked_language_model"):
        write_repository(Artifact(onnx_artifact.path, card), tmp_path / "models", ServeConfig())


def test_a_damaged_artifact_leaves_the_old_repository(
    onnx_artifact: Artifact, tmp_path: Path
) -> None:
    repository = write_repository(onnx_artifact, tmp_path / "models", ServeConfig())
    damaged = tmp_path / "damaged"
    shutil.copytree(onnx_artifact.path, damaged)
    (damaged / "model.onnx").write_bytes(b"half of it")
    with pytest.raises(DamagedArtifactError, match=r"model\.onnx differs"):
        write_repository(Artifact.load(damaged, verify=False), repository, ServeConfig())
    assert Artifact.load(repository / "classifier" / "1" / "artifact").digest


@pytest.mark.parametrize("is_temporary", [False, True])
@pytest.mark.parametrize("has_links", [False, True])
def test_the_model_is_copied_only_where_no_link_can_be(
    onnx_artifact: Artifact,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_temporary: bool,
    has_links: bool,
) -> None:
    if not has_links:
        monkeypatch.setattr(os, "link", without_links)
    repository = write_repository(
        onnx_artifact, tmp_path / "models", ServeConfig(), is_temporary=is_temporary
    )
    placed = repository / "classifier" / "1" / "artifact"
    model = placed / "model.onnx"
    assert model.samefile(onnx_artifact.path / "model.onnx") == is_temporary
    assert model.is_symlink() == (is_temporary and not has_links)
    assert Artifact.load(placed).digest == onnx_artifact.digest


def test_who_writes_into_an_artifact_does_not_change_a_repository(
    onnx_artifact: Artifact, tmp_path: Path
) -> None:
    """`cp` writes into a file that is there."""
    artifact = Artifact.load(shutil.copytree(onnx_artifact.path, tmp_path / "artifact"))
    repository = write_repository(artifact, tmp_path / "models", ServeConfig())
    (artifact.path / "model.onnx").write_bytes(b"another model")
    placed = Artifact.load(repository / "classifier" / "1" / "artifact")
    assert placed.digest == onnx_artifact.digest


@pytest.mark.fault(
    "somebody overwrites the served artifact", "a warning; the loaded model keeps serving"
)
@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
def test_who_writes_into_what_is_served_is_noticed_once(
    name: str, onnx_artifact: Artifact, tmp_path: Path
) -> None:
    artifact = Artifact.load(shutil.copytree(onnx_artifact.path, tmp_path / "artifact"))
    repository = write_repository(artifact, tmp_path / "models", ServeConfig(), is_temporary=True)
    watch = Watch(repository)
    placed = repository / "classifier" / "1" / "artifact"
    assert watch.overwritten() == {}
    os.utime(placed / name)  # touched, and still the same
    assert watch.overwritten() == {}
    with (artifact.path / name).open("r+b") as file:
        file.write(b"other")
    assert f"{name} differs" in str(watch.overwritten()[placed])
    assert watch.overwritten() == {}
    shutil.rmtree(placed)  # a version that was removed
    assert watch.overwritten() == {}


@pytest.mark.parametrize("method", ["stat", "open"])
def test_storage_that_is_away_for_a_while_is_reported_once(
    method: str, onnx_artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = write_repository(onnx_artifact, tmp_path / "models", ServeConfig())
    placed = repository / "classifier" / "1" / "artifact"
    watch, original = Watch(repository), getattr(Path, method)

    def away(path: Path, *words: Any, **settings: Any) -> Any:
        if path.name == "model.onnx":
            raise OSError(errno.EIO, "Input/output error")
        return original(path, *words, **settings)

    os.utime(placed / "model.onnx")
    with monkeypatch.context() as patch:
        patch.setattr(Path, method, away)
        assert "Input/output error" in str(watch.overwritten()[placed])
        assert watch.overwritten() == {}
    assert watch.overwritten() == {}
    (placed / "model.onnx").write_bytes(b"another model")
    assert "model.onnx differs" in str(watch.overwritten()[placed])


def test_the_artifact_that_was_overwritten_is_named(
    onnx_artifact: Artifact, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = (
        Artifact.load(shutil.copytree(onnx_artifact.path, tmp_path / name)) for name in ("a", "b")
    )
    models = {"first": a, "second": b}
    watch = Watch(write_repository(models, tmp_path / "models", ServeConfig(), is_temporary=True))
    (b.path / "model.onnx").write_bytes(b"another model")
    report_overwritten(watch, models)
    (message,) = caplog.messages
    assert f"files of {b.path} were overwritten" in message and str(a.path) not in message


def test_a_repository_outlives_its_artifact(onnx_artifact: Artifact, tmp_path: Path) -> None:
    shutil.copytree(onnx_artifact.path, tmp_path / "artifact")
    artifact = Artifact.load(tmp_path / "artifact")
    repository = write_repository(artifact, tmp_path / "models", ServeConfig())
    shutil.rmtree(artifact.path)
    placed = Artifact.load(repository / "classifier" / "1" / "artifact")
    assert placed.digest == onnx_artifact.digest


def test_a_linked_file_of_an_artifact_is_no_link_to_a_link(
    onnx_artifact: Artifact, tmp_path: Path
) -> None:
    """As in a cache of the hub, whose files are relative links."""
    shutil.copytree(onnx_artifact.path, tmp_path / "artifact")
    (tmp_path / "blob").write_bytes((tmp_path / "artifact" / "model.onnx").read_bytes())
    (tmp_path / "artifact" / "model.onnx").unlink()
    (tmp_path / "artifact" / "model.onnx").symlink_to("../blob")
    artifact = Artifact.load(tmp_path / "artifact")
    repository = write_repository(artifact, tmp_path / "far" / "away" / "models", ServeConfig())
    assert Artifact.load(repository / "classifier" / "1" / "artifact").digest == artifact.digest


def test_a_missing_file_of_the_artifact_is_named(onnx_artifact: Artifact, tmp_path: Path) -> None:
    shutil.copytree(onnx_artifact.path, tmp_path / "artifact")
    artifact = Artifact.load(tmp_path / "artifact")
    (artifact.path / "model.onnx").unlink()
    with pytest.raises(DamagedArtifactError, match=rf"{artifact.path} .*model\.onnx is missing"):
        write_repository(artifact, tmp_path / "models", ServeConfig())
    assert not (tmp_path / "models").exists()


CHANGES: Mapping[str, Callable[[Path], object]] = {
    "written to": lambda file: file.open("ab").write(b"x"),
    "touched": lambda file: os.utime(file, ns=(1, 1)),
    "replaced by a copy": lambda file: shutil.copy2(shutil.copy2(file, f"{file}.2"), file),
    "removed": lambda file: file.unlink(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_any_change_of_a_file_changes_the_stamp(
    name: str, onnx_artifact: Artifact, tmp_path: Path
) -> None:
    copy = replace(onnx_artifact, path=shutil.copytree(onnx_artifact.path, tmp_path / "copy"))
    before = copy.stamp
    assert before == copy.stamp != onnx_artifact.stamp
    CHANGES[name](copy.path / "model.onnx")
    assert copy.stamp != before


@pytest.mark.parametrize("change", ["none", "a copy", "damage"])
def test_files_are_read_again_only_where_they_may_have_changed(
    change: str,
    onnx_artifact: Artifact,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = write_repository(onnx_artifact, tmp_path / "models", ServeConfig())
    folder = directory / "classifier" / "1" / "artifact"
    config = read_model_config(directory / "classifier" / "config.pbtxt")
    if change != "none":
        graph = (folder / "model.onnx").read_bytes()
        (folder / "model.onnx").unlink()
        (folder / "model.onnx").write_bytes(graph[:-9] if change == "damage" else graph)
    checked = []

    def check(artifact: Artifact) -> None:
        checked.append(artifact.path)
        raise_if_damaged(artifact)

    raise_if_damaged = Artifact.check_files
    monkeypatch.setattr(Artifact, "check_files", check)
    expected = pytest.raises(DamagedArtifactError) if change == "damage" else nullcontext()
    with expected:
        Artifact.load(folder, checked_at=config.parameters["stamp"].string_value)
    assert checked == ([] if change == "none" else [folder])


def test_every_setting_is_described() -> None:
    assert all(field.description for field in ServeConfig.model_fields.values())


@pytest.mark.parametrize("before", [False, True])
def test_a_full_disk_is_named_and_leaves_nothing_half_written(
    onnx_artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    out = tmp_path / "models"
    if before:
        write_repository(onnx_artifact, out, ServeConfig(max_batch_size=3))
    copied = []

    def full(source: Path, target: Path) -> None:
        copied.append(target)
        if len(copied) > 2:
            target.write_bytes(b"hal")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", without_links)
    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(ArtifactError, match=r"models cannot be written: No space left .*MB"):
        write_repository(onnx_artifact, out, ServeConfig(max_batch_size=4))
    assert [path.name for path in tmp_path.iterdir()] == (["models"] if before else [])
    if before:
        config = read_model_config(out / MODEL_NAME / "config.pbtxt")
        assert is_repository(out) and config.max_batch_size == 3


ENCODER = "classifier-encoder"


def changed_config(model: str, change: Callable[[Any], object]) -> Callable[[Path], None]:
    def plant(folder: Path) -> None:
        config = read_model_config(folder / model / "config.pbtxt")
        change(config)
        write_model_config(folder / model / "config.pbtxt", config)

    return plant


def weights_apart(folder: Path) -> None:
    graph = folder / ENCODER / "1" / "model.onnx"
    model = onnx.load(graph)
    set_external_data(model.graph.initializer[0], "model.onnx_data")
    onnx.save(model, graph)
    (graph.parent / "model.onnx_data").unlink()


FAULTS: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "no version": (
        lambda folder: (folder / "classifier" / "1").rename(folder / "classifier" / "latest"),
        "classifier/1 is missing, the version of config.pbtxt",
    ),
    "no code": (
        lambda folder: (folder / "classifier" / "1" / "model.py").unlink(),
        "classifier/1/model.py is missing",
    ),
    "no artifact": (
        lambda folder: shutil.rmtree(folder / ENCODER / "1"),
        "there is no such directory",
    ),
    "a file that has changed": (
        lambda folder: (folder / ENCODER / "1" / "tokenizer.json").write_text("{}"),
        "tokenizer.json differs from its recorded sha256",
    ),
    "not a graph": (
        lambda folder: (folder / ENCODER / "1" / "model.onnx").write_text("version https://git"),
        "is no graph of ONNX",
    ),
    "weights that are elsewhere": (
        weights_apart,
        "model.onnx: model.onnx_data with its weights is missing next to it",
    ),
    "a tensor that the graph does not have": (
        changed_config(ENCODER, lambda config: setattr(config.output[0], "name", "hidden")),
        "output 'hidden': TYPE_FP32 .*; allowed: an output of the graph: logits",
    ),
    "an input that nobody gives": (
        changed_config(ENCODER, lambda config: config.input.__delitem__(0)),
        "input: '.*' is missing, and the graph needs it",
    ),
    "another type": (
        changed_config(ENCODER, lambda config: setattr(config.output[0], "data_type", 10)),
        r"output 'logits': TYPE_FP16 \[.*; allowed: TYPE_FP32 \[",
    ),
    "another rank": (
        changed_config(ENCODER, lambda config: config.output[0].dims.append(1)),
        r"output 'logits': TYPE_FP32 \[-1, 2, 1\]; allowed: TYPE_FP32 \[-1, 2\]",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_what_is_written_is_named(
    name: str, onnx_artifact: Artifact, tmp_path: Path
) -> None:
    folder = tmp_path / "models"
    values = {"runtime": TRITONS_BACKEND, "repository_only": folder}
    write_repository(onnx_artifact, folder, ServeCommandConfig.parse(values))
    check_written(folder)
    plant, said = FAULTS[name]
    plant(folder)
    with pytest.raises(ArtifactError, match=f"(?s)so it is not written.*{said}"):
        check_written(folder)


def test_a_repository_with_a_fault_is_not_written(onnx_artifact: Artifact, tmp_path: Path) -> None:
    shutil.copytree(onnx_artifact.path, tmp_path / "artifact")
    card = tmp_path / "artifact" / "artifact.json"
    values = json.loads(card.read_text())
    values["task"]["labels"].append("vegetable")
    card.write_text(json.dumps(values))
    artifact, out = Artifact.load(tmp_path / "artifact"), tmp_path / "models"
    for runtime in SERVED_RUNTIMES:
        config = ServeCommandConfig.parse({"runtime": runtime, "repository_only": out})
        with pytest.raises(ArtifactError, match=r"logits: \[.*, 2\]; allowed: 3 at the end"):
            write_repository(artifact, out, config)
    assert not out.exists()
