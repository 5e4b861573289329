"""Where the files of a finished model are: a folder, behind a hub name, or a graph by its path."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertender.core.artifact import file_state
from bertender.core.card import CARD_NAME, library_versions
from bertender.core.errors import HubUnreachableError, ModelError, NotAnArtifactError
from bertender.models.onnx_session import ONNX_NAME

logger = logging.getLogger(__name__)

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")

PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")

FOREIGN_WEIGHTS = ("tf_model.h5", "flax_model.msgpack", "model.ckpt.index")

GRAPHS = (ONNX_NAME, f"onnx/{ONNX_NAME}")
"""Where Optimum and transformers.js put the float graph."""

HUB_NAME = re.compile(r"(?P<name>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[\w./-]+))?")

HUB_SUFFIXES = (".json", ".txt", ".model")
"""Of the config and the tokenizer."""

IMPORTING = ("finished_model.py", "importing.py")
"""The code that makes an artifact of a finished model."""


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
        last = _name_of(Path(name or self.source))
        folder = _name_of(self.folder)
        return f"{folder}-{Path(last).stem}" if by_file else last

    @property
    def place(self) -> str:
        """Where it lies, from any working directory; of a hub, its name."""
        path = Path(self.source)
        return str(path.absolute()) if path.exists() else self.source

    @property
    def identity(self) -> str:
        """A digest that changes with any change of the files, which are not read for it, and with
        the code that imports them."""
        folders = {self.folder, self.graph.parent if self.graph else self.folder}
        files = sorted(path for each in folders for path in each.glob("*") if path.is_file())
        states = [(str(path), file_state(path)) for path in files]
        code = [(Path(__file__).parent / name).read_text() for name in IMPORTING]
        whole = [str(self.folder.resolve()), str(self.graph), states, code, library_versions()]
        return hashlib.sha256(json.dumps(whole).encode()).hexdigest()[:16]


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
    if weights := next((name for name in WEIGHTS if (folder / name).is_file()), None):
        _require_config(folder, source)
        _say_left_out(source, folder / weights, _graphs_in(folder))
        return FinishedModel(source, folder, revision=revision)
    if graph := _graph_in(folder):
        _say_left_out(source, graph, [each for each in _graphs_in(folder) if each != graph])
        return FinishedModel(source, _beside(graph), graph, revision)
    pickles = [name for name in PICKLES if (folder / name).is_file()]
    if pickles:
        raise _only_pickles(str(folder), pickles[0], _class_in(folder))
    foreign = [name for name in FOREIGN_WEIGHTS if (folder / name).is_file()]
    has = f"only weights of another library ({foreign[0]})" if foreign else "no model"
    raise NotAnArtifactError(
        f"{source} is not an artifact, and holds {has}. Give a folder with {CARD_NAME} (the --out "
        "of a command), with config.json and model.safetensors (save_pretrained), or with an "
        ".onnx file and its tokenizer."
    )


def _only_pickles(source: str, pickle: str, class_name: str) -> ModelError:
    """Return the error of a model without safetensors, with the command that converts it."""
    return ModelError(
        f"{source} has its weights in {pickle} alone, a pickle, and bertender reads none. "
        'Convert it once, if you trust it: python -c "from transformers import '
        f"{class_name} as M, AutoTokenizer as T; s = {source!r}; d = 'converted'; "
        'M.from_pretrained(s).save_pretrained(d); T.from_pretrained(s).save_pretrained(d)"; '
        "then give the folder `converted`."
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
    graphs = _graphs_in(folder)
    if len(graphs) > 1:
        raise NotAnArtifactError(
            f"{folder} holds several graphs: {', '.join(map(str, graphs))}. Give one of them."
        )
    return graphs[0] if graphs else None


def _graphs_in(folder: Path) -> list[Path]:
    return sorted((*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx")))


def _say_left_out(source: str, taken: Path, left_out: Sequence[Path]) -> None:
    """Say which model of a folder is taken, where it holds others."""
    if left_out:
        logger.warning(
            "%s holds several models: %s is taken, and not %s. Give the .onnx file itself to mean "
            "another",
            source,
            taken.name,
            ", ".join(str(path.relative_to(taken.parent.parent)) for path in left_out),
        )


def _name_of(path: Path) -> str:
    """Return the name of a folder, whatever way leads there."""
    return path.absolute().name if path.name not in ("", "..") else path.resolve().name


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
    # which an artifact's own files do without
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.constants import HF_HUB_OFFLINE

    from bertender.core.hub import hub_cache, hub_knows

    is_offline = HF_HUB_OFFLINE or not hub_knows(f"api/models/{name}")
    try:
        files = [] if is_offline else HfApi().list_repo_files(name, revision=revision)
        folder = Path(
            snapshot_download(
                name,
                revision=revision,
                cache_dir=hub_cache(),
                allow_patterns=None if is_offline else wanted(source, files),
                local_files_only=is_offline,
            )
        )
    except (OSError, ValueError) as error:
        if not is_offline:
            raise HubUnreachableError(
                f"{source} cannot be downloaded: {error}. Run it again once that is mended."
            ) from None
        raise HubUnreachableError(
            f"no model at {source}: there is no such directory, it is not in the hub's cache on "
            "this machine, and no hub that responds knows it"
            f"{f' at revision {revision}' if revision else ''}. Check the path; or go online (and "
            "unset HF_HUB_OFFLINE)."
        ) from None
    return _in_folder(source, folder, folder.name)  # the hub's cache names folders by commits


def wanted(source: str, files: Sequence[str]) -> list[str]:
    """Return the files of a hub's repository to download: its weights, or else its graph.

    Raises:
        ModelError: its weights are pickles alone.
    """
    top = [name for name in files if "/" not in name]
    companions = [name for name in top if name.endswith(HUB_SUFFIXES)]
    weights = [name for name in top if name.startswith("model") and name.endswith(".safetensors")]
    if weights:
        return [*companions, *weights]
    graphs = [name for name in files if name.endswith(".onnx")]
    usual = [name for name in GRAPHS if name in graphs] or graphs
    if usual:
        return [*companions, *(name for name in files if name.startswith(usual[0]))]
    if pickles := [name for name in PICKLES if name in top]:
        raise _only_pickles(source, pickles[0], "AutoModelForSequenceClassification")
    return companions
