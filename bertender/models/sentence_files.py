"""Reading and writing the files of sentence-transformers for models of text vectors.

modules.json lists the modules; 1_Pooling/config.json has the pooling; a module Normalize gives
vectors length 1; sentence_bert_config.json has settings of the tokenizer. Settings that bertender
does not support are refused by name, since the vectors would differ from their author's.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bertender.core.errors import ModelError

logger = logging.getLogger(__name__)

MODULES_NAME = "modules.json"
TRANSFORMER_NAME = "sentence_bert_config.json"
TRANSFORMER_NAMES = (
    TRANSFORMER_NAME,
    *(
        f"sentence_{family}_config.json"
        for family in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
    ),
)
"""Names of the same file, by the versions that wrote it; the first that is there counts."""
PROMPTS_NAME = "config_sentence_transformers.json"
POOLING_NAME = "1_Pooling/config.json"

PoolingName = Literal["mean", "cls", "lasttoken"]
POOLINGS: Mapping[PoolingName, str] = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "lasttoken": "pooling_mode_lasttoken",
}
"""Setting of each pooling in the files of all versions; newer versions have `pooling_mode`."""
OTHERS = ("max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens")
KNOWN_MODULES = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True)
class VectorSettings:
    """How token states become the vector of a text."""

    pooling: PoolingName = "mean"
    normalize: bool = True
    """Whether vectors have length 1."""
    max_length: int | None = None
    """Longest input in the files; None where there is none."""

    def recorded(self) -> dict[str, Any]:
        """Return the settings for config.json."""
        return {"pooling": self.pooling, "normalize": self.normalize}


def has_pooling(folder: Path) -> bool:
    """Return whether a folder has a sentence-transformers model that gives vectors."""
    return (folder / MODULES_NAME).is_file() and "Pooling" in _kinds(folder)


def module_folders(folder: Path) -> list[Path]:
    """Return the folders with the settings of a folder's modules; none without modules.json."""
    if not (folder / MODULES_NAME).is_file():
        return []
    return [folder / module["path"] for module in _modules(folder)]


def check_no_further_modules(folder: Path) -> None:
    """Raise ModelError where a folder has more modules than an encoder, such as a Dense layer."""
    if (folder / MODULES_NAME).is_file() and (kinds := _kinds(folder)) != ["Transformer"]:
        raise _other_modules(folder, kinds)


def _other_modules(folder: Path, kinds: Sequence[str]) -> ModelError:
    return ModelError(
        f"{folder / MODULES_NAME}: its modules are {', '.join(kinds)}, and bertender computes "
        f"{', '.join(KNOWN_MODULES)}, in this order: its vectors would be others. Give a model "
        "without further layers."
    )


def read_settings(folder: Path) -> VectorSettings:
    """Read the vector settings of a sentence-transformers folder.

    Raises:
        ModelError: the files cannot be read, or have unsupported settings.
    """
    kinds = _kinds(folder)
    if [kind for kind in kinds if kind != "Normalize"] != ["Transformer", "Pooling"]:
        raise _other_modules(folder, kinds)
    prompts = _object(folder / PROMPTS_NAME)
    if name := prompts.get("default_prompt_name"):
        raise ModelError(
            f"{folder / PROMPTS_NAME}: a prompt ({name!r}) stands before every text, which "
            "endpoints here do not add. Set default_prompt_name to null in a copy, and send texts "
            "with the prompt."
        )
    pooling = _object(folder / pooling_file(folder))
    if known := [text for text in (prompts.get("prompts") or {}).values() if text]:
        if pooling.get("include_prompt") is False:
            raise ModelError(
                f"{folder / pooling_file(folder)}: include_prompt=false leaves the tokens of "
                f"prompts ({', '.join(map(repr, known))}) out of the pooling, and bertender cannot "
                "tell them from the text: its vectors would be others. To send texts without "
                f"prompts, set prompts to {{}} in {PROMPTS_NAME} of a copy."
            )
        logger.warning(
            "%s was trained with prompts before texts (%s): send texts with them",
            folder,
            ", ".join(map(repr, known)),
        )
    tokens = next(filter(None, (_object(folder / name) for name in TRANSFORMER_NAMES)), {})
    if tokens.get("do_lower_case"):
        _check_lower_case(folder)
    return VectorSettings(
        _pooling_of(pooling, folder), "Normalize" in kinds, tokens.get("max_seq_length")
    )


def write_settings(folder: Path, settings: VectorSettings, width: int, **model: Any) -> None:
    """Write the files next to an encoder's, readable by all versions of sentence-transformers.

    Args:
        folder: folder with config.json, weights and tokenizer, which has the longest input.
        settings: settings of the vectors.
        width: width of the vectors.
        model: arguments of `from_pretrained` that fit the weights.
    """
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    modules += [("2_Normalize", "Normalize")] if settings.normalize else []
    listed = [
        {
            "idx": number,
            "name": str(number),
            "path": path,
            "type": f"sentence_transformers.models.{kind}",
        }
        for number, (path, kind) in enumerate(modules)
    ]
    pooling = {"word_embedding_dimension": width}
    pooling |= {name: kind == settings.pooling for kind, name in POOLINGS.items()}
    pooling |= {f"pooling_mode_{name}": False for name in OTHERS}
    tokens = {"max_seq_length": None, "do_lower_case": False, "model_args": model}
    (folder / POOLING_NAME).parent.mkdir(exist_ok=True)
    for name, content in (
        (MODULES_NAME, listed),
        (TRANSFORMER_NAME, tokens),
        (POOLING_NAME, pooling),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _kinds(folder: Path) -> list[str]:
    """Return the class names of a folder's modules, in order."""
    return [str(module["type"]).rpartition(".")[2] for module in _modules(folder)]


def pooling_file(folder: Path) -> str:
    """Return the name of the file with a folder's pooling."""
    modules = _modules(folder)
    path = next(module["path"] for module in modules if module["type"].endswith("Pooling"))
    return f"{path}/config.json"


def _modules(folder: Path) -> list[Mapping[str, str]]:
    path = folder / MODULES_NAME
    try:
        modules: list[Mapping[str, str]] = json.loads(path.read_text(encoding="utf-8"))
        if all({"type", "path"} <= module.keys() for module in modules):
            return modules
    except (OSError, ValueError, AttributeError, TypeError):
        pass
    raise ModelError(f"{path} is not a list of modules, each with type and path. Copy it again.")


def _object(path: Path) -> dict[str, Any]:
    """Return the settings of a file; empty where it does not exist."""
    if not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}. Copy it again.") from None
    if not isinstance(settings, dict):
        raise ModelError(f"{path} is not a JSON object. Copy it again.")
    return settings


def _pooling_of(settings: Mapping[str, Any], folder: Path) -> PoolingName:
    """Return the pooling of a module's settings; raise ModelError unless it is exactly one."""
    named = settings.get("pooling_mode")
    chosen = [named] if isinstance(named, str) else list(named or ())
    if not chosen:
        chosen = [
            name.removeprefix("pooling_mode_")
            for name, value in settings.items()
            if name.startswith("pooling_mode_") and value is True
        ]
    short = {name.removeprefix("pooling_mode_"): kind for kind, name in POOLINGS.items()}
    for kind in POOLINGS:
        if chosen in ([kind], [next(name for name in short if short[name] == kind)]):
            return kind
    raise ModelError(
        f"{folder / pooling_file(folder)}: it pools by {' and '.join(chosen) or 'nothing'}, and "
        f"bertender by one of {', '.join(POOLINGS)}: its vectors would be others."
    )


def _check_lower_case(folder: Path) -> None:
    """Raise ModelError where the files ask for lower case and the tokenizer keeps capitals."""
    tokenizer = _object(folder / "tokenizer.json").get("normalizer") or {}
    parts = [tokenizer, *tokenizer.get("normalizers", ())]
    if not any(part.get("lowercase") or part.get("type") == "Lowercase" for part in parts):
        raise ModelError(
            f"{folder / TRANSFORMER_NAME}: do_lower_case has texts made lower case before a "
            "tokenizer that keeps capitals, which endpoints here do not. Give a tokenizer.json "
            "with a normalizer Lowercase, and set do_lower_case to false."
        )
