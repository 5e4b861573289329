"""OWN_MODELS: architectures that bertender defines, since transformers does not have them.

Their artifacts open only with bertender: transformers alone does not know their model type.

Two architectures are classifiers over a table of word vectors (`table_models`). The others are
pruned, with different heads and neurons in each layer. transformers builds all layers alike, with
heads of width hidden_size / heads, so a pruned model has its own type, whose config lists the heads
and neurons of each layer.

transformers returns start and end logits of question answering models separately. Here they are
also returned as `logits` (batch, seq, 2), like those of a tagger with two labels: the head is one
linear layer with two outputs per token.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
import transformers
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
    PreTrainedModel,
)

from bertender.core.errors import ModelError
from bertender.core.hub import open_pretrained
from bertender.models.embedders import EMBEDDERS, AutoModelForSentenceEmbedding, embedder_of
from bertender.models.families import (
    FAMILIES,
    encoder_layers,
    family_name,
    family_of,
    has_distances_alone,
)
from bertender.models.family import BEFORE_5, Family, Pruning
from bertender.models.table_models import (
    BiLstmConfig,
    BiLstmForSequenceClassification,
    StaticConfig,
    StaticForSequenceClassification,
)

ANSWERING_HEADS = ("qa_outputs", "classifier")
"""Names of the head's linear layer; the second is ModernBERT's."""

ANOTHER_ARCHITECTURE = "Give a model of another architecture, such as bert, roberta or electra."


class AnsweringModel(PreTrainedModel):
    """A question answering model that also returns `logits`."""


@functools.cache
def answering_class(origin: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """Return a subclass of a transformers class that also returns `logits`, saved by the same
    name."""
    if issubclass(origin, AnsweringModel):
        return origin
    whole: Any = origin.forward

    def forward(self: Any, *arguments: Any, **named: Any) -> Any:
        heard = []
        with answering_head(self).register_forward_hook(lambda *call: heard.append(call[2])):
            outputs = whole(self, *arguments, **named)
        outputs["logits"] = heard[0]
        return outputs

    forward.__signature__ = inspect.signature(whole)  # type: ignore[attr-defined]
    own = {"forward": forward, "__module__": origin.__module__}
    made: type[PreTrainedModel] = type(origin.__name__, (AnsweringModel, origin), own)
    return made


def answering(model: PreTrainedModel) -> PreTrainedModel:
    """Make a question answering model of transformers also return `logits`, in place.

    Raises:
        ModelError: the head is not one linear layer.
    """
    answering_head(model)
    origin: Any = type(model)
    model.__class__ = answering_class(origin)
    return model


def answering_head(model: PreTrainedModel) -> nn.Linear:
    """Return the linear layer with the two logits of a token, or raise ModelError."""
    for name in ANSWERING_HEADS:
        layer = getattr(model, name, None)
        if isinstance(layer, nn.Linear) and layer.out_features == 2:
            return layer
    raise ModelError(
        f"the head of a {type(model).__name__} is not one layer with two outputs a token "
        f"({' or '.join(ANSWERING_HEADS)}), and no other form is known. {ANOTHER_ARCHITECTURE}"
    )


class _PrunedConfig(PretrainedConfig):
    """Config of a pruned model, with the remaining heads and neurons of each layer."""

    pruned_from: str

    def __init__(
        self,
        heads_kept: Sequence[int] | None = None,
        neurons_kept: Sequence[int] | None = None,
        head_numbers: Sequence[Sequence[int]] | None = None,
        **settings: Any,
    ) -> None:
        """Take each layer's number of heads and neurons, and its heads' numbers before pruning.

        None means unpruned, or the first heads.
        """
        super().__init__(**settings)
        self.heads_kept = heads_kept and list(heads_kept)
        self.neurons_kept = neurons_kept and list(neurons_kept)
        self.head_numbers = head_numbers and [list(layer) for layer in head_numbers]
        self.opens_with = "bertender"


class _PrunedModel(PreTrainedModel):
    """A pruned model, built with the heads and neurons of its config."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        family, size = family_of(self), head_size(config)
        layers = encoder_layers(self)
        remaining = zip(layers, head_numbers_of(config), neurons_of(config), strict=True)
        for layer, heads, neurons in remaining:
            family.projections.resize(layer, len(heads) * size)
            family.pruning.set_heads(layer.get_submodule(family.attention), heads, size)
            family.feed_forward.resize(layer, neurons)


@dataclass(frozen=True)
class OwnModel:
    """An architecture of OWN_MODELS."""

    config: type[PretrainedConfig]
    classifier: type[PreTrainedModel]
    tagger: type[PreTrainedModel] | None = None
    embedder: type[PreTrainedModel] | None = None
    answerer: type[PreTrainedModel] | None = None
    per_token: tuple[str, ...] = ()
    """Weights with one row per token, besides the word embeddings."""


@dataclass(frozen=True, kw_only=True)
class Prunable(OwnModel):
    """The pruned form of an architecture, a row of PRUNABLE."""

    config: type[_PrunedConfig]
    origins: tuple[type[PreTrainedModel] | None, ...]
    """Classes of transformers, in the order of the pruned ones; None where it has none."""
    width: str
    """Setting of the original config for the number of neurons."""

    @classmethod
    def of(cls, name: str, pruning: Pruning) -> Self:
        """Derive the pruned form of an architecture."""
        config = CONFIG_MAPPING[name]
        own = {
            "model_type": f"bertender-pruned-{name}",
            "pruned_from": name,
            # without an __init__, transformers 5 generates one from annotated settings
            "__init__": _PrunedConfig.__init__,
        }
        kind: Any = type(f"Pruned{config.__name__}", (_PrunedConfig, config), own)
        answers = MODEL_FOR_QUESTION_ANSWERING_MAPPING.get(config, None)
        origins: Any = (
            MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[config],
            MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING[config],
            embedder_of(config),
            answers and answering_class(answers),
        )
        pruned: Any = (
            origin
            and type(f"Pruned{origin.__name__}", (_PrunedModel, origin), {"config_class": kind})
            for origin in origins
        )
        return cls(*pruned, config=kind, origins=origins, width=pruning.width)

    def classes_of(
        self, model: PreTrainedModel
    ) -> tuple[type[PreTrainedModel], type[PreTrainedModel]]:
        """Return the original and the pruned class for a model's head."""
        pruned = (self.classifier, self.tagger, self.embedder, self.answerer)
        pairs = zip(filter(None, self.origins), filter(None, pruned), strict=True)
        return next(pair for pair in pairs if isinstance(model, pair[0]))


PRUNABLE: Mapping[str, Prunable] = {
    name: Prunable.of(name, family.pruning)
    for name, family in FAMILIES.items()
    if not family.pruning.obstacle
}
"""Prunable architectures, by original model_type."""


TABLE_MODELS: Mapping[str, OwnModel] = {
    BiLstmConfig.model_type: OwnModel(BiLstmConfig, BiLstmForSequenceClassification),
    StaticConfig.model_type: OwnModel(
        StaticConfig, StaticForSequenceClassification, per_token=("encoder.word_weights",)
    ),
}

OWN_MODELS: Mapping[str, OwnModel] = {
    **{row.config.model_type: row for row in PRUNABLE.values()},
    **TABLE_MODELS,
}

OUTPUTS: Mapping[str, bool] = {
    "return_dict": True,
    "output_attentions": False,
    "output_hidden_states": False,
    **({"torchscript": False} if BEFORE_5 else {}),
}
"""Output settings, which some configs set differently."""


FULL = "original_full"
"""Value of BigBird's attention_type with which each token attends to all."""


def head_size(config: PretrainedConfig) -> int:
    """Return the width of a head, which pruning does not change."""
    return int(config.hidden_size // config.num_attention_heads)


def heads_of(config: PretrainedConfig) -> list[int]:
    """Return the number of heads of each layer."""
    remaining = getattr(config, "heads_kept", None)
    return list(remaining or [config.num_attention_heads] * config.num_hidden_layers)


def head_numbers_of(config: PretrainedConfig) -> list[list[int]]:
    """Return the heads of each layer, by their numbers before pruning."""
    numbers = getattr(config, "head_numbers", None)
    return numbers or [list(range(count)) for count in heads_of(config)]


def neurons_of(config: PretrainedConfig) -> list[int]:
    """Return the number of neurons of each layer's feed-forward part."""
    remaining = getattr(config, "neurons_kept", None)
    row = PRUNABLE.get(family_name(config))
    width = getattr(config, row.width if row else "intermediate_size", 0)  # 0 without layers
    return list(remaining or [width] * config.num_hidden_layers)


def register_own_models() -> None:
    """Register OWN_MODELS with the Auto classes of transformers."""
    for row in OWN_MODELS.values():
        AutoConfig.register(row.config.model_type, row.config, exist_ok=True)
        AutoModelForSequenceClassification.register(row.config, row.classifier, exist_ok=True)
        if row.tagger is not None:
            AutoModelForTokenClassification.register(row.config, row.tagger, exist_ok=True)
        if row.answerer is not None:
            AutoModelForQuestionAnswering.register(row.config, row.answerer, exist_ok=True)
        if row.embedder is not None:
            EMBEDDERS[row.config] = row.embedder


def auto_class(name: str) -> Any:
    """Return an Auto class by name: one of transformers, or bertender's own."""
    own = {kind.__name__: kind for kind in (AutoModelForSentenceEmbedding,)}
    return own.get(name) or getattr(transformers, name)


def open_config(source: str, **settings: Any) -> PretrainedConfig:
    """Read the config of a model of transformers or of OWN_MODELS.

    Args:
        source: a folder or a hub name.
        settings: more arguments of `from_pretrained`.

    Raises:
        HubCodeError: the config refers to code on the hub.
        OSError, ValueError, KeyError: the config cannot be read.
    """
    register_own_models()
    config: PretrainedConfig = open_pretrained(AutoConfig, source, **settings)
    return config


def load_pretrained(
    auto_class: Any, source: str, **settings: Any
) -> tuple[PreTrainedModel, dict[str, list[str]]]:
    """Load a model of transformers or of OWN_MODELS, from safetensors alone.

    Args:
        auto_class: Auto class of the head.
        source: a folder or a hub name.
        settings: more arguments of `from_pretrained`.

    Returns:
        The model, and the report of loading: `missing_keys`, `mismatched_keys`, ...

    Raises:
        HubCodeError: the config refers to code on the hub.
        ModelError: transformers has no such head for the architecture, or would ignore weights of
            a layer; a weight is not finite; or attention is sparse.
        OSError, ValueError, KeyError, RuntimeError, SafetensorError: the model cannot be loaded, or
            would need a pickle or code from the hub.
    """
    local = {name: settings[name] for name in ("local_files_only",) if name in settings}
    config = open_config(source, **local)
    _check_class(auto_class, config, source)
    family = FAMILIES.get(family_name(config))
    if not BEFORE_5 and has_distances_alone(config):
        raise ModelError(
            f"position_embedding_type={config.position_embedding_type!r} in the config of "
            f"{source}: transformers {transformers.__version__} has no such attention, and would "
            "read other positions. Install 'transformers<5'."
        )
    if getattr(config, "attention_type", FULL) != FULL:  # BigBird's
        raise ModelError(
            f"attention_type={config.attention_type!r} in the config of {source}: transformers "
            "computes it for long texts alone, and switches a model over at the first short one, "
            f"so that outputs would depend on what ran before. Set attention_type to {FULL!r} in "
            "the config.json of a copy."
        )
    settings = {**OUTPUTS, **(family.loading if family else {}), **settings}
    model, report = open_pretrained(
        auto_class, source, use_safetensors=True, output_loading_info=True, **settings
    )
    _separate_storages(model)
    if name := not_finite(model):
        raise ModelError(
            f"weight {name} of {source} has a value that is not a finite number, so that all that "
            "is computed with it is lost. Take the weights of an earlier checkpoint, or download "
            "them again."
        )
    if family and (name := _ignored_weight(report, model, family)):
        raise ModelError(
            f"{source} has the weight {name}, which a {type(model).__name__} of transformers "
            f"{transformers.__version__} would not read, so that its layers would compute another "
            "thing. Merge an adapter into its model, or use the version of transformers that wrote "
            "it."
        )
    # transformers adds the shapes to each key
    report["mismatched_keys"] = [
        each if isinstance(each, str) else each[0] for each in report["mismatched_keys"]
    ]
    return with_logits(model, auto_class), report


def with_logits(model: PreTrainedModel, auto_class: Any) -> PreTrainedModel:
    """Return a new transformers model, changed to return `logits` if it answers questions."""
    return answering(model) if auto_class is AutoModelForQuestionAnswering else model


def _check_class(auto_class: Any, config: PretrainedConfig, source: str) -> None:
    """Raise ModelError where an Auto class of transformers has no class for a config."""
    mapping = getattr(auto_class, "_model_mapping", None)  # None: bertender's own takes any encoder
    if mapping is not None and type(config) not in mapping:
        raise ModelError(
            f"{source} is a {config.model_type!r} model, for which transformers "
            f"{transformers.__version__} has no {auto_class.__name__}. {ANOTHER_ARCHITECTURE}"
        )


def _separate_storages(model: nn.Module) -> None:
    """Give each weight its own memory, in place.

    transformers 5 slices NomicBERT's queries, keys and values from one tensor, and safetensors
    does not save weights that share memory.
    """
    for weight in model.parameters():
        if not weight.is_meta and weight.untyped_storage().nbytes() > weight.nbytes:
            weight.data = weight.data.clone()


def not_finite(model: nn.Module) -> str | None:
    """Return the name of the first weight with a NaN or an infinity; None where all are finite."""
    for name, weight in model.named_parameters():
        # a sum needs no memory, and is not finite if a value is not
        if not weight.is_meta and not weight.detach().sum(dtype=torch.float64).isfinite():
            return name
    return None


def _ignored_weight(
    report: Mapping[str, Iterable[str]], model: PreTrainedModel, family: Family
) -> str | None:
    """Return the first layer weight in the file that the model ignores; None where there is none.

    Layers beyond the model's depth do not count, since the config leaves them out. If the model
    itself misses layer weights, the result is None and the caller reports that.
    """
    place = re.compile(rf"(?:^|\.)({re.escape(family.layers)}\.\d+\.)")
    layers = {found[1] for name in model.state_dict() if (found := place.search(name))}
    if any(map(place.search, report["missing_keys"])):
        return None
    inside = ((name, place.search(name)) for name in sorted(report["unexpected_keys"]))
    return next((name for name, found in inside if found and found[1] in layers), None)


@dataclass(frozen=True)
class ExpectedModel:
    """A model that does not exist yet, as far as settings define it.

    It is on PyTorch's device `meta`, where tensors have shapes but no values, so that the checks of
    a step can run before the model exists.
    """

    model: PreTrainedModel
    """Model without weights, always with a head that labels texts."""
    shape_known: bool = True
    """Whether layers and widths are known, not only the class."""

    @classmethod
    def of(cls, config: PretrainedConfig, *, shape_known: bool = True) -> Self | None:
        """Return the model of a config; None for architectures that cannot label texts."""
        register_own_models()
        auto_class: Any = AutoModelForSequenceClassification
        try:
            model = without_weights(lambda: auto_class.from_config(config, trust_remote_code=False))
        except ValueError:
            return None
        return None if model is None else cls(model, shape_known)

    @classmethod
    def of_type(cls, model_type: str) -> Self | None:
        """Return a model of which only the architecture is known."""
        row = OWN_MODELS.get(model_type)
        config = row.config() if row else AutoConfig.for_model(model_type)
        return cls.of(config, shape_known=False)


def expected_on_disk(source: str | Path) -> ExpectedModel | None:
    """Return the model of a folder or a cached hub name; None for any other source.

    Raises:
        HubCodeError: the config refers to code on the hub.
    """
    try:
        config = open_config(str(source), local_files_only=True)
    except (OSError, ValueError, KeyError):
        return None  # the step that opens it reports why
    return ExpectedModel.of(config)


def without_weights(build: Callable[[], PreTrainedModel]) -> PreTrainedModel | None:
    """Build a model without weights; None where the builder reads values of tensors."""
    try:
        with torch.device("meta"):
            return build()
    except RuntimeError:
        return None
