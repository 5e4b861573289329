"""Checks that a model's outputs do not change with padding.

The model is run on a text alone and in a batch. All commands that open models of other libraries
use these checks, for any architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.errors import ConfigError, ModelError
from bertender.models.classifier import model_inputs
from bertender.models.embedders import Embedder
from bertender.models.families import FAMILIES, family_name
from bertender.models.onnx_session import OnnxPredictor, open_session
from bertender.text.batch import Batch

SHORT, LONG = "a", "a text that has more tokens than the other"
CHANGED = 1e-3
"""Share of the largest output above which a difference is not rounding."""

Run = Callable[[Mapping[str, torch.Tensor]], torch.Tensor]
"""Token columns (batch, seq) -> outputs (batch, ...)."""


def padding_unread(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str
) -> int | None:
    """Return a `pad_token_id` with which outputs do not change with padding: the model's, or else
    the tokenizer's.

    A decoder reads a text's last token, which it finds by `pad_token_id`. Without it, or if it is
    not the tokenizer's, the outputs of a text change next to longer ones. They also change in
    encoders whose tokens read their neighbours (ConvBERT, FNet). Architectures of FAMILIES are
    known not to read padding.

    Raises:
        ModelError: outputs change with padding for both ids.
        ConfigError: the model's vectors are of a first token that attends to no other.
    """
    check_pooling(model, source)
    own: int | None = model.config.pad_token_id
    if family_name(model.config) in FAMILIES:
        return own

    def run(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        with torch.inference_mode():
            outputs: torch.Tensor = model(**model_inputs(model.eval(), batch)).logits
        return outputs

    wanted = _outputs_of(run, tokenizer, SHORT)
    for padding in (own, tokenizer.pad_token_id):
        model.config.pad_token_id = padding
        try:
            if not _outputs_change(run, tokenizer, wanted):
                return padding
        except ValueError:  # without a padding id, the model only takes single texts
            continue
    raise _padding_error(source, own, tokenizer)


def check_graph(
    graph: Path, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, source: str
) -> None:
    """Raise ModelError where the outputs of a float graph change with padding."""
    if family_name(config) in FAMILIES:
        return
    predictor = OnnxPredictor(open_session(graph))

    def run(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        arrays = {name: batch[name].numpy() for name in predictor.inputs if name in batch}
        texts = ((SHORT,),) * len(batch["input_ids"])  # a graph reads only the tokens
        return torch.from_numpy(predictor.logits(Batch(texts, arrays)))

    if _outputs_change(run, tokenizer, _outputs_of(run, tokenizer, SHORT)):
        raise _padding_error(source, config.pad_token_id, tokenizer)


def _outputs_change(run: Run, tokenizer: PreTrainedTokenizerBase, wanted: torch.Tensor) -> bool:
    """Return whether the outputs of a text, alone or next to a longer one, differ from `wanted`."""
    found = (_outputs_of(run, tokenizer, *texts) for texts in ((SHORT,), (SHORT, LONG)))
    most = CHANGED * float(wanted.abs().max())
    return max(float((each - wanted).abs().max()) for each in found) > most


def _outputs_of(run: Run, tokenizer: PreTrainedTokenizerBase, *texts: str) -> torch.Tensor:
    """Return the outputs of the first text, without padding."""
    batch = tokenizer(list(texts), padding=True, return_tensors="pt")
    tokenizer(SHORT)  # a tokenizer is saved with the padding of its last call
    outputs = run(batch)[0]
    # (seq, labels) where tokens have labels
    return outputs[batch["attention_mask"][0].bool()] if outputs.dim() == 2 else outputs


def _padding_error(
    source: str, padding: int | None, tokenizer: PreTrainedTokenizerBase
) -> ModelError:
    return ModelError(
        f"{source}: the outputs of a text change with its padding (pad_token_id={padding} in "
        f"config.json, and its tokenizer pads on the {tokenizer.padding_side} with "
        f"{tokenizer.pad_token!r}, token {tokenizer.pad_token_id}), so that it would predict "
        "otherwise in a batch than alone. Correct pad_token_id, or pad_token and padding_side of "
        "the tokenizer, in a copy. Where they are right, the architecture itself reads padding, as "
        "ConvBERT and FNet do: take another."
    )


def check_pooling(model: PreTrainedModel, source: str) -> None:
    """Raise ConfigError where vectors are of a first token that attends to no other token.

    This is so in decoders, and in encoders with `is_decoder`: texts that begin alike would have the
    same vector.
    """
    pooling = model.vector.pooling if isinstance(model, Embedder) else None
    if pooling != "cls":
        return
    tokens = torch.tensor([[1, 2, 3], [1, 3, 2]])
    with torch.inference_mode():
        first, other = model.eval()(input_ids=tokens).logits
    if torch.equal(first, other):
        raise ConfigError(
            f"pooling=cls: in {source} ({model.config.model_type!r}) the first token reads no "
            "other, so that texts that begin alike would have one vector. Give lasttoken, or "
            "mean: by --pooling of bertender import, or where its files say cls, in a copy of "
            "them."
        )
