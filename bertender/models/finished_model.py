"""Where the files of a finished model are: in a folder, behind a hub name, or a graph by its path.

What each layout is, `bertender.models.importing` says.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertender.core.card import CARD_NAME
from bertender.core.errors import HubUnreachableError, ModelError, NotAnArtifactError
from bertender.models.onnx_predictor import ONNX_NAME

__all__ = ["FinishedModel", "located"]

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")

PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")

FOREIGN_WEIGHTS = ("tf_model.h5", "flax_model.msgpack", "model.ckpt.index")

GRAPHS = (ONNX_NAME, f"onnx/{ONNX_NAME}")
"""Where Optimum and transformers.js put the float graph."""

HUB_NAME = re.compile(r"(?P<name>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[\w./-]+))?")

HUB_FILES = ("*.json", "*.txt", "*.model", "*.safetensors")

HUB_GRAPHS = tuple(f"{graph}*" for graph in GRAPHS)


@dataclass(frozen=True)
class FinishedModel:
    """A finished model on this disk."""

    source: str
    """What the user named."""
    folder: Path
    """It has config.json and the tokenizer."""
    graph: Path | None = None
    """An ONNX file; None for a model of transformers."""
    revision: str | None = None

    @property
    def name(self) -> str:
        """A folder's name for it."""
        by_file = self.graph is not None and self.source.endswith(".onnx")
        name = self.source.rpartition("@")[0] if self.revision and "@" in self.source else None
        last = Path(name or self.source).absolute().name
        folder = self.folder.absolute().name
        return f"{folder}-{Path(last).stem}" if by_file else last

    @property
    def place(self) -> str:
        """Where it lies, from any working directory; of a hub, its name."""
        path = Path(self.source)
        return str(path.absolute()) if path.exists() else self.source

    @property
    def identity(self) -> str:
        """A digest that changes with any change of the files, without reading them."""
        files = sorted(path for path in self.folder.glob("*") if path.is_file())
        states = [
            (path.name, state.st_size, state.st_mtime_ns)
            for path in (*files, *([self.graph] if self.graph else []))
            for state in [path.stat()]
        ]
        plain = json.dumps([str(self.folder.resolve()), str(self.graph), self.revision, states])
        return hashlib.sha256(plain.encode()).hexdigest()[:16]


def located(source: str) -> FinishedModel:
    """Find the files of a source."""
    path = Path(source)
    if path.suffix == ".onnx" and path.is_file():
        return FinishedModel(source, _beside(path), path)
    if path.is_dir():
        return _in_folder(source, path)
    if path.is_file():
        raise NotAnArtifactError(
            f"{source} is a file. Give the folder of a model, an .onnx file, or a hub name."
        )
    return _on_hub(source)


def _in_folder(source: str, folder: Path, revision: str | None = None) -> FinishedModel:
    """Find the model of a folder: that of transformers before a graph of it."""
    if any((folder / name).is_file() for name in WEIGHTS):
        _require_config(folder, source)
        return FinishedModel(source, folder, revision=revision)
    if graph := _graph_in(folder):
        return FinishedModel(source, _beside(graph), graph, revision)
    pickles = [name for name in PICKLES if (folder / name).is_file()]
    if pickles:
        raise ModelError(
            f"{source} has its weights in {pickles[0]} alone, a pickle, and bertender reads none. "
            'Convert it once, if you trust it: python -c "from transformers import '
            f"{_class_in(folder)} as M, AutoTokenizer as T; s = {str(folder)!r}; d = 'converted'; "
            'M.from_pretrained(s).save_pretrained(d); T.from_pretrained(s).save_pretrained(d)"; '
            "then give the folder `converted`."
        )
    foreign = [name for name in FOREIGN_WEIGHTS if (folder / name).is_file()]
    has = f"only weights of another library ({foreign[0]})" if foreign else "no model"
    raise NotAnArtifactError(
        f"{source} is not an artifact, and holds {has}. Give a folder with {CARD_NAME} (the --out "
        "of a command), with config.json and model.safetensors (save_pretrained), or with an "
        ".onnx file and its tokenizer."
    )


def _class_in(folder: Path) -> str:
    """Return the class that config.json names, for the command that converts a model."""
    try:
        named = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"][0]
    except (OSError, ValueError, LookupError, TypeError):
        return "AutoModelForSequenceClassification"
    return str(named)


def _graph_in(folder: Path) -> Path | None:
    """Return the graph of a folder; None where there is none.

    Raises:
        NotAnArtifactError: there are several, and none has the usual name.
    """
    for name in GRAPHS:
        if (folder / name).is_file():
            return folder / name
    graphs = sorted((*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx")))
    if len(graphs) > 1:
        raise NotAnArtifactError(
            f"{folder} holds several graphs: {', '.join(map(str, graphs))}. Give one of them."
        )
    return graphs[0] if graphs else None


def _beside(graph: Path) -> Path:
    """Return the folder with the config.json of a graph: its own, or the one above."""
    for folder in (graph.parent, graph.absolute().parent.parent):
        if (folder / "config.json").is_file():
            return folder
    raise NotAnArtifactError(
        f"{graph}: neither its folder nor the one above has a config.json, which names the labels. "
        "Copy config.json and the tokenizer's files of the model that it was exported from there."
    )


def _require_config(folder: Path, source: str) -> None:
    if not (folder / "config.json").is_file():
        raise NotAnArtifactError(
            f"{source} has weights and no config.json. Give a folder that save_pretrained wrote."
        )


def _on_hub(source: str) -> FinishedModel:
    """Find a model of a hub, downloaded unless it is there."""
    match = HUB_NAME.fullmatch(source)
    if match is None or source.startswith("."):
        raise NotAnArtifactError(
            f"no model at {source}: there is no such directory. Give a directory that a bertender "
            "stage wrote (its --out), a model folder, an .onnx file, or a hub name."
        )
    name, revision = match["name"], match["revision"]
    from huggingface_hub import snapshot_download  # which an artifact's own files do without
    from huggingface_hub.constants import HF_HUB_OFFLINE

    from bertender.core.hub import hub_cache, hub_knows

    def downloaded(patterns: Sequence[str], offline: bool) -> Path:
        return Path(
            snapshot_download(
                name,
                revision=revision,
                cache_dir=hub_cache(),
                allow_patterns=[*patterns],
                local_files_only=offline,
            )
        )

    offline = HF_HUB_OFFLINE or not hub_knows(f"api/models/{name}")
    try:
        folder = downloaded(HUB_FILES, offline)
        if not any((folder / each).is_file() for each in WEIGHTS):
            folder = downloaded((*HUB_FILES, *HUB_GRAPHS), offline)
    except (OSError, ValueError):
        raise HubUnreachableError(
            f"no model at {source}: there is no such directory, it is not in the hub's cache on "
            "this machine, and no hub that responds knows it"
            f"{f' at revision {revision}' if revision else ''}. Check the path; or go online (and "
            "unset HF_HUB_OFFLINE)."
        ) from None
    return _in_folder(source, folder, folder.name)  # the hub's cache names folders by commits
