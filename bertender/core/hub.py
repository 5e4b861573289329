"""A model hub: whether it responds, and models read from it without any code of theirs.

`hub_knows` asks first, before libraries spend minutes on retries. `open_pretrained` is
the one place where transformers reads a model, after a check that its config names no code.
transformers 4.56 to 5.2 fetch an attention from the hub and run it where a config.json names one
and the package `kernels` is installed, whatever `trust_remote_code` is (CVE-2026-4372). So the
files that lead there are read here first, as plain JSON. What is refused:

    any key with `_implementation` in it   `_attn_implementation_internal` of a sub-config too;
                                           only the attentions that PyTorch has itself may be named
    attribute_map                          gives such a key another name
    configuration_files                    sends transformers to another file, which was not checked
    quantization_config                    some weights are read by kernels of the hub
    adapter_config.json                    sends transformers to another model, where peft is there

`auto_map` names code as well, which `trust_remote_code=False` does keep from running.
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
    """Return the folder of downloads, where transformers looks too; it may have an older name."""
    names = ("TRANSFORMERS_CACHE", "PYTORCH_TRANSFORMERS_CACHE", "PYTORCH_PRETRAINED_BERT_CACHE")
    return next((os.environ[name] for name in names if name in os.environ), constants.HF_HUB_CACHE)


def hub_knows(place: str, seconds: float = PROBE_SECONDS) -> bool:
    """Return whether the hub knows of a place, asked for some seconds at most.

    Args:
        place: path on the hub, `api/models/NAME` or `api/datasets/NAME`.
        seconds: the longest wait. The thread is there because no timeout bounds the look-up of
            a host name.
    """
    statuses: list[int] = []

    def probe() -> None:
        try:
            headers = build_hf_headers()  # a private model responds only to its owner's token
            response = get_session().get(
                f"{constants.ENDPOINT}/{place}", headers=headers, timeout=seconds
            )
            response.raise_for_status()  # a proxy may respond instead
            statuses.append(response.status_code)
        except Exception as error:  # of requests or httpx, as huggingface_hub has it
            logger.info("the hub does not respond: %s", error)

    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(statuses)


BUILT_IN = ("eager", "sdpa", "flex_attention")
"""Attentions that PyTorch has; for `flash_attention_2` transformers asks the hub as well."""

SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class _Rule:
    """Keys of a config, and what they must not hold."""

    keys: re.Pattern[str]
    is_harmless: Callable[[object], bool]
    reason: str


def _is_built_in(value: object) -> bool:
    """Return whether every attention in a setting is one that PyTorch has."""
    if isinstance(value, str):
        return value in BUILT_IN
    return all(map(_is_built_in, _children(value).values()))


def _is_empty(value: object) -> bool:
    """Return whether a value holds nothing; a number may be that of a label with such a name."""
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
"""The files that lead transformers to code, and what each must not hold."""


def open_pretrained(auto_class: Any, source: Path | str, **settings: Any) -> Any:
    """Call `auto_class.from_pretrained`, which runs no code but that of installed libraries.

    Args:
        auto_class: a class of transformers, or one of its Auto classes.
        source: a folder or a hub name; of a hub, what is read is the commit that was checked.
        settings: more arguments of `from_pretrained`.

    Raises:
        HubCodeError: the config leads to code; transformers has not seen it then.
        OSError, ValueError, ...: whatever `from_pretrained` raises.
    """
    checked = _check(source, local_files_only=settings.get("local_files_only", False))
    return auto_class.from_pretrained(
        str(source),
        trust_remote_code=False,  # without a word, transformers asks on the terminal
        **{**settings, **checked.settings},
    )


@dataclass(frozen=True)
class _Checked:
    """The checked files of a model: nothing else may be read afterwards."""

    commit: str | None = None
    is_hub_silent: bool = False

    @property
    def settings(self) -> Mapping[str, Any]:
        """The arguments of `from_pretrained` that have the same files read."""
        revision = {"revision": self.commit} if self.commit else {}
        return {**revision, **({"local_files_only": True} if self.is_hub_silent else {})}


def _check(source: Path | str, *, local_files_only: bool) -> _Checked:
    """Check each of CHECKED_FILES; without a response of the hub, those of the cached commit.

    Raises:
        HubCodeError: one of them leads to code; the message names file, key and value.
        OSError, ValueError: a file is not JSON, or the hub cannot be asked for it.
    """
    from transformers.utils.hub import extract_commit_hash  # transformers takes a second to load

    is_local = local_files_only or constants.HF_HUB_OFFLINE
    commit, is_hub_silent = None, False
    for name, rules in CHECKED_FILES.items():
        try:
            path = _located(source, name, commit, is_local or is_hub_silent)
        except LocalEntryNotFoundError:
            if commit is None:
                raise  # nothing is cached, and a hub that is silent now may respond to transformers
            path, is_hub_silent = None, True
        if path is not None:
            _check_settings(path, rules)
            commit = extract_commit_hash(str(path), commit)
    return _Checked() if Path(source).exists() else _Checked(commit, is_hub_silent)


def _located(source: Path | str, name: str, commit: str | None, is_local: bool) -> Path | None:
    """Return where transformers finds a file of a model; None where there is none."""
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
                # which an older variable of transformers before 5 may set
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
    """Raise HubCodeError for the first setting of a file that breaks a rule."""
    for trail, key, value in _settings(path):
        for rule in rules:
            if rule.keys.search(key) and not rule.is_harmless(value):
                raise HubCodeError(
                    f"{path}: {trail}={json.dumps(value)[:SHOWN_CHARACTERS]} {rule.reason}. "
                    f"bertender runs no hub code: remove {key!r} from a copy of the model's folder "
                    "and give that, or choose another model."
                )


def _settings(path: Path) -> Iterator[tuple[str, str, object]]:
    """Yield every setting of a JSON file, however deep: where it stands, its key, its value."""
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
    """Return what stands in an object or an array of JSON."""
    if isinstance(value, list):
        return {str(index): item for index, item in enumerate(value)}
    return value if isinstance(value, dict) else {}
