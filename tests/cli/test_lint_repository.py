"""`serve --runtime triton-onnxruntime --repository-only` and `lint-repository` on what was made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from serve.repository.config_pbtxt import read_signature
from tests.cli.made import Made
from tests.front import fail, invoke, succeed
from tests.serve.reported import reported

ENCODER = "classifier-encoder/config.pbtxt"
WRITE = ("--runtime", "triton-onnxruntime", "--repository-only")


@pytest.fixture(scope="module")
def half(made: Made) -> Path:
    """The student in float16."""
    succeed("export", made["student"], "--precision", "float16", "--out", made["float16"])
    return made["float16"]


@pytest.mark.parametrize(
    ("name", "flags", "rules"),
    [
        ("onnx", (), []),
        ("onnx", ("--gpu",), []),
        ("int8", (), []),
        ("int8", ("--gpu",), ["integers-on-gpu"]),
        ("float16", (), ["float16-on-cpu"]),
        ("float16", ("--gpu",), []),
    ],
)
def test_what_was_made_is_written_and_sound(
    name: str, flags: tuple[str, ...], rules: list[str], made: Made, half: Path, tmp_path: Path
) -> None:
    succeed("serve", made[name], *WRITE, tmp_path / "models", *flags)
    linted = json.loads(succeed("lint-repository", tmp_path / "models", "--json").stdout)
    assert [each["rule"] for each in linted["findings"]] == rules
    kind = "KIND_GPU" if flags else "KIND_CPU"
    assert f"kind: {kind}" in (tmp_path / "models" / ENCODER).read_text()
    graph = tmp_path / "models" / "classifier-encoder" / "1" / "model.onnx"
    signature = read_signature(graph)
    assert (signature.inputs, signature.outputs) == reported(graph)


def test_a_warning_does_not_stop_a_repository(
    made: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = succeed("serve", made["int8"], *WRITE, tmp_path / "models", "--gpu")
    assert f"{ENCODER}, instance_group: KIND_GPU, for a graph with" in caplog.text
    assert result.stdout == f"model repository: {tmp_path / 'models'}\n"


def test_it_reports_and_exits(made: Made, tmp_path: Path) -> None:
    models = tmp_path / "models"
    succeed("serve", made["int8"], *WRITE, models, "--gpu")
    result = succeed("lint-repository", models)
    assert result.stdout.startswith(f"warning: {ENCODER}, instance_group: KIND_GPU, for a graph")
    assert result.stdout.endswith(f"{models}: 0 errors, 1 warnings\n")
    config = models / ENCODER
    config.write_text(config.read_text().replace("TYPE_FP32", "TYPE_FP16"))
    said = invoke("lint-repository", models, "--json")
    assert said.exit_code == 1
    assert [each["severity"] for each in json.loads(said.stdout)["findings"]] == [
        "error",
        "warning",
    ]
    shutil.rmtree(models)
    assert "is no model repository" in fail("lint-repository", models)


def test_a_server_without_the_backend_is_refused(made: Made) -> None:
    pytest.importorskip("pytriton", reason="needs the extra `serve`", exc_type=ImportError)
    said = fail("serve", made["onnx"], "--runtime", "triton-onnxruntime")
    assert "--repository-only DIRECTORY" in said and "--tritonserver ROOT/bin/tritonserver" in said
    assert "in the process of the Python backend" in fail("serve", made["onnx"], "--gpu")
