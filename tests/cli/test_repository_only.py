"""`serve --repository-only`: what it writes, what it warns of, and that it tries it here."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertender.core.errors import ServerMissingError, ServingError
from serve import check
from serve.config import ServeCommandConfig
from serve.repository.config_pbtxt import read_signature
from tests.cli.made import Made
from tests.front import fail, last_line, succeed
from tests.serve.reported import reported

ENCODER = "classifier-encoder/config.pbtxt"
WRITE = ("--runtime", "triton-onnxruntime", "--repository-only")


@pytest.fixture(scope="module")
def half(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The student in float16."""
    out = tmp_path_factory.mktemp("half") / "float16"
    succeed("export", made["student"], "--precision", "float16", "--out", out)
    return out


@pytest.mark.parametrize(
    ("name", "flags", "warning"),
    [
        ("onnx", (), ""),
        ("onnx", ("--gpu",), ""),
        ("int8", (), ""),
        ("int8", ("--gpu",), ", for KIND_GPU: of 8-bit operators"),
        ("float16", (), "is of float16, for triton-onnxruntime on the CPU"),
        ("float16", ("--gpu",), ""),
    ],
)
def test_what_was_made_is_written_with_a_warning_at_most(
    name: str,
    flags: tuple[str, ...],
    warning: str,
    made: Made,
    half: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = half if name == half.name else made[name]
    result = succeed("serve", model, *WRITE, tmp_path / "models", *flags)
    assert result.stdout.startswith(f"model repository: {tmp_path / 'models'}\nnot tried here: ")
    said = [each.getMessage() for each in caplog.records if each.name == "serve.repository"]
    assert [warning in each for each in said] == ([True] if warning else [])
    kind = "KIND_GPU" if flags else "KIND_CPU"
    assert f"kind: {kind}" in (tmp_path / "models" / ENCODER).read_text()
    graph = tmp_path / "models" / "classifier-encoder" / "1" / "model.onnx"
    signature = read_signature(graph)
    assert (signature.inputs, signature.outputs) == reported(graph)


@pytest.mark.server
def test_every_model_of_it_classifies_a_text_here(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = (f"tone={made['int8']}", made["onnx"])
    words = ("serve", *models, "--repository-only", tmp_path / "models")
    assert "\na server classified with it\n" in succeed(*words).stdout
    written = {path.name for path in (tmp_path / "models").rglob("*")}
    assert "__pycache__" not in written, "what was tried is what was written"
    monkeypatch.setattr(check, "try_repository", lambda *given: None)
    said = last_line(succeed(*words, "--json"))
    assert said["not_tried"] is None
    command = said["tritonserver"].split()
    assert command[0] == "tritonserver" and f"--model-repository={tmp_path / 'models'}" in command
    assert {"--load-model=tone", "--load-model=classifier", "--http-port=8004"} <= {*command}


def test_one_that_does_not_serve_here_is_named_and_there(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(repository: Path, config: ServeCommandConfig) -> None:
        assert config.starts_server and (config.http_port, config.instances) == (0, 3)
        raise ServingError("the server did not start: it is out of memory.")

    monkeypatch.setattr(check, "find_installation", lambda: None)
    monkeypatch.setattr(check, "Server", ends)
    words = ("serve", made["int8"], "--repository-only", tmp_path / "models", "--instances", "3")
    said = f"{tmp_path / 'models'} is written, and does not serve on this machine: the server did"
    assert said in fail(*words)
    assert (tmp_path / "models" / "classifier" / "config.pbtxt").is_file()


def test_without_a_server_it_says_that_it_was_not_tried(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> None:
        raise ServerMissingError("no Triton server: `bertender install-server`")

    monkeypatch.setattr(check, "find_installation", absent)
    words = ("serve", made["int8"], "--repository-only", tmp_path / "models")
    assert "\nnot tried here: no Triton server: `bertender" in succeed(*words).stdout
    assert last_line(succeed(*words, "--json"))["not_tried"].startswith("no Triton server")


@pytest.mark.server
def test_a_server_without_the_backend_is_refused(made: Made) -> None:
    said = fail("serve", made["onnx"], "--runtime", "triton-onnxruntime")
    assert "--repository-only DIRECTORY" in said and "--tritonserver ROOT/bin/tritonserver" in said
    assert "in the process of the Python backend" in fail("serve", made["onnx"], "--gpu")
