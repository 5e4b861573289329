"""Whether a model's outputs change with padding.

It is found by running the model: a text's outputs must be its own. Every command that opens a model
from elsewhere asks here, whatever its architecture.
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
"""Share of the largest output by which rounding does not change one."""

Run = Callable[[Mapping[str, torch.Tensor]], torch.Tensor]
"""Token columns (batch, seq) -> outputs (batch, ...)."""


def padding_unread(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str
) -> int | None:
    """Return the token by which a model knows its padding; set to the tokenizer's where it must be.

    A decoder reads a text's last token, which it finds by `pad_token_id`. Without it, or with
    another one than the tokenizer pads with, a text has other outputs beside longer ones than
    alone. So it has in an encoder whose tokens read their neighbours (ConvBERT, FNet). What
    architectures of FAMILIES read is known.

    Raises:
        ModelError: outputs change with padding, and would change with the tokenizer's token too.
        ConfigError: its vectors are those of a first token that reads no other.
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
            if not _changes(run, tokenizer, wanted):
                return padding
        except ValueError:  # a model that names no padding takes single texts alone
            continue
    raise _reads_padding(source, own, tokenizer)


def check_graph(
    graph: Path, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, source: str
) -> None:
    """Raise ModelError where the outputs of a graph of floats change with padding."""
    if family_name(config) in FAMILIES:
        return
    predictor = OnnxPredictor(open_session(graph))

    def run(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        arrays = {name: batch[name].numpy() for name in predictor.inputs if name in batch}
        texts = ((SHORT,),) * len(batch["input_ids"])  # a graph takes the tokens alone
        return torch.from_numpy(predictor.logits(Batch(texts, arrays)))

    if _changes(run, tokenizer, _outputs_of(run, tokenizer, SHORT)):
        raise _reads_padding(source, config.pad_token_id, tokenizer)


def _changes(run: Run, tokenizer: PreTrainedTokenizerBase, wanted: torch.Tensor) -> bool:
    """Return whether the outputs of a text, alone or beside a longer one, are not those wanted."""
    found = (_outputs_of(run, tokenizer, *texts) for texts in ((SHORT,), (SHORT, LONG)))
    most = CHANGED * float(wanted.abs().max())
    return max(float((each - wanted).abs().max()) for each in found) > most


def _outputs_of(run: Run, tokenizer: PreTrainedTokenizerBase, *texts: str) -> torch.Tensor:
    """Return the outputs of the first text, of its tokens those that are no padding."""
    batch = tokenizer(list(texts), padding=True, return_tensors="pt")
    tokenizer(SHORT)  # else it would be saved as one that pads
    outputs = run(batch)[0]
    # (seq, labels) where tokens have labels
    return outputs[batch["attention_mask"][0].bool()] if outputs.dim() == 2 else outputs


def _reads_padding(
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
    """Raise ConfigError where vectors are those of a first token that reads no other token.

    So it is in decoders, and in encoders with `is_decoder`: texts that begin alike have one vector.
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
