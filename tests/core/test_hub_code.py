"""A config that names code of the hub is refused before transformers reads it, wherever it lies."""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from huggingface_hub import constants, file_download
from huggingface_hub.errors import OfflineModeIsEnabled
from transformers import AutoModelForSequenceClassification, modeling_utils
from transformers.integrations import hub_kernels
from transformers.utils import CONFIG_NAME
from transformers.utils import hub as transformers_hub
from transformers.utils.peft_utils import ADAPTER_CONFIG_NAME

from bertender.core import hub as hub_code
from bertender.core.artifact import Artifact
from bertender.core.card import CARD_NAME
from bertender.core.errors import HubCodeError, ModelError
from bertender.core.hub import open_pretrained
from bertender.models.classifier import load_torch_classifier, open_classifier
from bertender.models.family import BEFORE_5
from bertender.models.importing import open_artifact
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from bertender.text.tokenizer import load_tokenizer
from distill.augmentation.words import load_language_model
from distill.pretraining.pretrain import positions_of_shallow
from distill.teachers.encoders import find_encoder, is_available, load_classifier
from export.config import ExportConfig
from export.exporter import export

ROOT = Path(__file__).parents[2]
PACKAGES = ("bertender", "distill", "export", "quantize", "serve", "benchmarks")
COMMIT = "0" * 40
LABELS = ("a", "b")
EVIL = "evil/attention"

RUNS_IT: Mapping[str, Mapping[str, Any]] = {
    "_attn_implementation_internal": {"_attn_implementation_internal": EVIL},
    "_attn_implementation": {"_attn_implementation": EVIL},
    "a revision and a function": {"_attn_implementation": f"{EVIL}@v1:attend"},
    "an attention by parts": {"_attn_implementation": {"": EVIL}},
    "under another name": {"attribute_map": {"x": "_attn_implementation_internal"}, "x": EVIL},
    "as the whole object": {"__dict__": {"_attn_implementation_internal": EVIL}},
}
"""Configs for which transformers fetches an attention; the control below proves it."""

NEAR_IT: Mapping[str, Mapping[str, Any]] = {
    "attn_implementation": {"attn_implementation": EVIL},
    "flash attention": {"_attn_implementation": "flash_attention_2"},
    "of experts": {"_experts_implementation": EVIL},
    "in a sub-config": {"text_config": {"model_type": "bert", "_attn_implementation": EVIL}},
    "in a list": {"parts": [{"deeper": {"_attn_implementation_internal": EVIL}}]},
    "by parts, in a sub-config": {"text_config": {"attn_implementation": {"vision": EVIL}}},
    "another file": {"configuration_files": ["config.4.0.0.json"]},
    "quantized weights": {"quantization_config": {"quant_method": "mxfp4"}},
}
"""Configs for which models of other families, or other releases of transformers, do."""

HARMLESS: Mapping[str, Mapping[str, Any]] = {
    "what PyTorch has": {
        "_attn_implementation": "sdpa",
        "text_config": {"attn_implementation": "eager"},
    },
    "what older releases wrote": {"_attn_implementation_autoset": True},
    "nothing": {"_attn_implementation": None, "quantization_config": None, "attribute_map": {}},
    "a label of that name": {"label2id": {"attribute_map": 0, "_attn_implementation": 1}},
}

Settings = Mapping[str, Any]


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Act as if `kernels` were installed; what it is asked for is listed, and no test may ask."""
    asked: list[str] = []

    def get_kernel(name: str, revision: str | None = None) -> None:
        asked.append(name)
        raise RuntimeError("hub code ran")

    with monkeypatch.context() as patch:
        patch.setattr(modeling_utils, "is_kernels_available", lambda: True)
        patch.setattr(hub_kernels, "get_kernel", get_kernel, raising=False)
        patch.setitem(sys.modules, "kernels", MagicMock(get_kernel=get_kernel))
        importlib.reload(hub_kernels)  # which looks for `kernels` when it is imported
        yield asked
    importlib.reload(hub_kernels)


@pytest.fixture
def copy(teacher: Artifact, tmp_path: Path) -> Path:
    """A copy of the teacher's artifact, to be spoilt."""
    return Path(shutil.copytree(teacher.path, tmp_path / "copy"))


def spoil(folder: Path, settings: Settings) -> Path:
    """Write settings into a model's config.json, as whoever gives it away could: the digests of
    its card are right."""
    path, card = folder / "config.json", folder / CARD_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    known = json.loads(card.read_text())
    known["files"][path.name] = {
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "size_bytes": path.stat().st_size,
    }
    card.write_text(json.dumps(known))
    return folder


def settings_read(source: Path | str, **settings: Any) -> dict[str, Any]:
    """Open a model, and return the settings that `from_pretrained` is called with."""
    seen: dict[str, Any] = {}

    class Recorder:
        from_pretrained = staticmethod(lambda source, **settings: seen.update(settings))

    open_pretrained(Recorder, source, **settings)
    return seen


OPENERS: Mapping[str, Callable[[Path], object]] = {
    "a teacher or student": lambda folder: load_classifier(str(folder), LABELS),
    "a tagger": lambda folder: load_classifier(str(folder), LABELS, TOKEN_CLASSIFICATION),
    "an augmentation model": lambda folder: load_language_model(str(folder)),
    "an artifact": lambda folder: load_torch_classifier(Artifact.load(folder, verify=False)),
    "a classifier": lambda folder: open_classifier(Artifact.load(folder, verify=False)),
    "an encoder to grow": lambda folder: positions_of_shallow(Artifact.load(folder, verify=False)),
    "a tokenizer": load_tokenizer,
}
"""Every way in for a folder that somebody else has made."""


@pytest.mark.skipif(not BEFORE_5, reason="transformers 5 runs only what a real `kernels` loads")
@pytest.mark.parametrize("settings", RUNS_IT.values(), ids=RUNS_IT)
def test_transformers_alone_runs_it(settings: Settings, copy: Path, fetched: list[str]) -> None:
    """Else the configs of this file would prove nothing."""
    with pytest.raises(Exception, match="hub code ran"):
        AutoModelForSequenceClassification.from_pretrained(
            spoil(copy, settings), trust_remote_code=False
        )
    assert fetched


@pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS)
def test_every_opener_refuses(opener: Callable[[Path], object], copy: Path) -> None:
    if opener is not OPENERS["an augmentation model"]:  # a classifier has no head for that
        opener(copy)
    spoil(copy, RUNS_IT["_attn_implementation_internal"])
    with pytest.raises(HubCodeError, match=r"config\.json: _attn_implementation_internal="):
        opener(copy)


@pytest.mark.parametrize(
    "settings", [*RUNS_IT.values(), *NEAR_IT.values()], ids=[*RUNS_IT, *NEAR_IT]
)
def test_hostile_configs(settings: Settings, copy: Path, fetched: list[str]) -> None:
    """The error names file, key and value, and what to do; transformers was not reached."""
    spoil(copy, settings)

    class Reached:
        from_pretrained = staticmethod(lambda *_, **__: pytest.fail("transformers was reached"))

    with pytest.raises(HubCodeError, match=r"config\.json: .*=.*remove '.*' from a copy"):
        open_pretrained(Reached, copy)
    with pytest.raises(HubCodeError):
        load_classifier(str(copy), LABELS)
    assert not fetched


@pytest.mark.parametrize("settings", HARMLESS.values(), ids=HARMLESS)
def test_harmless_configs(settings: Settings, copy: Path) -> None:
    assert settings_read(spoil(copy, settings)) == {"trust_remote_code": False}
    load_tokenizer(copy)


def test_the_files_that_are_checked_are_those_that_transformers_reads() -> None:
    assert hub_code.CHECKED_FILES.keys() == {CONFIG_NAME, ADAPTER_CONFIG_NAME}


def test_an_adapter_sends_nobody_elsewhere(copy: Path) -> None:
    adapter = copy / "adapter_config.json"
    adapter.write_text('{"base_model_name_or_path": "evil/model"}')
    with pytest.raises(HubCodeError, match=r"adapter_config\.json: .*evil/model.*merge"):
        load_classifier(str(copy), LABELS)


def test_an_onnx_artifact_is_refused_too(teacher: Artifact, task: Any, tmp_path: Path) -> None:
    onnx = export(teacher, task, ExportConfig(), tmp_path / "onnx")
    spoil(onnx.path, RUNS_IT["_attn_implementation"])
    with pytest.raises(HubCodeError):
        open_classifier(Artifact.load(onnx.path, verify=False))


@pytest.mark.parametrize("content", ["", "{ half", "[" * 100_000, "\xff"])
def test_a_damaged_config_is_a_clear_error(content: str, copy: Path) -> None:
    (copy / "config.json").write_text(content, encoding="latin-1")
    with pytest.raises(ModelError, match=r"config\.json is not JSON"):
        load_classifier(str(copy), LABELS)


@pytest.fixture
def cached(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a hub's model `some/model` in a cache, where no hub answers."""
    cache = tmp_path / "cache"
    folder = cache / "models--some--model" / "snapshots" / COMMIT
    shutil.copytree(copy, folder)
    (folder.parents[1] / "refs").mkdir()
    (folder.parents[1] / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(transformers_hub, "TRANSFORMERS_CACHE", str(cache), raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    return folder


def test_a_model_of_the_hub_is_read_at_the_commit_that_was_checked(cached: Path) -> None:
    assert is_available("some/model")
    model, _ = load_classifier(find_encoder("some/model"), LABELS)
    assert model.config.num_labels == len(LABELS)
    assert settings_read("some/model") == {"trust_remote_code": False, "revision": COMMIT}


@pytest.fixture
def silent_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has said that there is no network: the hub is asked, and does not answer."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    def no_answer(*_: object, **__: object) -> None:
        raise OfflineModeIsEnabled("no answer")

    monkeypatch.setattr(file_download, "get_hf_file_metadata", no_answer)


@pytest.mark.usefixtures("silent_hub")
def test_a_cached_model_opens_without_a_network(cached: Path) -> None:
    """Most models have no adapter_config.json; only what is cached may be read then."""
    model, tokenizer = load_classifier(find_encoder("some/model"), LABELS)
    assert model.config.num_labels == len(LABELS) and tokenizer("a")
    assert settings_read("some/model", local_files_only=False) == {
        "trust_remote_code": False,
        "revision": COMMIT,
        "local_files_only": True,
    }


@pytest.mark.usefixtures("silent_hub")
@pytest.mark.parametrize("settings", RUNS_IT.values(), ids=RUNS_IT)
def test_a_hostile_cached_model_without_a_network(cached: Path, settings: Settings) -> None:
    spoil(cached, settings)
    with pytest.raises(HubCodeError):
        settings_read("some/model")


@pytest.mark.usefixtures("silent_hub")
def test_a_cached_adapter_without_a_network(cached: Path) -> None:
    (cached / "adapter_config.json").write_text('{"base_model_name_or_path": "evil/model"}')
    with pytest.raises(HubCodeError, match="evil/model"):
        settings_read("some/model")


@pytest.mark.parametrize("settings", RUNS_IT.values(), ids=RUNS_IT)
def test_a_hostile_model_of_the_hub(cached: Path, settings: Settings, fetched: list[str]) -> None:
    """To look for it opens nothing; to load it reads its config first."""
    spoil(cached, settings)
    assert is_available("some/model") and find_encoder("some/model")
    openers = (
        lambda name: load_classifier(name, LABELS),
        lambda name: open_classifier(open_artifact(name)),
    )
    for opener in openers:
        with pytest.raises(HubCodeError):
            opener("some/model")
    assert not fetched


def test_a_hub_that_does_not_answer_now_is_not_trusted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers_hub, "TRANSFORMERS_CACHE", str(tmp_path), raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(OSError, match="couldn't find them"):
        open_pretrained(AutoModelForSequenceClassification, "some/other")  # it is offline here
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    def silent(*_: object, **__: object) -> str:
        raise hub_code.LocalEntryNotFoundError("no answer")

    monkeypatch.setattr(hub_code, "hf_hub_download", silent)
    with pytest.raises(OSError, match="no answer"):
        settings_read("some/other")


def test_an_address_is_no_model() -> None:
    """transformers would fetch a config from any address."""
    with pytest.raises(ModelError):
        load_classifier("http://127.0.0.1:9/config.json", LABELS)


def calls_of_from_pretrained(path: Path) -> list[str]:
    """Return every call of a `from_pretrained` in a source file, in words."""
    text = path.read_text(encoding="utf-8")
    if "from_pretrained" not in text:
        return []
    calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    found = [call for call in calls if isinstance(call, ast.Attribute)]
    return [ast.unparse(call) for call in found if call.attr == "from_pretrained"]


def test_nothing_else_calls_from_pretrained() -> None:
    own = Path(hub_code.__file__)
    packages = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    # what is compared with is called as its users do, on a folder of this machine
    files = [path for path in packages if not path.is_relative_to(ROOT / "benchmarks")]
    assert own in files and len(files) > 100
    assert calls_of_from_pretrained(own) == ["auto_class.from_pretrained"]
    tables = {"nn.Embedding.from_pretrained"}  # PyTorch's own, of a tensor
    calls = {path: calls_of_from_pretrained(path) for path in files if path != own}
    assert not {path: found for path, found in calls.items() if set(found) - tables}
