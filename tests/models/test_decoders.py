"""Decoders that label texts or give vectors: the last token that is no padding, wherever it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

import bertender
from bertender.core.errors import ModelError
from bertender.models.classifier import open_classifier
from bertender.models.sentence_files import POOLINGS
from bertender.text.tokenizer import load_tokenizer
from tests.distill.architectures import ARCHITECTURES
from tests.toys import similarity_task

END, PADDING, OTHER = "<|im_end|>", "<|endoftext|>", 7
TEXTS = ("saw", "hammer drill wrench apple pear plum", "apple pear")


def qwen3(folder: Path, kind: Any, side: str, ends: str | None, **settings: Any) -> Any:
    """A finished Qwen3 in a folder, whose tokenizer pads on a side and ends texts with a token."""
    row = ARCHITECTURES["qwen3"]
    tokenizer = row.tokenizer()
    tokenizer.padding_side = tokenizer.init_kwargs["padding_side"] = side  # both, to be saved
    if ends:
        number = tokenizer.convert_tokens_to_ids(ends)
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            f"$A {ends}", f"$A {ends} $B {ends}", [(ends, number)]
        )
    torch.manual_seed(5)
    shape = {**row.shape, "vocab_size": len(tokenizer), **settings}
    model = kind.from_config(AutoConfig.for_model("qwen3", **shape)).eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(0.2 * torch.randn_like(weights))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def alone(model: Any, folder: Path) -> list[Any]:
    """What a model's own class computes of each text."""
    tokenizer = load_tokenizer(folder)
    with torch.inference_mode():
        return [
            model(**{name: batch[name] for name in ("input_ids", "attention_mask")})
            for text in TEXTS
            for batch in [tokenizer(text, return_tensors="pt")]
        ]


@pytest.mark.parametrize(
    ("side", "ends", "pad", "expected"),
    [
        ("right", None, 0, 0),
        ("right", END, 0, 0),
        ("right", PADDING, 0, 0),  # so it was trained: the token before the end is read
        ("right", END, None, 0),
        ("right", None, OTHER, 0),
        ("right", PADDING, None, None),  # it reads the end, and would not with this padding
        ("right", PADDING, OTHER, None),
        ("left", PADDING, OTHER, OTHER),  # the last token is never padding
        ("left", END, None, 0),
    ],
)
def test_a_finished_decoder_reads_each_text_by_itself_or_is_refused(
    side: str, ends: str | None, pad: int | None, expected: int | None, tmp_path: Path
) -> None:
    theirs, out = tmp_path / "theirs", tmp_path / "imported"
    model = qwen3(theirs, AutoModelForSequenceClassification, side, ends, pad_token_id=pad)
    if expected is None:
        said = rf"change with its padding \(pad_token_id={pad} .*pads on the {side}.*token 0\)"
        with pytest.raises(ModelError, match=said):
            bertender.import_model(theirs, out=out)
        assert not out.exists()
        return
    classifier = open_classifier(bertender.import_model(theirs, out=out))
    assert json.loads((out / "config.json").read_text())["pad_token_id"] == expected
    wanted = torch.cat([found.logits for found in alone(model, theirs)]).numpy()
    assert np.ptp(wanted, axis=0).min() > 0.1
    found = classifier.logits([(text,) for text in TEXTS])
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("side", ["left", pytest.param("right", marks=pytest.mark.slow)])
def test_vectors_of_the_last_token(side: str, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    model = qwen3(theirs, AutoModel, side, PADDING, pad_token_id=0)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    listed = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate(modules)
    ]
    (theirs / "modules.json").write_text(json.dumps(listed))
    (theirs / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_lasttoken": True}
    (theirs / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    last = torch.cat([found.last_hidden_state[:, -1] for found in alone(model, theirs)])
    wanted = torch.nn.functional.normalize(last, dim=-1).numpy()

    artifact = bertender.import_model(theirs, out=tmp_path / "imported")
    graph = bertender.export(artifact, similarity_task(8, 8), out=tmp_path / "onnx")
    for each in (artifact, graph):
        found = open_classifier(each).logits([(text,) for text in TEXTS])
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    written = json.loads((artifact.path / "1_Pooling" / "config.json").read_text())
    assert [name for name, value in written.items() if value is True] == [POOLINGS["lasttoken"]]


def test_sentence_transformers_gives_the_same_vectors(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    qwen3(tmp_path / "theirs", AutoModel, "left", PADDING, pad_token_id=0)
    settings: Any = {"out": tmp_path / "imported", "pooling": "lasttoken"}
    artifact = bertender.import_model(tmp_path / "theirs", **settings)
    theirs = library.SentenceTransformer(str(artifact.path), device="cpu").encode([*TEXTS])
    ours = open_classifier(artifact).logits([(text,) for text in TEXTS])
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
