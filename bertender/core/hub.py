"""Model hubs: whether a hub responds, and loading models without running their code.

`hub_knows` asks first, before libraries spend minutes on retries. `open_pretrained` is the only
place where transformers loads a model, after a check that its config names no code. transformers
4.56 to 5.2 fetch an attention from the hub and run it if a config.json names one and the package
`kernels` is installed, whatever `trust_remote_code` is (CVE-2026-4372). So the files that lead to
code are first read here as plain JSON. Refused are:

    any key with `_implementation` in it   `_attn_implementation_internal` of a sub-config too;
                                           only the attentions that PyTorch has itself may be named
    attribute_map                          gives such a key another name
    configuration_files                    sends transformers to another file, which was not checked
    quantization_config                    some weights are read by kernels of the hub
    adapter_config.json                    sends transformers to another model, where peft is there

`auto_map` names code as well, but `trust_remote_code=False` keeps it from running.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import constants, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from huggingface_hub.utils import build_hf_headers, get_session  # type: ignore[attr-defined]

from bertender.core.errors import HubCodeError

logger = logging.getLogger(__name__)

# transformers' own names: asking whether a hub responds must not wait for transformers to load
CONFIG_NAME = "config.json"
ADAPTER_CONFIG_NAME = "adapter_config.json"

PROBE_SECONDS = 4.0


def hub_cache() -> str:
    """Return the download folder, where transformers looks too; it may have an older name."""
    names = ("TRANSFORMERS_CACHE", "PYTORCH_TRANSFORMERS_CACHE", "PYTORCH_PRETRAINED_BERT_CACHE")
    return next((os.environ[name] for name in names if name in os.environ), constants.HF_HUB_CACHE)


def hub_knows(place: str, seconds: float = PROBE_SECONDS) -> bool:
    """Return whether the hub knows a model or data set, waiting a few seconds at most.

    Args:
        place: path on the hub, `api/models/NAME` or `api/datasets/NAME`.
        seconds: the longest wait; a thread is used because no timeout bounds the look-up of a host
            name.
    """
    statuses: list[int] = []

    def probe() -> None:
        try:
            headers = build_hf_headers()  # a private model needs its owner's token
            response = get_session().get(
                f"{constants.ENDPOINT}/{place}", headers=headers, timeout=seconds
            )
            response.raise_for_status()  # a proxy may have responded instead
            statuses.append(response.status_code)
        except Exception as error:  # of requests or httpx, depending on huggingface_hub
            logger.info("the hub does not respond: %s", error)

    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(statuses)


BUILT_IN = ("eager", "sdpa", "flex_attention")
"""Attentions built into PyTorch; for `flash_attention_2` transformers asks the hub as well."""

SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class _Rule:
    """Keys of a config, and the values that they must not have."""

    keys: re.Pattern[str]
    is_harmless: Callable[[object], bool]
    reason: str


def _is_built_in(value: object) -> bool:
    """Return whether every attention in a setting is built into PyTorch."""
    if isinstance(value, str):
        return value in BUILT_IN
    return all(map(_is_built_in, _children(value).values()))


def _is_empty(value: object) -> bool:
    """Return whether a value is empty; a number may be that of a label with such a name."""
    return not (isinstance(value, str | dict | list) and value)


RULES = (
    _Rule(
        re.compile("_implementation"),
        _is_built_in,
        "may be fetched from the hub and run; allowed are " + ", ".join(BUILT_IN),
    ),
    _Rule(
        re.compile("^attribute_map$"), _is_empty, "gives settings other names, and so hides them"
    ),
    _Rule(
        re.compile("^configuration_files$"), _is_empty, f"has a file read instead of {CONFIG_NAME}"
    ),
    _Rule(
        re.compile("^quantization_config$"),
        _is_empty,
        "means quantized weights, which code from elsewhere reads; bertender starts from floats",
    ),
)
ADAPTER_RULE = _Rule(
    re.compile("^base_model_name_or_path$"),
    _is_empty,
    "has another model read; merge the adapter into it, and give the folder of the result",
)

CHECKED_FILES: Mapping[str, tuple[_Rule, ...]] = {
    CONFIG_NAME: RULES,
    ADAPTER_CONFIG_NAME: (ADAPTER_RULE,),
}
"""Files that may lead transformers to code, and their rules."""


def open_pretrained(auto_class: Any, source: Path | str, **settings: Any) -> Any:
    """Call `auto_class.from_pretrained`, which runs only code of installed libraries.

    Args:
        auto_class: a class of transformers, or one of its Auto classes.
        source: a folder or a hub name; from a hub, the commit that was checked is loaded.
        settings: more arguments of `from_pretrained`.

    Raises:
        HubCodeError: the config leads to code; transformers has not seen the config.
        OSError, ValueError, ...: any error of `from_pretrained`.
    """
    checked = _check(source, local_files_only=settings.get("local_files_only", False))
    return auto_class.from_pretrained(
        str(source),
        trust_remote_code=False,  # else transformers asks on the terminal
        **{**settings, **checked.settings},
    )


@dataclass(frozen=True)
class _Checked:
    """The checked files of a model: only these may be read afterwards."""

    commit: str | None = None
    is_hub_silent: bool = False

    @property
    def settings(self) -> Mapping[str, Any]:
        """Arguments of `from_pretrained` to load the checked files."""
        revision = {"revision": self.commit} if self.commit else {}
        return {**revision, **({"local_files_only": True} if self.is_hub_silent else {})}


def _check(source: Path | str, *, local_files_only: bool) -> _Checked:
    """Check each of CHECKED_FILES; if the hub does not respond, those of the cached commit.

    Raises:
        HubCodeError: a file leads to code; the message names file, key and value.
        OSError, ValueError: a file is not JSON, or the hub cannot be asked for it.
    """
    from transformers.utils.hub import extract_commit_hash  # loading transformers takes a second

    is_local = local_files_only or constants.HF_HUB_OFFLINE
    commit, is_hub_silent = None, False
    for name, rules in CHECKED_FILES.items():
        try:
            path = _located(source, name, commit, is_local or is_hub_silent)
        except LocalEntryNotFoundError:
            if commit is None:
                raise  # nothing is cached, and the hub may respond to transformers later
            path, is_hub_silent = None, True
        if path is not None:
            _check_settings(path, rules)
            commit = extract_commit_hash(str(path), commit)
    return _Checked() if Path(source).exists() else _Checked(commit, is_hub_silent)


def _located(source: Path | str, name: str, commit: str | None, is_local: bool) -> Path | None:
    """Return the path where transformers finds a file of a model, or None."""
    if Path(source).is_dir():
        path = Path(source) / name
        return path if path.is_file() else None
    if Path(source).is_file():  # transformers takes it for a config, whatever its name
        return Path(source)
    from transformers.utils import hub

    try:
        return Path(
            hf_hub_download(
                str(source),
                name,
                revision=commit,
                # an older variable of transformers before 5 may set this
                cache_dir=getattr(hub, "TRANSFORMERS_CACHE", constants.HF_HUB_CACHE),
                local_files_only=is_local,
            )
        )
    except LocalEntryNotFoundError:
        if is_local:
            return None
        raise
    except EntryNotFoundError:
        return None


def _check_settings(path: Path, rules: tuple[_Rule, ...]) -> None:
    """Raise HubCodeError for the first setting of a file that violates a rule."""
    for trail, key, value in _settings(path):
        for rule in rules:
            if rule.keys.search(key) and not rule.is_harmless(value):
                raise HubCodeError(
                    f"{path}: {trail}={json.dumps(value)[:SHOWN_CHARACTERS]} {rule.reason}. "
                    f"bertender runs no hub code: remove {key!r} from a copy of the model's folder "
                    "and give that, or choose another model."
                )


def _settings(path: Path) -> Iterator[tuple[str, str, object]]:
    """Yield every setting of a JSON file at any depth: its path, key and value."""
    try:
        waiting = [("", json.loads(path.read_text(encoding="utf-8")))]
    except (ValueError, RecursionError) as error:
        raise OSError(f"{path} is not JSON: {error}. Copy it again.") from None
    while waiting:
        trail, parent = waiting.pop()
        for key, value in _children(parent).items():
            place = f"{trail}.{key}" if trail else key
            yield place, key, value
            waiting.append((place, value))


def _children(value: object) -> Mapping[str, object]:
    """Return the values in a JSON object or array."""
    if isinstance(value, list):
        return {str(index): item for index, item in enumerate(value)}
    return value if isinstance(value, dict) else {}
