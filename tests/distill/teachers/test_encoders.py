"""Finding encoders: packaged, in folders, on hubs; and what is never loaded."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from bertender.core.errors import DamagedArtifactError, HubUnreachableError, ModelError
from bertender.core.hub import PROBE_SECONDS, hub_knows
from bertender.text.tokenizer import load_tokenizer
from distill.teachers import encoders
from distill.teachers.encoders import PACKAGED, find_encoder, load_classifier
from tests.online import forget_sessions
from tests.toy_models import VOCABULARY, save_encoder

LABELS = ("no", "yes")


def is_installed(name: str) -> bool:
    try:
        metadata.distribution(PACKAGED[name].distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


@pytest.mark.parametrize("name", PACKAGED)
def test_a_packaged_encoder_is_found_without_running_its_code(name: str) -> None:
    if not is_installed(name):
        pytest.skip(f"needs the extra {PACKAGED[name].extra!r}")
    folder = Path(find_encoder(name))
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        path.name for path in folder.iterdir()
    }
    assert PACKAGED[name].folder.split("/")[0] not in sys.modules


@pytest.mark.parametrize("name", PACKAGED)
def test_other_weights_than_the_known_ones_are_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_installed(name):
        pytest.skip(f"needs the extra {PACKAGED[name].extra!r}")
    monkeypatch.setitem(PACKAGED, name, replace(PACKAGED[name], sha256="0" * 64))
    with pytest.raises(
        DamagedArtifactError, match=f"must be 0{{64}}. Install {PACKAGED[name].distribution}"
    ):
        find_encoder(name)


@pytest.mark.parametrize("name", PACKAGED)
def test_a_missing_distribution_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGED, name, replace(PACKAGED[name], distribution="not-there-at-all"))
    with pytest.raises(ModelError, match=rf"not-there-at-all.*bertender\[{PACKAGED[name].extra}\]"):
        find_encoder(name)


@pytest.mark.parametrize("name", PACKAGED)
def test_a_distribution_without_its_weights_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        PACKAGED, name, replace(PACKAGED[name], distribution="pytest", folder="none")
    )
    with pytest.raises(DamagedArtifactError, match=r"model\.safetensors.*Install pytest again"):
        find_encoder(name)


def test_a_folder_is_returned_as_it_is(tmp_path: Path) -> None:
    assert find_encoder(str(save_encoder("bert", tmp_path))) == str(tmp_path)


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        find_encoder(str(tmp_path))


def test_offline_an_unknown_name_is_refused_at_once() -> None:
    assert constants.HF_HUB_OFFLINE
    started = time.monotonic()
    with pytest.raises(HubUnreachableError, match=r"'some/model' is not a folder.*MiniLM-L6-v2"):
        find_encoder("some/model")
    assert time.monotonic() - started < PROBE_SECONDS


@pytest.fixture
def silent_server() -> Iterator[socket.socket]:
    """A server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)
        yield server


def go_online(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(encoders, "hub_knows", partial(hub_knows, seconds=0.5))
    forget_sessions()  # the session that refuses everything offline was kept


def test_a_hub_that_never_answers_is_given_up_within_seconds(
    silent_server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_online(monkeypatch, silent_server.getsockname()[1])
    started = time.monotonic()
    with pytest.raises(HubUnreachableError, match="no hub that responds knows it"):
        find_encoder("some/model")
    assert time.monotonic() - started < PROBE_SECONDS
    connection, _ = silent_server.accept()
    with connection:
        # of huggingface_hub 2, a question of its own comes first
        assert b"GET /api/" in connection.recv(1000)
    forget_sessions()


def test_a_hub_that_refuses_connections_is_unreachable(
    silent_server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = silent_server.getsockname()[1]
    silent_server.close()
    go_online(monkeypatch, port)
    with pytest.raises(HubUnreachableError):
        find_encoder("some/model")
    forget_sessions()


def test_the_head_is_new_and_carries_the_labels(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, tokenizer = load_classifier(str(save_encoder("roberta", tmp_path)), ("a", "b", "c"))
    assert model.config.id2label == {0: "a", 1: "b", 2: "c"}
    assert model.config.label2id == {"a": 0, "b": 1, "c": 2}
    assert model.dtype == torch.float32
    assert tokenizer.model_max_length <= 64


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    save_encoder("bert", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"not even looked at")
    with pytest.raises(ModelError, match=r"model\.safetensors.*bertender reads no pickles"):
        load_classifier(str(tmp_path), LABELS)


@pytest.mark.parametrize("model_type", ["bert", "mine"])
def test_code_beside_the_weights_is_not_run(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for a model that transformers knows, nor after asking whoever is at the keyboard."""
    save_encoder("bert", tmp_path)
    monkeypatch.setattr("builtins.input", lambda *given: pytest.fail("it asked"))
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    config = json.loads((tmp_path / "config.json").read_text())
    config["model_type"] = model_type
    config["auto_map"] = {
        "AutoConfig": "code.Config",
        "AutoModelForSequenceClassification": "code.Model",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    if model_type == "bert":
        load_classifier(str(tmp_path), LABELS)
    else:
        with pytest.raises(ModelError, match="runs no hub code"):
            load_classifier(str(tmp_path), LABELS)
    assert not (tmp_path / "ran").exists()


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    save_encoder("bert", tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        (tmp_path / name).unlink(missing_ok=True)
    with pytest.raises(ModelError, match="cannot load"):
        load_classifier(str(tmp_path), LABELS)


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    weights = save_encoder("bert", tmp_path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match="cannot load"):
        load_classifier(str(tmp_path), LABELS)


@pytest.mark.parametrize("damage", ["other names", "other shapes"])
def test_weights_that_do_not_fit_the_config_are_refused(tmp_path: Path, damage: str) -> None:
    """transformers would start from random numbers instead, with a warning at most."""
    folder = save_encoder("bert", tmp_path / "encoder")
    weights = load_file(folder / "model.safetensors")
    if damage == "other names":
        renamed = {f"other.{name}": tensor for name, tensor in weights.items()}
        save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 48}))
    with pytest.raises(ModelError, match="do not fit its config"):
        load_classifier(str(folder), ("a", "b"))


def test_a_mobileberts_padding_is_read_as_nothing(tmp_path: Path) -> None:
    """Its last token reads its right neighbour, which is padding in a batch and nothing alone."""
    folder = save_encoder("mobilebert", tmp_path / "encoder")
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.word_embeddings.weight"][0] = 0.5
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    model, _ = load_classifier(str(folder), LABELS)
    table = model.get_input_embeddings().weight
    assert not table[0].any() and table[1].any() and table.requires_grad


@pytest.mark.parametrize("model_type", ["bert", "mpnet", "modernbert"])
def test_every_token_gets_a_row(
    model_type: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save_encoder(model_type, tmp_path)
    tokenizer = load_tokenizer(folder)
    tokenizer.add_tokens(["<user>", "<url>"])
    tokenizer.save_pretrained(folder)
    model, fitting = load_classifier(str(folder), LABELS)
    table = model.get_input_embeddings().weight
    assert len(table) == model.config.vocab_size == len(fitting) == VOCABULARY + 2
    torch.testing.assert_close(table[-1], table[:-2].mean(0))
    tokens = fitting("<user> apple <url>", return_tensors="pt")
    assert tokens["input_ids"].max() == VOCABULARY + 1
    assert model.eval()(**tokens).logits.isfinite().all()
    assert "no row for: '<user>'" in caplog.text
