"""Importing finished models as artifacts; `open_artifact` accepts any source of a model.

A source is one of

    an artifact                       opened directly
    a folder of transformers          config.json and safetensors, as `save_pretrained` writes them
    one of sentence-transformers      the same with modules.json, for models that give vectors
    a folder or file of ONNX          model.onnx beside config.json and the tokenizer (Optimum), or
                                      in onnx/ below them (transformers.js), or the .onnx file
    a hub name                        NAME or NAME@REVISION; an artifact where `push` put one there

Other sources than artifacts are converted to one, in the cache folder or at the `out` of
`import_model`: the labels come from `id2label`, the problem type from the head, and the weights are
float32. Commands ask for facts that config.json does not have (data to score on, its columns).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertender.core.artifact import (
    IMPORT_STAGE,
    IMPORTED,
    Artifact,
    copy_artifact,
    digest_of,
    file_state,
    new_artifact,
)
from bertender.core.card import CARD_NAME, TaskRecord, library_versions, read_card
from bertender.core.config import Config
from bertender.core.errors import ConfigError, HubUnreachableError, ModelError, NotAnArtifactError
from bertender.core.files import CACHE_VARIABLE, cache_directory
from bertender.core.findings import Findings
from bertender.metrics.tags import OUTSIDE
from bertender.models.onnx_session import MOST_MB, ONNX_NAME
from bertender.models.sentence_files import (
    PoolingName,
    VectorSettings,
    check_no_further_modules,
    has_pooling,
    module_folders,
    read_settings,
)
from bertender.problems import ONE_OUTPUT, PROBLEMS, SEVERAL_OUTPUTS
from bertender.problems.multi_label_classification import MULTI_LABEL
from bertender.problems.multiple_choice import MULTIPLE_CHOICE
from bertender.problems.problem import Problem, are_unnamed
from bertender.problems.question_answering import QUESTION_ANSWERING
from bertender.problems.ranking import RANKING
from bertender.problems.regression import REGRESSION
from bertender.problems.sentence_embedding import SENTENCE_EMBEDDING
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from bertender.text.tokenizer import (
    load_tokenizer,
    longest_input,
    save_tokenizer,
    states_longest_input,
)

if TYPE_CHECKING:  # slow imports that artifacts do not need
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
FOREIGN_WEIGHTS = ("tf_model.h5", "flax_model.msgpack", "model.ckpt.index")
GRAPHS = (ONNX_NAME, f"onnx/{ONNX_NAME}")
"""Paths at which Optimum and transformers.js put the float graph."""

HUB_NAME = re.compile(r"(?P<name>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[\w./-]+))?")
HUB_SUFFIXES = (".json", ".txt", ".model")
"""Suffixes of files of the config and the tokenizer."""
POOLING_SUFFIX = "_Pooling/config.json"
"""Suffix of sentence-transformers' file with the pooling."""

HEADS_OF: Mapping[str, Problem[Any]] = {
    "ForSequenceClassification": SINGLE_LABEL,  # the config may say another kind
    "ForTokenClassification": TOKEN_CLASSIFICATION,
    "ForQuestionAnswering": QUESTION_ANSWERING,
    "ForMultipleChoice": MULTIPLE_CHOICE,
}
"""Kind of problem of a head, by the suffix of its class name."""


class ImportConfig(Config):
    """Config in the card of an imported artifact: its source, and what the user said of it."""

    source: str
    revision: str | None = None
    """Commit of a hub."""
    labels: tuple[str, ...] | None = None
    pooling: PoolingName | None = None
    problem_type: str | None = None
    optimize: str = "none"
    """`fused` where a graph has operators of ONNX Runtime."""


def open_artifact(source: str | os.PathLike[str], *, verify: bool = True) -> Artifact:
    """Open an artifact, or a finished model of another library.

    A finished model is imported into the cache folder, once for each state of its files.

    Args:
        source: a folder, an .onnx file, or a hub's NAME or NAME@REVISION.
        verify: check the digests of an artifact's files.

    Raises:
        NotAnArtifactError: there is no model.
        DamagedArtifactError: files of an artifact are missing or changed.
        ModelError: the model cannot be opened safely, or has no head that bertender knows.
        HubUnreachableError: the model is not on this machine, and no hub responds.
    """
    if (Path(source) / CARD_NAME).is_file():
        return Artifact.load(Path(source), verify=verify)
    from filelock import FileLock  # not installed with `bertender[serve]` alone

    from bertender.core.build_once import build_once

    found = located(str(source))
    out = cache_directory() / IMPORTED / found.identity / found.name
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(out.with_name(f".{out.name}.lock")):
            build_once([out], found.identity, lambda: _write(found, out), digest_of)
    except OSError as error:
        raise ModelError(
            f"{source} cannot be imported into the cache folder: {error}. Set {CACHE_VARIABLE} to "
            f"a folder that can be written, or import it once: bertender import {source} --out "
            "DIRECTORY."
        ) from None
    artifact = Artifact.load(out, verify=verify)
    _warn_of_unnamed_labels(artifact, str(source))
    return artifact


def import_model(
    source: str | os.PathLike[str],
    out: Path,
    *,
    labels: Sequence[str] | None = None,
    pooling: PoolingName | None = None,
    problem_type: str | None = None,
) -> Artifact:
    """Write a finished model of another library as an artifact.

    Args:
        source: as in `open_artifact`.
        out: directory of the artifact.
        labels: label names, in the order of the logits; by default those of config.json.
        pooling: pooling of an encoder without a head, to vectors of length 1.
        problem_type: problem type of a model whose config.json states none, or whose one output
            may be a number or rank passages; by default one label, or a number.

    Raises:
        ConfigError: the number of `labels` differs from the model's; or `pooling` is set for a
            model that has its own or labels texts; or the model has another problem type.
        NotAnArtifactError, ModelError, HubUnreachableError: as in `open_artifact`.
        ArtifactError: `out` cannot be written, or `source` is an artifact already.
    """
    if (Path(source) / CARD_NAME).is_file():
        raise NotAnArtifactError(
            f"{source} is an artifact already ({CARD_NAME} is there): give it to the other "
            "commands, or of a bundle the artifact that it was made from."
        )
    found = located(str(source))
    if found.is_artifact and (labels or pooling):
        raise ConfigError(
            f"labels, pooling: {source} is an artifact, which has its own. Leave them out."
        )
    _write(found, out, labels, pooling, problem_type)
    artifact = Artifact.load(out)
    _warn_of_unnamed_labels(artifact, str(source))
    return artifact


def _warn_of_unnamed_labels(artifact: Artifact, source: str) -> None:
    if are_unnamed(labels := artifact.card.task.labels):
        logger.warning(
            "the labels of %s have no names (%s): they are taken by position. Name them by "
            "bertender import --labels, or map those of your data by --label-map",
            source,
            ", ".join(labels),
        )


@dataclass(frozen=True)
class FinishedModel:
    """The local files of a finished model."""

    source: str
    """Source that the user named."""
    folder: Path
    """Folder with config.json and the tokenizer."""
    graph: Path | None = None
    """ONNX file; None for a transformers model."""
    revision: str | None = None

    @property
    def name(self) -> str:
        """A folder name for the model."""
        by_file = self.graph is not None and self.source.endswith(".onnx")
        name = self.source.rpartition("@")[0] if self.revision and "@" in self.source else None
        last, folder = (
            # by any path that leads there
            path.absolute().name if path.name not in ("", "..") else path.resolve().name
            for path in (Path(name or self.source), self.folder)
        )
        return f"{folder}-{Path(last).stem}" if by_file else last

    @property
    def is_artifact(self) -> bool:
        """Whether a hub has it as an artifact."""
        return (self.folder / CARD_NAME).is_file()

    @property
    def place(self) -> str:
        """Absolute path of the model; its name for a hub model."""
        path = Path(self.source)
        return str(path.absolute()) if path.exists() else self.source

    @property
    def identity(self) -> str:
        """Digest that changes with the files, by size and time, and with library versions."""
        folders = {self.folder, *module_folders(self.folder)}
        if self.graph is not None:
            folders.add(self.graph.parent)
        files = sorted(path for each in folders for path in each.glob("*") if path.is_file())
        states = [(str(path), file_state(path)) for path in files]
        whole = [str(self.folder.resolve()), str(self.graph), states, library_versions()]
        return hashlib.sha256(json.dumps(whole).encode()).hexdigest()[:16]


def located(source: str) -> FinishedModel:
    """Find the files of a source."""
    path = Path(source)
    if path.suffix == ".onnx" and path.is_file():
        return FinishedModel(source, _folder_of(path), path)
    if path.is_dir():
        return _in_folder(source, path)
    if path.is_file():
        raise NotAnArtifactError(
            f"{source} is a file. Give the folder of a model, an .onnx file, or a hub name."
        )
    return _on_hub(source)


def _in_folder(source: str, folder: Path, revision: str | None = None) -> FinishedModel:
    """Find the model of a folder; a transformers model has precedence over graphs."""
    graphs = sorted((*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx")))
    if weights := next((name for name in WEIGHTS if (folder / name).is_file()), None):
        if not (folder / "config.json").is_file():
            raise NotAnArtifactError(
                f"{source} has weights and no config.json. Give a folder that save_pretrained "
                "wrote."
            )
        _warn_of_left_out(source, folder / weights, graphs)
        return FinishedModel(source, folder, revision=revision)
    if graphs:
        usual = next((folder / name for name in GRAPHS if (folder / name).is_file()), None)
        if usual is None and len(graphs) > 1:
            listed = ", ".join(map(str, graphs))
            raise NotAnArtifactError(f"{folder} holds several graphs: {listed}. Give one of them.")
        graph = usual or graphs[0]
        _warn_of_left_out(source, graph, [each for each in graphs if each != graph])
        return FinishedModel(source, _folder_of(graph), graph, revision)
    if pickles := [name for name in PICKLES if (folder / name).is_file()]:
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            class_name = str(config["architectures"][0])
        except (OSError, ValueError, LookupError, TypeError):
            class_name = SINGLE_LABEL.model_class
        raise _only_pickles(str(folder), pickles[0], class_name)
    foreign = [name for name in FOREIGN_WEIGHTS if (folder / name).is_file()]
    has = f"only weights of another library ({foreign[0]})" if foreign else "no model"
    raise NotAnArtifactError(
        f"{source} is not an artifact, and holds {has}. Give a folder with {CARD_NAME} (the --out "
        "of a command), with config.json and model.safetensors (save_pretrained), or with an "
        ".onnx file and its tokenizer."
    )


def _warn_of_left_out(source: str, taken: Path, left_out: Sequence[Path]) -> None:
    """Log which model of a folder is taken, where it has several."""
    if left_out:
        logger.warning(
            "%s holds several models: %s is taken, and not %s. Give the .onnx file itself to mean "
            "another",
            source,
            taken.name,
            ", ".join(str(path.relative_to(taken.parent.parent)) for path in left_out),
        )


def _folder_of(graph: Path) -> Path:
    """Return the folder with the config.json of a graph: the graph's folder, or its parent."""
    for folder in (graph.parent, graph.absolute().parent.parent):
        if (folder / "config.json").is_file():
            return folder
    raise NotAnArtifactError(
        f"{graph}: neither its folder nor the one above has a config.json, which names the labels. "
        "Copy config.json and the tokenizer's files of the model that it was exported from there."
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


def _on_hub(source: str) -> FinishedModel:
    """Find a hub model, and download it unless it is cached."""
    match = HUB_NAME.fullmatch(source)
    if match is None or source.startswith("."):
        raise NotAnArtifactError(
            f"no model at {source}: there is no such directory. Give a directory that a bertender "
            "stage wrote (its --out), a model folder, an .onnx file, or a hub name."
        )
    name, revision = match["name"], match["revision"]
    # not needed for files of an artifact
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.constants import HF_HUB_OFFLINE

    from bertender.core.hub import hub_cache, hub_knows

    is_offline = HF_HUB_OFFLINE or not hub_knows(f"api/models/{name}")

    def fetched(files: Sequence[str] | None, commit: str | None) -> Path:
        folder = snapshot_download(
            name,
            revision=commit,
            cache_dir=hub_cache(),
            allow_patterns=None if files is None else [*files],
            local_files_only=is_offline,
        )
        return Path(folder)

    try:
        files = [] if is_offline else HfApi().list_repo_files(name, revision=revision)
        if CARD_NAME in files:
            folder = fetched([CARD_NAME], revision)
            folder = fetched((CARD_NAME, *read_card(folder).files), folder.name)
        else:
            folder = fetched(None if is_offline else wanted(source, files), revision)
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
    if (folder / CARD_NAME).is_file():
        return FinishedModel(source, folder, revision=folder.name)
    return _in_folder(source, folder, folder.name)  # the hub's cache names folders by commits


def wanted(source: str, files: Sequence[str]) -> list[str]:
    """Return the files of a hub repository to download: with weights, or else with a graph.

    Raises:
        ModelError: the repository has only pickled weights.
    """
    top = [name for name in files if "/" not in name]
    companions = [name for name in top if name.endswith(HUB_SUFFIXES)]
    companions += [name for name in files if name.endswith(POOLING_SUFFIX)]
    weights = [name for name in top if name.startswith("model") and name.endswith(".safetensors")]
    if weights:
        return [*companions, *weights]
    graphs = [name for name in files if name.endswith(".onnx")]
    usual = [name for name in GRAPHS if name in graphs] or graphs
    if usual:
        return [*companions, *(name for name in files if name.startswith(usual[0]))]
    if pickles := [name for name in PICKLES if name in top]:
        raise _only_pickles(source, pickles[0], SINGLE_LABEL.model_class)
    return companions


def _write(
    found: FinishedModel,
    out: Path,
    labels: Sequence[str] | None = None,
    pooling: PoolingName | None = None,
    problem_type: str | None = None,
) -> None:
    """Write a model as an artifact; an artifact is copied."""
    if found.is_artifact:
        copy_artifact(Artifact.load(found.folder), out)
        return
    head = _head_of(found, labels, pooling, problem_type)
    config, problem = head.config, head.problem
    outputs = problem.output_names(head.labels)
    config.id2label = dict(enumerate(outputs))
    config.label2id = {name: index for index, name in enumerate(outputs)}
    for name, value in problem.model_settings.items():
        setattr(config, name, value)
    precision, optimize = "float32", "none"
    if found.graph is None:
        from bertender.models.classifier import input_names

        model = _torch_model(found, head)
        inputs, parameters = input_names(model), int(model.num_parameters())
    else:
        from bertender.models.graphs import ForeignGraph, save_graph

        graph = ForeignGraph(found.graph, outputs, head.order, per_token=problem.per_token)
        inputs, parameters = graph.inputs, graph.parameters()
        precision, optimize = graph.precision, graph.optimize
    from bertender.models.padding import check_graph, padding_unread

    tokenizer = _tokenizer(found, head, inputs)
    if found.graph is None:
        config.pad_token_id = padding_unread(model, tokenizer, found.source)
    with new_artifact(
        out,
        kind="torch" if found.graph is None else "onnx",
        family=config.model_type,
        task=TaskRecord(
            name=found.name,
            problem_type=problem.name,
            labels=head.labels,
            text_columns=head.text_columns,
            metric=problem.metrics_of(head.labels, ())[0],
            fitted=dict(problem.unfitted([()])),
        ),
        stage=IMPORT_STAGE,
        config=ImportConfig(
            source=found.place,
            revision=found.revision,
            labels=None if labels is None else tuple(labels),
            pooling=pooling,
            problem_type=problem_type,
            optimize=optimize,
        ),
        seed=0,
        precision=precision,
    ) as draft:
        draft.findings = Findings(parameters=parameters)
        if found.graph is None:
            model.config = config
            model.save_pretrained(draft.directory)
        else:
            config.save_pretrained(draft.directory)
            save_graph(graph.model, draft.directory / ONNX_NAME, MOST_MB)
            if precision == "float32":  # integer scales may depend on the whole batch
                path = draft.directory / ONNX_NAME
                check_graph(path, config, tokenizer, found.source)
        save_tokenizer(tokenizer, draft.directory)


@dataclass(frozen=True)
class _Head:
    """The head, as config.json describes it."""

    config: PretrainedConfig
    problem: Problem[Any]
    labels: tuple[str, ...]
    """Labels in the order of the artifact's logits."""
    order: tuple[int, ...]
    """Number of each label in the model; it differs where the tag O was not first."""
    vector: VectorSettings | None = None
    """Vector settings of a model without labels."""

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Default names of the text columns."""
        texts = self.problem.columns.texts
        if not self.problem.places_are_labels:
            return texts
        return (*texts, *(f"choice_{number}" for number in self.labels))


def _head_of(
    found: FinishedModel,
    labels: Sequence[str] | None,
    pooling: PoolingName | None,
    problem_type: str | None = None,
) -> _Head:
    """Read the kind of problem and the labels of a model.

    Raises:
        ModelError: the model has no classification head, or an unknown one.
        ConfigError: the number of `labels` differs, or the model has another problem type.
    """
    from bertender.models.own_models import open_config

    try:
        config = open_config(str(found.folder), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"the config.json of {found.source} cannot be read: {error}") from None
    if pooling or has_pooling(found.folder):
        return _vector_head(found, config, labels, pooling)
    problem = _problem_of(config, found, problem_type)
    if problem.places_are_labels:
        return _head_of_choices(config, problem, found, labels)
    id2label: Mapping[Any, str] = config.id2label or {}
    labels_of_config = range(config.num_labels or 0)
    if set(id2label) != set(labels_of_config):
        raise ModelError(
            f"{found.source}: config.json numbers its labels {', '.join(map(str, id2label))} "
            f"(id2label), and must from 0 to {len(labels_of_config) - 1}. Correct it in a copy."
        )
    named = tuple(
        "" if id2label[each] is None else str(id2label[each]) for each in labels_of_config
    )
    if labels is not None and len(labels) != len(named):
        raise ConfigError(
            f"labels={','.join(labels)}: {len(labels)} names, and {found.source} has "
            f"{len(named)} logits ({', '.join(named)}). Give one name for each, in their order."
        )
    if labels is None and problem in (QUESTION_ANSWERING, RANKING):
        labels = problem.label_names(())
    chosen = named if labels is None else tuple(labels)
    if len(set(chosen)) < len(chosen) or not all(map(str.strip, chosen)):
        fault = "two labels of one name" if all(map(str.strip, chosen)) else "a label of no name"
        raise ConfigError(
            f"{found.source} has {fault}: {', '.join(map(repr, chosen))}. Name them apart: "
            f"bertender import {found.source} --labels FIRST,SECOND --out DIRECTORY."
        )
    order = tuple(range(len(chosen)))
    if problem is TOKEN_CLASSIFICATION and OUTSIDE in chosen:
        # words beyond a model's longest input have the first tag, so it must be O
        order = tuple(sorted(order, key=lambda number: chosen[number] != OUTSIDE))
    return _Head(config, problem, tuple(chosen[number] for number in order), order)


def _vector_head(
    found: FinishedModel,
    config: PretrainedConfig,
    labels: Sequence[str] | None,
    pooling: PoolingName | None,
) -> _Head:
    """Return the head of a model that gives vectors.

    Raises:
        ConfigError: `labels` or `pooling` do not fit the model.
        ModelError: its files have unsupported settings, or it is a graph.
    """
    from bertender.models.embedders import SETTING

    if labels is not None:
        raise ConfigError(f"labels={','.join(labels)}: {found.source} gives vectors. Leave it out.")
    if found.graph is not None:
        raise ModelError(
            f"{found.source} is the graph of an encoder, and without artifact.json nothing says "
            "whether it pools. Give the whole artifact of bertender export, or the folder with "
            "model.safetensors."
        )
    stated = has_pooling(found.folder)
    classes = [str(name) for name in config.architectures or []]
    if pooling and (stated or any(end in name for end in HEADS_OF for name in classes)):
        said = "modules.json says so itself" if stated else f"it is a {' and '.join(classes)}"
        raise ConfigError(f"pooling={pooling}: of {found.source}, {said}. Leave it out.")
    if not stated:
        check_no_further_modules(found.folder)
    vector = VectorSettings(pooling) if pooling else read_settings(found.folder)
    setattr(config, SETTING, vector.recorded())
    return _Head(config, SENTENCE_EMBEDDING, SENTENCE_EMBEDDING.label_names(()), (0,), vector)


def _head_of_choices(
    config: PretrainedConfig,
    problem: Problem[Any],
    found: FinishedModel,
    labels: Sequence[str] | None,
) -> _Head:
    """Read a model that scores choices one at a time. config.json does not have their number, so
    that there is one label unless the user gives several."""
    chosen = ("0",) if labels is None else tuple(labels)
    if chosen != tuple(map(str, range(len(chosen)))):
        raise ConfigError(
            f"labels={','.join(chosen)}: {found.source} scores choices, whose labels are their "
            "numbers. Give 0,1,2,3 for four of them."
        )
    if found.graph is not None and _takes_all_choices(config):
        raise ModelError(
            f"{found.source}: the graph of a model ...ForMultipleChoice takes all choices of a "
            "question at once, and bertender's takes one at a time. Give the folder of "
            "transformers that it was exported from."
        )
    return _Head(config, problem, chosen, (0,))


def _takes_all_choices(config: PretrainedConfig) -> bool:
    return any(str(name).endswith("ForMultipleChoice") for name in config.architectures or [])


def _problem_of(config: PretrainedConfig, found: FinishedModel, wanted: str | None) -> Problem[Any]:
    """Return the kind of problem of a model's head, or the user's where it may be several.

    Raises:
        ModelError: the model has no classification head, or an unknown one.
        ConfigError: the user wants a kind that the head is not.
    """
    classes = [str(name) for name in config.architectures or []]
    by_class = [
        problem for name in classes for end, problem in HEADS_OF.items() if name.endswith(end)
    ]
    if not by_class:
        heads = ", ".join(f"...{end}" for end in HEADS_OF)
        raise ModelError(
            f"{found.source} is no finished classifier: config.json names "
            f"{', '.join(classes) or 'no class'} (architectures), and the known heads "
            f"are {heads}. An encoder becomes one with `bertender finetune --teacher "
            f"{found.source}`; one that gives vectors of texts as it is, with `bertender import "
            f"{found.source} --pooling mean --out DIRECTORY`. If it has a head, name its class "
            "under architectures in a copy."
        )
    may_be = _may_be(config, found) if by_class[0] is SINGLE_LABEL else (by_class[0],)
    if wanted is None:
        if may_be == ONE_OUTPUT:
            _warn_of_one_output(config, found)
        return may_be[0]
    if any(wanted == each.name for each in may_be):
        return PROBLEMS[wanted]
    raise ConfigError(
        f"problem_type={wanted}: the head of {found.source} is that of "
        f"{' or '.join(each.name for each in may_be)}. Leave it out, or give another model; where "
        "config.json has a wrong problem_type, correct it in a copy."
    )


def _may_be(config: PretrainedConfig, found: FinishedModel) -> tuple[Problem[Any], ...]:
    """Return the kinds of problems that a head which labels texts may be of, the default first."""
    stated: str | None = config.problem_type
    outputs = tuple((config.id2label or {}).values())
    if outputs == MULTIPLE_CHOICE.output_names(()):
        return (MULTIPLE_CHOICE,)
    if outputs == RANKING.label_names(()):
        return RANKING, REGRESSION
    if stated == MULTI_LABEL.name:
        return (MULTI_LABEL,)
    if config.num_labels == 1:  # a softmax of one logit would always be 1
        return (REGRESSION, RANKING) if stated == REGRESSION.name else ONE_OUTPUT
    if stated is None:
        return SEVERAL_OUTPUTS
    if stated == REGRESSION.name:
        raise ModelError(
            f"{found.source} predicts {config.num_labels} numbers of a text (problem_type "
            f"{stated!r}), and bertender knows models of one. Make one for each of them."
        )
    if stated not in PROBLEMS:
        raise ModelError(
            f"{found.source} has problem_type {stated!r} and {config.num_labels} logits, and this "
            f"version knows {', '.join(PROBLEMS)}. Its outputs would be read wrongly."
        )
    return (PROBLEMS[stated],)


def _warn_of_one_output(config: PretrainedConfig, found: FinishedModel) -> None:
    """Log that a model's one output is taken for a number, and how to say what it is."""
    own = getattr(config, "sentence_transformers", None) or {}
    over = own.get("activation_fn") or getattr(config, "sbert_ce_default_activation_function", None)
    by = f" (CrossEncoder puts {over.rpartition('.')[2]} over it)" if over else ""
    logger.warning(
        "%s has one output, and config.json does not say what it is for%s: it is taken for a "
        "number, as the last layer gives it (--problem-type %s). If it scores the passages of a "
        "query: bertender import %s --problem-type %s --out DIRECTORY; if its sigmoid is the "
        "probability of a label: --problem-type %s",
        *(found.source, by, REGRESSION.name, found.source, RANKING.name, MULTI_LABEL.name),
    )


def _torch_model(found: FinishedModel, head: _Head) -> PreTrainedModel:
    """Load a transformers model in float32, with its labels in the order of the head."""
    import torch
    from safetensors import SafetensorError

    from bertender.models.embedders import SETTING
    from bertender.models.own_models import auto_class, load_pretrained
    from bertender.models.sequence_scorers import check_choice_head, scorer_of

    scores_choices = _takes_all_choices(head.config)
    if scores_choices:
        check_choice_head(head.config.model_type, found.source)
    kind = auto_class("AutoModelForMultipleChoice" if scores_choices else head.problem.model_class)
    settings = {} if head.vector is None else {SETTING: head.vector.recorded()}
    try:
        model, report = load_pretrained(
            kind, str(found.folder), local_files_only=True, dtype="float32", **settings
        )
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise ModelError(f"transformers cannot open {found.source}: {error}") from None
    if report["missing_keys"]:
        raise ModelError(
            f"{found.source} has no weights for {', '.join(sorted(report['missing_keys']))}: "
            "their outputs would be random. Give the folder that its trainer saved, or train "
            f"it: bertender finetune --teacher {found.source}."
        )
    if head.vector is None and (unread := sorted(report["unexpected_keys"])):
        logger.warning(
            "%s has weights that a %s does not read: %s. If its head computed with them, its "
            "outputs are others here",
            *(found.source, type(model).__name__, ", ".join(unread)),
        )
    if scores_choices:
        return scorer_of(model)
    if head.order == tuple(range(len(head.order))):
        return model
    last = getattr(model, "classifier", None)
    if not isinstance(last, torch.nn.Linear):
        raise ModelError(
            f"{found.source}: the tag {OUTSIDE} must be the first label, and the last layer of "
            f"a {type(model).__name__} is not known, so that the labels cannot be "
            "reordered. Export it to ONNX and give the graph."
        )
    with torch.no_grad():
        for parameter in last.parameters():
            parameter.copy_(parameter[list(head.order)].clone())
    return model


def _tokenizer(found: FinishedModel, head: _Head, inputs: Sequence[str]) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model, unchanged except for its longest input and padding side.

    FAMILIES are padded on the right, since they read positions and the first token from the left.

    Raises:
        ModelError: the tokenizer cannot be loaded, or cannot map tokens to words although words
            have labels.
    """
    from bertender.models.families import FAMILIES, family_name, most_tokens

    settings: dict[str, Any] = dict(head.problem.tokenizer_settings)
    if family_name(head.config) in FAMILIES:
        settings["padding_side"] = "right"
    tokenizer = load_tokenizer(found.folder, **settings)
    if not tokenizer.is_fast:
        raise ModelError(
            f"the tokenizer of {found.source} ({type(tokenizer).__name__}) has no fast form, which "
            "the endpoint needs. Save one beside it: a tokenizer.json, as "
            "AutoTokenizer.from_pretrained(..., use_fast=True).save_pretrained(...) writes it "
            "where the package of its kind (sentencepiece, tiktoken) is installed."
        )
    if not tokenizer.pad_token:
        number = head.config.pad_token_id
        settings["pad_token"] = None if number is None else tokenizer.convert_ids_to_tokens(number)
        if not isinstance(settings["pad_token"], str):
            raise ModelError(
                f"{found.source}: neither its tokenizer nor config.json names a token to pad with, "
                "and texts of a batch have several lengths. Add pad_token to a copy of its "
                "tokenizer_config.json, and pad_token_id to config.json."
            )
    longest = longest_input(tokenizer)
    if head.vector is not None and (most := head.vector.max_length):
        longest = min(longest, most) if states_longest_input(tokenizer) else most
    named = tokenizer.model_input_names
    return load_tokenizer(  # only settings given at loading are saved
        found.folder,
        **settings,
        model_max_length=min(longest, most_tokens(head.config) or longest),
        # a graph needs all of its inputs; a model has defaults for some
        model_input_names=[name for name in inputs if name in named or found.graph is not None],
    )
