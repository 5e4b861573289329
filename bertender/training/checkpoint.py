"""Tensors in files without pickle: checkpoints of the Trainer, cached tensors, digests of weights.

The Trainer of transformers stores optimizer, scheduler and random states with `torch.save`.
`SafeCheckpoints` stores the same tensors in safetensors and the rest in JSON, which cannot contain
code. A checkpoint is valid once its marker file exists, which is written last, when the other files
are on disk, and has their digests: a checkpoint left half-written by a killed process, or damaged
later, is never resumed from.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, save_file, save_model
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer
from transformers.utils import SAFE_WEIGHTS_NAME

from bertender.core.artifact import sha256_of
from bertender.core.build_once import cached
from bertender.core.card import library_versions
from bertender.core.files import replacing, sync_directory

logger = logging.getLogger(__name__)

MARKER = "complete"
KEPT = 2
"""Checkpoints to keep: if the newest is damaged, the previous one is used."""
STATE_NAME = "trainer_state.json"
"""State file of transformers' Trainer."""


def last_checkpoint(work: Path) -> Path | None:
    """Return the newest complete checkpoint in `work`.

    Newer checkpoints that are half-written or damaged are removed, the latter with a warning.
    """
    for _, directory in sorted(_by_step(work).items(), reverse=True):
        if not (directory / MARKER).is_file():
            shutil.rmtree(directory, ignore_errors=True)  # each process of a run tries this
        elif damaged := _damaged_files(directory):
            logger.warning(
                "checkpoint %s is damaged (%s) and is removed: the run goes on from the one before "
                "it, or from the beginning where there is none",
                directory,
                ", ".join(damaged),
            )
            shutil.rmtree(directory, ignore_errors=True)
        else:
            return directory
    return None


def _by_step(work: Path) -> dict[int, Path]:
    return {int(path.name.split("-")[1]): path for path in work.glob("checkpoint-*")}


def _digests(directory: Path) -> dict[str, str]:
    files = sorted(path for path in directory.iterdir() if path.name != MARKER)
    return {path.name: sha256_of(path) for path in files}


def _damaged_files(directory: Path) -> list[str]:
    """Return the names of a checkpoint's files that changed or are missing, including its
    marker."""
    try:
        recorded = dict(json.loads((directory / MARKER).read_text(encoding="utf-8")))
        found = _digests(directory)
    except (OSError, ValueError, TypeError):
        return [MARKER]
    return [name for name in sorted({*recorded, *found}) if recorded.get(name) != found.get(name)]


class SafeCheckpoints(Trainer):
    """A Trainer whose checkpoints contain only safetensors and JSON."""

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()  # every process writes a random state
        if self.args.should_save:
            directory = self._work() / f"checkpoint-{self.state.global_step}"
            digests = _digests(directory)
            sync_directory(directory)
            with replacing(directory / MARKER) as draft:
                draft.write_text(json.dumps(digests), encoding="utf-8")
            for _, older in sorted(_by_step(self._work()).items())[:-KEPT]:
                shutil.rmtree(older, ignore_errors=True)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        directory = Path(output_dir) if output_dir else self._work()
        directory.mkdir(parents=True, exist_ok=True)
        save_weights(self.accelerator.unwrap_model(self.model), directory / SAFE_WEIGHTS_NAME)

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: torch.nn.Module | None = None
    ) -> None:
        # transformers would take tied weights, which are stored once, for missing ones
        own = self.accelerator.unwrap_model(model or self.model)
        load_weights(own, Path(resume_from_checkpoint) / SAFE_WEIGHTS_NAME)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.args.should_save:
            for name, stateful in self._stateful().items():
                _save_state(Path(output_dir) / name, stateful.state_dict())

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            for name, stateful in self._stateful().items():
                stateful.load_state_dict(_load_state(Path(checkpoint) / name))

    def _save_rng_state(self, output_dir: str) -> None:
        directory = Path(output_dir)
        directory.mkdir(parents=True, exist_ok=True)
        _save_state(directory / f"random-{self.args.process_index}", _random_state())

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            path = Path(checkpoint) / f"random-{self.args.process_index}"
            _set_random_state(_load_state(path))

    def _work(self) -> Path:
        return Path(str(self.args.output_dir))

    def _stateful(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer, "scheduler": self.lr_scheduler}


def history_of(checkpoint: Path) -> list[dict[str, Any]]:
    """Return the log in a checkpoint of the Trainer, which includes the scores of epochs."""
    state = json.loads((checkpoint / STATE_NAME).read_text(encoding="utf-8"))
    history: list[dict[str, Any]] = state["log_history"]
    return history


def save_weights(model: torch.nn.Module, path: Path) -> None:
    """Write all weights of a module, tied weights once."""
    with _separate_weights(model):
        save_model(model, str(path))


def load_weights(model: torch.nn.Module, path: Path) -> None:
    """Read weights written by `save_weights` into the same module."""
    with _separate_weights(model):
        load_model(model, str(path))


@contextmanager
def _separate_weights(model: torch.nn.Module) -> Iterator[None]:
    """Give every LSTM weight its own block of memory, as safetensors requires.

    On a GPU, cuDNN has all weights of an LSTM in one block; afterwards they are moved back there.
    """
    layers = [module for module in model.modules() if isinstance(module, torch.nn.RNNBase)]
    for weight in (weight for layer in layers for weight in layer.parameters()):
        weight.data = weight.data.clone()
    try:
        yield
    finally:
        for layer in layers:
            layer.flatten_parameters()


def _random_state() -> dict[str, Any]:
    version, words, gauss = random.getstate()
    kind, keys, *rest = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": {"version": version, "words": list(words), "gauss": gauss},
        "numpy": {
            "kind": kind,
            "keys": torch.from_numpy(np.asarray(keys, dtype=np.int64)),
            "rest": list(rest),
        },
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: Mapping[str, Any]) -> None:
    python, numpy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"]), python["gauss"]))
    np.random.set_state((numpy["kind"], numpy["keys"].numpy().astype(np.uint32), *numpy["rest"]))
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])


def _save_state(stem: Path, state: Any) -> None:
    """Write nested dicts and lists: tensors to `stem`.safetensors, the structure to `stem`.json."""
    tensors: dict[str, torch.Tensor] = {}
    tree = _take_tensors(state, tensors)
    save_file(tensors, stem.with_suffix(".safetensors"))
    stem.with_suffix(".json").write_text(json.dumps(tree))


def _load_state(stem: Path) -> Any:
    tree = json.loads(stem.with_suffix(".json").read_text())
    return _put_tensors(tree, load_file(stem.with_suffix(".safetensors")))


def _take_tensors(node: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(node, torch.Tensor):
        name = str(len(tensors))
        tensors[name] = node.detach().cpu().contiguous()
        return {"tensor": name}
    if isinstance(node, Mapping):
        # pairs, since JSON would turn the optimizer's integer keys into strings
        return {"pairs": [[key, _take_tensors(value, tensors)] for key, value in node.items()]}
    if isinstance(node, list | tuple):
        return [_take_tensors(value, tensors) for value in node]
    return node


def _put_tensors(node: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(node, dict):
        if "tensor" in node:
            return tensors[node["tensor"]]
        return {key: _put_tensors(value, tensors) for key, value in node["pairs"]}
    if isinstance(node, list):
        return [_put_tensors(value, tensors) for value in node]
    return node


NAME = "values"
"""Name of a cached tensor in its file."""


def cached_tensor(path: Path, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Return the tensor in a file, memory-mapped; if it is missing or damaged, compute and write it
    first."""

    def save(values: torch.Tensor, path: Path) -> None:
        save_file({NAME: values}, path)

    def load(path: Path) -> torch.Tensor:
        return load_file(path)[NAME]

    def described(path: Path) -> str:
        """Return shape and type of the values; digesting gigabytes would take too long."""
        try:
            values = load(path)
        except (SafetensorError, KeyError) as error:
            raise ValueError(f"no tensor {NAME!r}: {error}") from None
        return f"{tuple(values.shape)} {values.dtype}"

    return cached(path, compute, save, load, described)


COMPUTING = ("bertender", "torch", "transformers")
"""Other versions of these libraries may compute other outputs."""
DESCRIPTIVE = frozenset(
    {"_name_or_path", "architectures", "id2label", "label2id", "transformers_version"}
)
"""Settings of a model's config that do not affect its encoder's outputs."""


def computing_versions() -> list[str | None]:
    """Return the versions of the libraries that compute a model's outputs."""
    return [library_versions().get(name) for name in COMPUTING]


def weights_digest(model: PreTrainedModel) -> str:
    """Return a sha256 of all weights of a model's encoder, without its new head."""
    return tensors_digest(model.base_model.state_dict())


def encoder_digest(model: PreTrainedModel) -> str:
    """Return a sha256 of everything that affects a model's hidden states: weights and config
    settings.

    Weights are not enough: the number of heads or the activation may differ.
    """
    settings = {
        name: value for name, value in model.config.to_dict().items() if name not in DESCRIPTIVE
    }
    written = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(f"{weights_digest(model)} {written}".encode()).hexdigest()


def start_digest(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a sha256 of what training starts from: an encoder and all of its tokenizer but the
    longest input, which is a setting."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    of_last_call = {"padding": None, "truncation": None}
    tokens = {**json.loads(backend.to_str()), **of_last_call} if backend else tokenizer.get_vocab()
    written = json.dumps(tokens, sort_keys=True)
    return hashlib.sha256(f"{encoder_digest(model)} {written}".encode()).hexdigest()


def tensors_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return a sha256 of named tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
