"""Finished models from elsewhere as artifacts: `open_artifact` takes what a user has."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertender.core.artifact import IMPORT_STAGE, IMPORTED, Artifact, digest_of, new_artifact
from bertender.core.card import CARD_NAME, Kind, TaskRecord
from bertender.core.config import Config
from bertender.core.errors import ConfigError, ModelError, NotAnArtifactError
from bertender.core.files import CACHE_VARIABLE, cache_directory
from bertender.core.findings import Findings
from bertender.models.finished_model import FinishedModel, located
from bertender.models.onnx_session import ONNX_NAME
from bertender.problems import PROBLEMS
from bertender.problems.problem import Problem, are_unnamed
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.problems.token_classification import OUTSIDE, TOKEN_CLASSIFICATION

if TYPE_CHECKING:
    import onnx
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


HEADS_OF: Mapping[str, Problem[Any]] = {
    "ForSequenceClassification": SINGLE_LABEL,
    "ForTokenClassification": TOKEN_CLASSIFICATION,
}
"""End of a class's name -> the kind of problem of its head."""

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
LOGITS = "logits"
INT64 = 7
"""TensorProto.INT64 of onnx, which is imported only where there is a graph."""

FEWER_BITS: Mapping[str, str] = {
    "MatMulNBits": "int4",
    "MatMulBnb4": "int4",
    "GatherBlockQuantized": "int4",
    "DynamicQuantizeLinear": "int8",
    "DynamicQuantizeMatMul": "int8",
    "MatMulInteger": "int8",
    "MatMulIntegerToFloat": "int8",
    "QLinearMatMul": "int8",
    "QuantizeLinear": "int8",
    "DequantizeLinear": "int8",
    "QAttention": "int8",
    "QGemm": "int8",
}
"""Operator -> the precision of a graph that has it, the fewest bits first."""


FUSED = frozenset(
    {"Attention", "EmbedLayerNormalization", "FusedGemm", "FusedMatMul", "PackedAttention"}
)
"""Operators of ONNX Runtime alone that hold weights, which are not quantized one by one."""
PROBABILITIES = ("Softmax", "Sigmoid")


class ImportConfig(Config):
    """Where an imported artifact is from; the config of its card."""

    source: str
    revision: str | None = None
    """Commit of a hub."""
    optimize: str = "none"
    """`fused` where a graph has operators that ONNX Runtime alone knows."""


def open_artifact(source: str | os.PathLike[str], *, verify: bool = True) -> Artifact:
    """Open what a user names as a model: an artifact, or a finished model from elsewhere.

    The latter is imported into the cache folder, once for each state of its files.

    Args:
        source: a folder, an .onnx file, or a hub's NAME or NAME@REVISION.
        verify: check the digests of an artifact's files.

    Raises:
        NotAnArtifactError: there is no model.
        DamagedArtifactError: files of an artifact are missing or changed.
        ModelError: the model cannot be opened safely, or has no head that bertender knows.
        HubUnreachableError: it is not on this machine, and no hub responds.
    """
    if (Path(source) / CARD_NAME).is_file():
        return Artifact.load(Path(source), verify=verify)
    from filelock import FileLock  # what only serves artifacts is installed without it

    from bertender.core.build_once import build_once

    found = located(str(source))
    out = cache_directory() / IMPORTED / found.identity / found.name
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(out.with_name(f".{out.name}.lock")):
            build_once([out], found.identity, lambda: _write(found, out, None), digest_of)
    except OSError as error:
        raise ModelError(
            f"{source} cannot be imported into the cache folder: {error}. Set {CACHE_VARIABLE} to "
            f"a folder that can be written, or import it once: bertender import {source} --out "
            "DIRECTORY."
        ) from None
    artifact = Artifact.load(out, verify=verify)
    _say_unnamed(artifact)
    return artifact


def _say_unnamed(artifact: Artifact) -> None:
    if are_unnamed(labels := artifact.card.task.labels):
        logger.warning(
            "the labels of %s have no names (%s): they are taken by position. Name them by "
            "bertender import --labels, or map those of your data by --label-map",
            artifact.place,
            ", ".join(labels),
        )


def import_model(
    source: str | os.PathLike[str], out: Path, *, labels: Sequence[str] | None = None
) -> Artifact:
    """Write a finished model from elsewhere as an artifact.

    Args:
        source: as in `open_artifact`.
        out: directory of the artifact.
        labels: their names, in the order of the logits; by default those of config.json.

    Raises:
        ConfigError: `labels` are not as many as the model's.
        NotAnArtifactError, ModelError, HubUnreachableError: as in `open_artifact`.
        ArtifactError: `out` cannot be written, or `source` is an artifact already.
    """
    if (Path(source) / CARD_NAME).is_file():
        raise NotAnArtifactError(
            f"{source} is an artifact already ({CARD_NAME} is there): every command takes it."
        )
    _write(located(str(source)), out, labels)
    artifact = Artifact.load(out)
    _say_unnamed(artifact)
    return artifact


@dataclass(frozen=True)
class _Head:
    """What config.json says of the head."""

    config: PretrainedConfig
    problem: Problem[Any]
    labels: tuple[str, ...]
    """In the order of the artifact's logits."""
    order: tuple[int, ...]
    """The number that each label has in the model: another one where the tag O was not first."""

    @property
    def is_reordered(self) -> bool:
        """Whether the labels have other numbers than in the model."""
        return self.order != tuple(range(len(self.order)))


def _head_of(found: FinishedModel, labels: Sequence[str] | None) -> _Head:
    """Read the kind of problem and the labels of a model.

    Raises:
        ModelError: it has no classification head, or one of a kind that bertender does not know.
        ConfigError: `labels` are not as many as the model's.
    """
    from bertender.models.own_models import open_config

    try:
        config = open_config(str(found.folder), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"the config.json of {found.source} cannot be read: {error}") from None
    problem = _problem_of(config, found)
    id2label: Mapping[int, str] = config.id2label or {}
    if set(id2label) != set(range(config.num_labels)):
        raise ModelError(
            f"{found.source}: config.json numbers its labels {', '.join(map(str, id2label))} "
            f"(id2label), and must from 0 to {config.num_labels - 1}. Correct it in a copy."
        )
    named = tuple(str(id2label[index]) for index in range(config.num_labels))
    if labels is not None and len(labels) != len(named):
        raise ConfigError(
            f"labels={','.join(labels)}: {len(labels)} names, and {found.source} has "
            f"{len(named)} logits ({', '.join(named)}). Give one name for each, in their order."
        )
    chosen = named if labels is None else tuple(labels)
    if len(set(chosen)) < len(chosen):
        raise ConfigError(
            f"{found.source} has two labels of one name: {', '.join(chosen)}. Name them apart: "
            "bertender import ... --labels FIRST,SECOND."
        )
    order = tuple(range(len(chosen)))
    if problem.name == TOKEN_CLASSIFICATION.name and OUTSIDE in chosen:
        # words that a model does not see, beyond its longest input, have the first tag
        order = tuple(sorted(order, key=lambda number: chosen[number] != OUTSIDE))
    return _Head(config, problem, tuple(chosen[number] for number in order), order)


def _problem_of(config: PretrainedConfig, found: FinishedModel) -> Problem[Any]:
    """Return the kind of problem of a model's head."""
    stated = config.problem_type
    classes = config.architectures or []
    by_class: Problem[Any] | None = next(
        (
            problem
            for name in classes
            for end, problem in HEADS_OF.items()
            if str(name).endswith(end)
        ),
        None,
    )
    if by_class is None:
        heads = ", ".join(f"...{end}" for end in HEADS_OF)
        raise ModelError(
            f"{found.source} is no finished classifier: config.json names "
            f"{', '.join(map(str, classes)) or 'no class'} (architectures), and the known heads "
            f"are {heads}. An encoder becomes one with `bertender finetune --teacher "
            f"{found.source}`."
        )
    if by_class is SINGLE_LABEL and config.num_labels == 1:
        stated = stated or "regression"
    if by_class is not SINGLE_LABEL or stated in (None, SINGLE_LABEL.name):
        return by_class
    if stated not in PROBLEMS:
        raise ModelError(
            f"{found.source} has problem_type {stated!r} and {config.num_labels} logits, and this "
            f"version knows {', '.join(PROBLEMS)}. Its outputs would be read wrongly."
        )
    problem: Problem[Any] = PROBLEMS[stated]
    return problem


class _TorchModel:
    """A model of transformers, written in float32 as safetensors of one file."""

    kind: Kind = "torch"
    precision = "float32"
    optimize = "none"

    def __init__(self, found: FinishedModel, head: _Head) -> None:
        import transformers
        from safetensors import SafetensorError

        from bertender.models.own_models import load_pretrained
        from bertender.models.predictor import input_names

        auto_class = getattr(transformers, head.problem.model_class)
        try:
            self.model, report = load_pretrained(
                auto_class, str(found.folder), local_files_only=True, dtype="float32"
            )
        except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
            raise ModelError(f"transformers cannot open {found.source}: {error}") from None
        if report["missing_keys"]:
            raise ModelError(
                f"{found.source} has no weights for {', '.join(sorted(report['missing_keys']))}: "
                "their outputs would be random. Give the folder that its trainer saved, or train "
                f"it: bertender finetune --teacher {found.source}."
            )
        self.inputs = input_names(self.model)
        if head.is_reordered:
            self._reorder(found, head.order)

    def _reorder(self, found: FinishedModel, order: Sequence[int]) -> None:
        """Bring the labels into another order."""
        import torch

        last = getattr(self.model, "classifier", None)
        if not isinstance(last, torch.nn.Linear):
            raise ModelError(
                f"{found.source}: the tag {OUTSIDE} must be the first label, and the last layer of "
                f"a {type(self.model).__name__} is not known, so that the labels cannot be "
                "reordered. Export it to ONNX and give the graph."
            )
        with torch.no_grad():
            for parameter in last.parameters():
                parameter.copy_(parameter[list(order)].clone())

    def write(self, directory: Path, config: PretrainedConfig) -> int:
        """Write the weights; return the number of parameters."""
        self.model.config = config
        self.model.save_pretrained(directory)
        return int(self.model.num_parameters())


class _Graph:
    """A graph of ONNX, written as `model.onnx` with the logits as its output `logits`."""

    kind: Kind = "onnx"

    def __init__(self, found: FinishedModel, head: _Head) -> None:
        import onnx

        assert found.graph is not None
        try:
            self.model = onnx.load(found.graph)
        except Exception as error:  # protobuf's and onnx's own, without a common base
            raise ModelError(f"{found.graph} cannot be read as a graph of ONNX: {error}") from None
        self.where = str(found.graph)
        self.inputs = self._checked_inputs()
        self._name_logits(head)
        if head.is_reordered:
            self._reorder(head.order)
        operators = {node.op_type for node in _nodes(self.model.graph)}
        halves = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
        half = any(tensor.data_type in halves for tensor in self.model.graph.initializer)
        fewer = (bits for operator, bits in FEWER_BITS.items() if operator in operators)
        self.precision = next(fewer, "float16" if half else "float32")
        if self.precision == "int4" and _has_eight_bits(self.model.graph):
            self.precision = "int8"
        self.optimize = "fused" if operators & FUSED else "none"
        for number, node in enumerate(self.model.graph.node):
            node.name = node.name or f"{node.op_type}_{number}"  # a product is known by its name

    def write(self, directory: Path, config: PretrainedConfig) -> int:
        """Write the graph and config.json; return the number of its weights."""
        from bertender.models.graphs import save_graph
        from bertender.models.onnx_session import MOST_MB

        config.save_pretrained(directory)
        count = sum(int(math.prod(tensor.dims)) for tensor in self.model.graph.initializer)
        save_graph(self.model, directory / ONNX_NAME, MOST_MB)
        return count

    def _checked_inputs(self) -> list[str]:
        """Return the names of the inputs.

        Raises:
            ModelError: it takes something else than tokens, or only so many of them.
        """
        stored = {tensor.name for tensor in self.model.graph.initializer}
        inputs = [each for each in self.model.graph.input if each.name not in stored]
        unknown = [each.name for each in inputs if each.name not in INPUTS]
        if unknown or not inputs:
            raise ModelError(
                f"{self.where} takes {', '.join(each.name for each in inputs) or 'nothing'}, and "
                f"a classifier of texts takes some of {', '.join(INPUTS)}. Export it again."
            )
        for each in inputs:
            tensor = each.type.tensor_type
            sizes = [dim.dim_value for dim in tensor.shape.dim]
            if tensor.elem_type != INT64:
                raise ModelError(
                    f"{self.where}: input {each.name} is not of 64-bit integers, as the exporters "
                    "of transformers write it. Export it again with int64 inputs."
                )
            if any(sizes):
                raise ModelError(
                    f"{self.where}: input {each.name} has the fixed size {sizes} (0 is free). It "
                    "would refuse other batches and lengths: export it again with dynamic axes "
                    "for batch and sequence."
                )
        return [each.name for each in inputs]

    def _reorder(self, order: Sequence[int]) -> None:
        """Bring the labels into another order: a node picks them from the last axis."""
        import onnx

        graph, theirs = self.model.graph, f"{LOGITS}_in_their_order"
        _rename(graph, LOGITS, theirs)
        numbers = onnx.helper.make_tensor("label_order", INT64, [len(order)], order)
        graph.initializer.append(numbers)
        graph.node.append(
            onnx.helper.make_node("Gather", [theirs, numbers.name], [LOGITS], axis=-1)
        )

    def _name_logits(self, head: _Head) -> None:
        """Give the output that has the logits its usual name.

        Raises:
            ModelError: no output can be the logits of these labels.
        """
        outputs = self.model.graph.output
        if named := [each for each in outputs if each.name == LOGITS]:
            self._check_logits(named[0], head)
            return
        rank = 2 if head.problem is SINGLE_LABEL else 3
        fitting = [
            each
            for each in outputs
            if len(dims := each.type.tensor_type.shape.dim) == rank
            and dims[-1].dim_value in (0, len(head.labels))
        ]
        if len(fitting) != 1:
            raise ModelError(
                f"{self.where} has the outputs {', '.join(each.name for each in outputs)}: none "
                f"is called {LOGITS}, and {len(fitting)} could be the logits of "
                f"{len(head.labels)} labels. Export it as a classifier (Optimum: --task "
                "text-classification or token-classification)."
            )
        self._check_logits(fitting[0], head)
        _rename(self.model.graph, fitting[0].name, LOGITS)
        fitting[0].name = LOGITS

    def _check_logits(self, output: onnx.ValueInfoProto, head: _Head) -> None:
        """Raise ModelError where an output is not the logits of the labels."""
        made_by = {name: node.op_type for node in self.model.graph.node for name in node.output}
        if (last := made_by.get(output.name)) in PROBABILITIES:
            raise ModelError(
                f"{self.where}: its output {output.name} is that of {last}, so that it has "
                "probabilities, and a softmax of these would be their score. Export the model with "
                "its logits."
            )
        sizes = [dim.dim_value for dim in output.type.tensor_type.shape.dim]
        if sizes and sizes[-1] not in (0, len(head.labels)):
            raise ModelError(
                f"{self.where}: its logits are of {sizes[-1]} labels, and config.json names "
                f"{len(head.labels)}: {', '.join(head.labels)}. Give the config.json of its model."
            )


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield every node of a graph, those of its branches included."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    """Give a tensor of a graph another name, in branches too."""
    for node in _nodes(graph):
        node.output[:] = [new if name == old else name for name in node.output]
        node.input[:] = [new if name == old else name for name in node.input]


def _has_eight_bits(graph: onnx.GraphProto) -> bool:
    """Return whether the weights in blocks have 8 bits."""
    bits = (each for node in _nodes(graph) for each in node.attribute if each.name == "bits")
    return all(each.i == 8 for each in bits) and any(
        each.name == "bits" for node in _nodes(graph) for each in node.attribute
    )


def _write(found: FinishedModel, out: Path, labels: Sequence[str] | None) -> None:
    """Write a model as an artifact."""
    head = _head_of(found, labels)
    model = _TorchModel(found, head) if found.graph is None else _Graph(found, head)
    tokenizer = _tokenizer(found, head, model.inputs)
    config = head.config
    config.id2label = dict(enumerate(head.labels))
    config.label2id = {label: index for index, label in enumerate(head.labels)}
    for name, value in head.problem.model_settings.items():
        setattr(config, name, value)
    with new_artifact(
        out,
        kind=model.kind,
        family=config.model_type,
        task=TaskRecord(
            name=found.name,
            problem_type=head.problem.name,
            labels=head.labels,
            text_columns=head.problem.columns.texts,
            metric=head.problem.metrics[0],
        ),
        stage=IMPORT_STAGE,
        config=ImportConfig(source=found.place, revision=found.revision, optimize=model.optimize),
        seed=0,
        precision=model.precision,
    ) as draft:
        draft.findings = Findings(parameters=model.write(draft.directory, config))
        tokenizer.save_pretrained(draft.directory)


def _tokenizer(found: FinishedModel, head: _Head, inputs: Sequence[str]) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model; its tokens stay as they are, and no text is longer than the
    model takes.

    Raises:
        ModelError: there is none that can be read, or it cannot map tokens to words where words
            have labels.
    """
    from bertender.models.families import most_tokens
    from bertender.text.tokenizer import load_tokenizer, longest_input

    settings = head.problem.tokenizer_settings
    tokenizer = load_tokenizer(found.folder, **settings)
    if not tokenizer.is_fast:
        raise ModelError(
            f"the tokenizer of {found.source} ({type(tokenizer).__name__}) has no fast form, which "
            "the endpoint needs. Save one beside it: a tokenizer.json, as "
            "AutoTokenizer.from_pretrained(..., use_fast=True).save_pretrained(...) writes it "
            "where the package of its kind (sentencepiece, tiktoken) is installed."
        )
    longest = longest_input(tokenizer)
    named = tokenizer.model_input_names
    padding = {} if tokenizer.pad_token else {"pad_token": _padding(found, head, tokenizer)}
    return load_tokenizer(  # only what it is loaded with is saved with it
        found.folder,
        **{**settings, **padding},
        model_max_length=min(longest, most_tokens(head.config) or longest),
        # a graph fails without one of its inputs; a model has a default for what it may be given
        model_input_names=[name for name in inputs if name in named or found.graph is not None],
    )


def _padding(found: FinishedModel, head: _Head, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the token to pad with, of a tokenizer that names none: the one of config.json.

    Raises:
        ModelError: config.json names none either.
    """
    number = head.config.pad_token_id
    token = None if number is None else tokenizer.convert_ids_to_tokens(number)
    if not isinstance(token, str):
        raise ModelError(
            f"{found.source}: neither its tokenizer nor config.json names a token to pad with, and "
            "texts of a batch have several lengths. Add pad_token to a copy of its "
            "tokenizer_config.json, and pad_token_id to config.json."
        )
    return token
