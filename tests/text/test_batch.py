"""Texts to token arrays: padded to the longest of the batch, truncated to what the model takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bertender.core.errors import DataError, ModelError
from bertender.text.batch import Batch, Encode, Tokenize, keep_text
from bertender.text.tokenizer import load_tokenizer, longest_input
from tests.training.runs import tiny_tokenizer

EXAMPLES = (("apple plum",), ("saw",), ("hammer drill saw apple",))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a tokenizer."""
    tiny_tokenizer().save_pretrained(tmp_path)
    return tmp_path


def test_padded_to_the_longest_of_the_batch() -> None:
    tokenizer = tiny_tokenizer()
    batch = Tokenize(tokenizer)(EXAMPLES)
    lengths = [len(tokenizer(text)["input_ids"]) for (text,) in EXAMPLES]
    assert len(batch) == 3 and batch.examples == EXAMPLES
    assert batch.arrays["attention_mask"].sum(1).tolist() == lengths
    assert {array.shape for array in batch.arrays.values()} == {(3, max(lengths))}
    assert {array.dtype for array in batch.arrays.values()} == {np.dtype(np.int64)}
    assert set(batch.arrays) == set(tokenizer.model_input_names)
    alone = Tokenize(tokenizer)(EXAMPLES[1:2])
    assert alone.arrays["input_ids"].tolist() == [tokenizer("saw")["input_ids"]]


@pytest.mark.parametrize("encode", [Tokenize(tiny_tokenizer()), keep_text], ids=["ids", "text"])
def test_a_text_alone_is_an_example_of_one(encode: Encode) -> None:
    """Not one of a text for each of its characters."""
    alone, wrapped = encode(["apple plum", "saw"]), encode([("apple plum",), ["saw"]])
    assert alone.examples == wrapped.examples == (("apple plum",), ("saw",))
    assert all((alone.arrays[name] == wrapped.arrays[name]).all() for name in alone.arrays)
    for wrong in ("apple plum", [None], [b"apple"], [("apple", 7)]):
        with pytest.raises(DataError, match=r"Give a |Decode it"):
            encode(wrong)


def test_pairs() -> None:
    tokenizer = tiny_tokenizer()
    batch = Tokenize(tokenizer)([("apple", "saw"), ("plum", "drill drill")])
    assert batch.arrays["input_ids"][1].tolist() == tokenizer("plum", "drill drill")["input_ids"]
    assert batch.arrays["token_type_ids"].max() == 1


@pytest.mark.parametrize(("asked", "given"), [(5, 5), (10**4, 64), (None, 64)])
def test_never_longer_than_asked_or_than_the_model_takes(asked: int | None, given: int) -> None:
    encode = Tokenize(tiny_tokenizer(), asked)
    assert encode.max_length == given
    assert encode([("saw " * 500,)]).arrays["input_ids"].shape == (1, given)


def test_examples_of_unlike_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Tokenize(tiny_tokenizer())([("apple", "saw"), ("plum",)])


def test_text_is_kept_as_it_is() -> None:
    assert keep_text(list(EXAMPLES)) == Batch(EXAMPLES, {})


def test_longest_input(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    assert longest_input(tokenizer) == 64
    tokenizer.model_max_length = int(1e30)
    assert longest_input(tokenizer) == 512


def test_loaded_as_it_was_saved(folder: Path) -> None:
    texts = [text for (text,) in EXAMPLES]
    assert load_tokenizer(folder)(texts).data == tiny_tokenizer()(texts).data


@pytest.mark.parametrize("damaged", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["", "[]", "{ half"])
def test_a_damaged_tokenizer(folder: Path, damaged: str, content: str) -> None:
    (folder / damaged).write_text(content)
    with pytest.raises(ModelError, match="no usable tokenizer in"):
        load_tokenizer(folder)


def test_no_tokenizer_and_no_hub(tmp_path: Path) -> None:
    for place in (tmp_path, "no-such/name"):
        with pytest.raises(ModelError, match=str(place)):
            load_tokenizer(place)


def test_code_beside_a_tokenizer_is_never_run(folder: Path) -> None:
    config = folder / "tokenizer_config.json"
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    auto_map = '{"auto_map": {"AutoTokenizer": ["evil.Evil", null]}, "tokenizer_class": "Evil"}'
    config.write_text(auto_map)
    with pytest.raises(ModelError, match="no usable tokenizer"):
        load_tokenizer(folder)
