"""Embedders: encoders with one vector per text as output, pooled and normalised in the model.

Reimers and Gurevych 2019 (SBERT, arXiv 1908.10084), section 3: the mean of the token states, or the
state of the first token. The arithmetic is that of sentence-transformers, so that both give the
same numbers. The vectors are called logits, like the outputs of all models here.

An embedder is saved as its bare encoder, which `AutoModel` loads, with the files of
`sentence_files`.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import (
    MODEL_FOR_TEXT_ENCODING_MAPPING,
    MODEL_MAPPING,
    AutoConfig,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils.hub import cached_file

from bertender.core.hub import open_pretrained
from bertender.models.sentence_files import (
    MODULES_NAME,
    PROMPTS_NAME,
    TRANSFORMER_NAME,
    VectorSettings,
    has_pooling,
    pooling_file,
    read_settings,
    write_settings,
)

SETTING = "sentence_embedding"
"""Setting of config.json that has the pooling."""
LEAST = 1e-9
"""Least number of tokens in a division."""
LEAST_LENGTH = 1e-12
"""Least length of a vector in a division."""
WITHOUT_DECODER = frozenset({"mt5", "t5", "umt5"})
"""Encoder-decoder architectures, of which only the encoder makes vectors."""
EMBEDDERS: dict[type[PretrainedConfig], type[PreTrainedModel]] = {}
"""Embedder classes by config class: those built so far, and those of OWN_MODELS."""


@dataclass
class EmbedderOutput(SequenceClassifierOutput):
    """The vectors as `logits` (batch, hidden), and the states that they were pooled from."""

    last_hidden_state: torch.Tensor | None = None
    """(batch, seq, hidden)"""


class Embedder(PreTrainedModel):
    """A transformers encoder with a pooling head without weights."""

    encoder_class: ClassVar[type[PreTrainedModel]]
    config: PretrainedConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.vector = self.vector  # writes the default into the config
        setattr(self, self.base_model_prefix, self.encoder_class(config, **self._without_pooler()))
        self.post_init()  # type: ignore[no-untyped-call]

    @classmethod
    def _without_pooler(cls) -> dict[str, bool]:
        """Return the settings that build the encoder without its unused pooler."""
        accepted = inspect.signature(cls.encoder_class.__init__).parameters
        return {"add_pooling_layer": False} if "add_pooling_layer" in accepted else {}

    @property
    def vector(self) -> VectorSettings:
        """Pooling and normalisation; by default the mean, of length 1."""
        return VectorSettings(**getattr(self.config, SETTING, {}))

    @vector.setter
    def vector(self, settings: VectorSettings) -> None:
        setattr(self.config, SETTING, settings.recorded())

    def pooled(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the vectors (batch, hidden) of states (batch, seq, hidden), at least float32."""
        states = states.to(torch.promote_types(states.dtype, torch.float32))
        if self.vector.pooling == "cls":
            vectors = states[:, 0]
        elif self.vector.pooling == "lasttoken":
            # for padding on either side; products export to the same graph in all versions
            places = torch.arange(mask.shape[1], device=mask.device)
            last = (places == (places * mask).amax(1, keepdim=True)).unsqueeze(
                -1
            )  # (batch, seq, 1)
            vectors = states.where(last, 0.0).sum(1)
        else:
            counted = mask.unsqueeze(-1).to(states.dtype)
            vectors = (states * counted).sum(1) / counted.sum(1).clamp(min=LEAST)
        if self.vector.normalize:
            # `functional.normalize` without its `expand_as`, in which graphs lose the width
            lengths: torch.Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
            vectors = vectors / lengths.clamp(min=LEAST_LENGTH)
        return vectors

    def save_pretrained(self, save_directory: Any, *arguments: Any, **settings: Any) -> None:
        """Write the encoder, with the files of sentence-transformers."""
        encoder: Any = self.base_model
        encoder.save_pretrained(save_directory, *arguments, **settings)
        self.write_sentence_files(Path(save_directory), **self._without_pooler())

    def write_sentence_files(self, folder: Path, **model: Any) -> None:
        """Write the files of sentence-transformers where it knows the architecture.

        Args:
            folder: folder of the encoder, or of its graph.
            model: arguments of `from_pretrained` that fit the weights.
        """
        if not hasattr(self.config, "opens_with"):  # transformers knows the architecture
            write_settings(folder, self.vector, self.config.hidden_size, **model)


def embedder_of(config: type[PretrainedConfig]) -> type[PreTrainedModel]:
    """Return the embedder class for a config class.

    Raises:
        KeyError: transformers has no encoder of this architecture.
    """
    if config not in EMBEDDERS:
        alone = config.model_type in WITHOUT_DECODER
        classes = MODEL_FOR_TEXT_ENCODING_MAPPING if alone else MODEL_MAPPING
        EMBEDDERS[config] = _derived(config, classes[config])
    return EMBEDDERS[config]


def _derived(config: type[PretrainedConfig], encoder: Any) -> type[PreTrainedModel]:
    """Derive the embedder of an encoder's class."""
    signature = inspect.signature(encoder.forward)
    _, *names = signature.parameters

    def forward(self: Any, *positional: Any, **inputs: Any) -> EmbedderOutput:
        inputs |= {**dict(zip(names, positional, strict=False)), "return_dict": True}
        found = self.base_model(**inputs)
        states, mask = found.last_hidden_state, inputs.get("attention_mask")
        mask = states.new_ones(states.shape[:2]) if mask is None else mask
        return EmbedderOutput(
            logits=self.pooled(states, mask),
            last_hidden_state=states,
            hidden_states=found.hidden_states,
            attentions=getattr(found, "attentions", None),
        )

    # callers read the token columns of the model from the signature
    forward.__signature__ = signature  # type: ignore[attr-defined]
    own = {
        "config_class": config,
        "encoder_class": encoder,
        "forward": forward,
    }
    name = f"{encoder.__name__.removesuffix('Model')}ForSentenceEmbedding"
    kind: type[PreTrainedModel] = type(name, (Embedder, encoder.__bases__[0]), own)
    return kind


class AutoModelForSentenceEmbedding:
    """Opens embedders, with the interface of transformers' Auto classes."""

    @classmethod
    def from_pretrained(cls, source: str, **settings: Any) -> Any:
        """Open the embedder of a folder or a hub name, which has an encoder or a whole model.

        Pooling is read from the config, or else from the files of sentence-transformers.
        """
        given = settings.pop(SETTING, None)
        settings.pop("trust_remote_code", None)  # set by `open_pretrained`
        places = ("local_files_only", "revision", "cache_dir")
        found = {name: settings[name] for name in places if name in settings}
        config, unused = open_pretrained(AutoConfig, source, return_unused_kwargs=True, **settings)
        unused.pop("trust_remote_code", None)
        if given is None and not hasattr(config, SETTING):
            files = _sentence_files(source, **found)
            given = files and read_settings(files).recorded()
        if given:
            setattr(config, SETTING, given)
        kind: Any = embedder_of(type(config))
        return open_pretrained(kind, source, config=config, **{**found, **unused})

    @classmethod
    def from_config(cls, config: PretrainedConfig, **settings: Any) -> Any:
        """Build the embedder of a config, untrained."""
        kind: Any = embedder_of(type(config))
        return kind._from_config(config)


def _sentence_files(source: str, **settings: Any) -> Path | None:
    """Return the folder with the files of sentence-transformers; None where there are none."""
    if Path(source).is_dir():
        return Path(source) if has_pooling(Path(source)) else None

    def downloaded(name: str) -> str | None:
        lenient = {"_raise_exceptions_for_missing_entries": False}
        path: str | None = cached_file(source, name, **lenient, **settings)
        return path

    path = downloaded(MODULES_NAME)
    if path is None or not has_pooling(folder := Path(path).parent):
        return None
    for name in (TRANSFORMER_NAME, PROMPTS_NAME, pooling_file(folder)):
        downloaded(name)
    return folder
