"""A tokenizer without transformers gives what transformers gives, for every kind that there is."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase, T5TokenizerFast

from bertender.core.errors import ModelError
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from bertender.text.batch import Batch, Example, Tokenize, TokenizeWords, truncated_rows
from bertender.text.tokenizer import (
    ALWAYS,
    FileTokenizer,
    load_tokenizer,
    longest_input,
    open_tokenizer,
    save_tokenizer,
)
from distill.pretraining.config import TOKENIZERS
from distill.pretraining.vocabularies import train_tokenizer
from tests.distill.architectures import ARCHITECTURES
from tests.toys import tiny_tokenizer

PASSAGES = [
    "the apple and the hammer",
    "Der Überfluß, naïve café; 98765 saws!",
    "東京 is a city",
] * 20
MAX_LENGTH = 12

TEXTS = st.text(max_size=60)
WORDS = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=20).map(tuple)

NAMED_TEXTS: Mapping[str, Sequence[str]] = {
    "plain": ["the apple", "hammer"],
    "empty": ["", "saw", ""],
    "blank": [" ", "\t\n", "\u3000"],
    "emoji": ["saw 🍐🔨", "👩‍👩‍👧‍👦", "🏳️‍🌈"],
    "NUL": ["apple\0saw", "\0"],
    "controls": ["\u200b\x01", "apple\x7fsaw", "\ufeffsaw"],
    "right to left": ["תפוח", "תפוח saw التفاح"],
    "accents, composed and not": ["Überfluß", "U\u0308berfluß"],
    "special tokens in the text": ["[CLS] saw [SEP]", "<s> saw </s> <pad>", "<|endoftext|>"],
    "longer than the input": ["saw " * 90, "apple"],
    "one long word": ["x" * 200],
    "exactly as long as the input": ["saw " * (MAX_LENGTH - 2), "saw " * (MAX_LENGTH - 1)],
}
LONG_TEXTS = {"32 kilobytes": "apple hammer " * 2500, "a word of 5000 letters": "x" * 5000}

TRAINED: dict[str, Callable[[], PreTrainedTokenizerBase]] = {
    name: partial(train_tokenizer, name, iter(PASSAGES), max(kind.smallest, 300), MAX_LENGTH)
    for name, kind in TOKENIZERS.items()
}
KINDS = {**TRAINED, **{f"{name}'s": row.tokenizer for name, row in ARCHITECTURES.items()}}
SIDES = ("left", "right")


class Both(NamedTuple):
    """The same tokenizer without transformers, and with it."""

    mine: FileTokenizer
    theirs: PreTrainedTokenizerBase

    @classmethod
    def of(cls, folder: Path) -> Both:
        tokenizer = open_tokenizer(folder)
        assert isinstance(tokenizer, FileTokenizer)
        return cls(tokenizer, load_tokenizer(folder))

    def batch(
        self,
        examples: Sequence[Example],
        max_length: int | None = None,
        encoder: type[Tokenize] = Tokenize,
    ) -> Batch:
        """Return the batch that both make of some examples, cut by transformers itself or not."""
        mine, in_process = (encoder(tokenizer, max_length)(examples) for tokenizer in self)
        self._check_same(mine, in_process)
        if encoder is Tokenize:
            plain = self._by_transformers(examples, max_length)
            self._check_same(in_process, plain)
            assert {*in_process.arrays} == {*plain.arrays}
        return mine

    def _by_transformers(self, examples: Sequence[Example], max_length: int | None) -> Batch:
        """Return the batch of nothing but a call of transformers."""
        longest = longest_input(self.theirs)
        tokens = self.theirs(
            *map(list, zip(*examples, strict=True)),
            max_length=min(max_length or longest, longest),
            **ALWAYS,
        )
        return Batch(tuple(examples), tokens, truncated=truncated_rows(tokens))

    def _check_same(self, mine: Batch, theirs: Batch) -> None:
        assert mine.examples == theirs.examples and {*theirs.arrays} <= {*mine.arrays}
        for name, array in theirs.arrays.items():
            np.testing.assert_array_equal(mine.arrays[name], array, err_msg=name)
            assert mine.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(mine.truncated, theirs.truncated)  # type: ignore[arg-type]
        assert (mine.words is None) == (theirs.words is None)
        if theirs.words is not None:
            np.testing.assert_array_equal(mine.words, theirs.words)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=KINDS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    """A tokenizer of each kind."""
    tokenizer = KINDS[request.param]()
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # as a fine-tuned decoder has it
    folder = tmp_path_factory.mktemp("tokenizer")
    return Both.of(_saved(tokenizer, folder, model_max_length=MAX_LENGTH))


@pytest.fixture(scope="module")
def of_words(both: Both, tmp_path_factory: pytest.TempPathFactory) -> Both:
    """The same as a tagger has it."""
    if isinstance(both.theirs, T5TokenizerFast):  # of no tagger: it takes no such settings
        return both
    folder = tmp_path_factory.mktemp("tokenizer")
    both.theirs.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder, **TOKEN_CLASSIFICATION.tokenizer_settings)
    return Both.of(_saved(tokenizer, folder))


def _saved(tokenizer: PreTrainedTokenizerBase, folder: Path, **changes: Any) -> Path:
    """Save a tokenizer, its settings changed before."""
    for name, value in changes.items():
        setattr(tokenizer, name, value)
    tokenizer.save_pretrained(folder)
    _set(folder, **changes)
    return folder


def _set(folder: Path, **changes: Any) -> None:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize("name", NAMED_TEXTS)
def test_the_same_tokens_of_texts_and_pairs(both: Both, name: str) -> None:
    texts = NAMED_TEXTS[name]
    pairs = [*zip(texts, reversed(texts), strict=True), ("saw", texts[0]), (texts[-1], "a pear")]
    for max_length in (None, 7):
        both.batch([(text,) for text in texts], max_length)
        both.batch(pairs, max_length)


@pytest.mark.parametrize("name", LONG_TEXTS)
def test_the_same_tokens_of_long_texts(both: Both, name: str) -> None:
    """Not of pairs: transformers takes gigabytes for two such texts."""
    both.batch([(LONG_TEXTS[name],), ("saw",)])


def test_the_same_cut_of_pairs(both: Both) -> None:
    for first, second in [(1, 9), (9, 1), (3, 4), (4, 3), (5, 5), (30, 31), (31, 30)]:
        for max_length in range(5, MAX_LENGTH):
            both.batch([("saw " * first, "saw " * second)], max_length)


@settings(max_examples=15)
@given(texts=st.lists(TEXTS, min_size=1, max_size=5))
def test_the_same_tokens_of_any_texts(both: Both, texts: list[str]) -> None:
    both.batch([(text,) for text in texts])


@settings(max_examples=15)
@given(pairs=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4))
def test_the_same_tokens_of_any_pairs(both: Both, pairs: list[tuple[str, str]]) -> None:
    both.batch(pairs, 9)


@settings(max_examples=15)
@given(sentences=st.lists(WORDS, min_size=1, max_size=4))
def test_the_same_tokens_of_words(of_words: Both, sentences: list[Example]) -> None:
    of_words.batch(sentences, encoder=TokenizeWords)


@pytest.mark.parametrize(("padding_side", "truncation_side"), product(SIDES, SIDES))
def test_the_same_sides(
    both: Both, tmp_path: Path, padding_side: str, truncation_side: str
) -> None:
    sides = {"padding_side": padding_side, "truncation_side": truncation_side}
    both.theirs.save_pretrained(tmp_path)
    _set(tmp_path, **sides)
    other = Both.of(tmp_path)
    batch = other.batch([("the apple and " + "the hammer " * 20,), ("saw",)])
    assert batch.truncated is not None and batch.truncated.tolist() == [True, False]
    padded = {"left": 0, "right": -1}[padding_side]
    assert batch.arrays["attention_mask"][1, padded] == 0
    other.batch([("apple " * 20, "saw " * 9), ("plum", "pear")], 9)


PAIR_OF_32_KILOBYTES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
from pathlib import Path
from bertender.text.tokenizer import ALWAYS, FileTokenizer
tokenizer = FileTokenizer(Path(sys.argv[1]))
cut, short = (tokenizer(["a " * n], ["7 " * n], max_length=64, **ALWAYS) for n in (16384, 100))
assert (cut["input_ids"] == short["input_ids"]).all() and cut.encodings[0].overflowing
"""


SUCH_A_PAIR_IN_PROCESS = """
import resource, sys
from pathlib import Path
from bertender.text.batch import Tokenize; from bertender.text.tokenizer import load_tokenizer
tokenize = Tokenize(load_tokenizer(Path(sys.argv[1])), 64)
# what has been loaded takes gigabytes of addresses: a GB on top of that
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 2**30, size + 2**30))
cut, short = (tokenize([("a " * n, "7 " * n)]) for n in (16384, 100))
assert (cut.arrays["input_ids"] == short.arrays["input_ids"]).all() and cut.truncated.all()
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(PAIR_OF_32_KILOBYTES, id="endpoint"),
        pytest.param(SUCH_A_PAIR_IN_PROCESS, id="in process", marks=pytest.mark.slow),
    ],
)
def test_a_pair_of_long_texts_takes_little_memory(program: str, tmp_path: Path) -> None:
    """Where tokenizers cuts a pair, it makes every pair of the parts that are cut off."""
    _saved(tiny_tokenizer(), tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "RAYON_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr


def test_the_same_type_ids_of_padding_and_of_second_texts(tmp_path: Path) -> None:
    """XLNet's have four values, and nothing in its files names that of padding."""
    both = Both.of(_saved(ARCHITECTURES["xlnet"].tokenizer(), tmp_path))
    batch = both.batch([("saw", "apple"), ("saw apple plum", "hammer saw drill")])
    assert set(batch.arrays["token_type_ids"][0]) == {0, 1, 2, 3}
    assert batch.arrays["attention_mask"][0, 0] == 0


def test_the_same_type_ids_of_pairs_that_nothing_is_put_around(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "post_processor": None}))
    _set(tmp_path, tokenizer_class="PreTrainedTokenizerFast")
    batch = Both.of(tmp_path).batch([("saw apple", "plum saw"), ("saw " * 9, "apple")], 8)
    assert batch.arrays["token_type_ids"][0].tolist()[:4] == [0, 0, 1, 1]


@pytest.mark.parametrize("block", ["padding", "truncation"])
def test_what_a_tokenizer_file_says_of_padding_and_truncation(tmp_path: Path, block: str) -> None:
    """Published tokenizers often have it; their numbers are of a training, but the sides count."""
    tokenizer = tiny_tokenizer()
    enable: dict[str, Callable[[], None]] = {
        "padding": lambda: tokenizer.backend_tokenizer.enable_padding(
            direction="left", pad_id=0, pad_token="[PAD]", length=40
        ),
        "truncation": lambda: tokenizer.backend_tokenizer.enable_truncation(7, direction="left"),
    }
    tokenizer.save_pretrained(tmp_path)
    enable[block]()
    tokenizer.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    Both.of(tmp_path).batch([("saw apple " * 50,), ("saw",)], 9)


@pytest.mark.parametrize("split", [False, True])
def test_special_tokens_in_a_text_are_split_as_the_settings_say(
    tmp_path: Path, split: bool
) -> None:
    both = Both.of(_saved(tiny_tokenizer(), tmp_path, split_special_tokens=split))
    assert (both.batch([("saw [SEP] apple",)]).arrays["input_ids"].shape[1] > 5) == split


@pytest.mark.parametrize("stated", [64, int(1e30), None])
def test_the_same_longest_input(tmp_path: Path, stated: int | None) -> None:
    _saved(tiny_tokenizer(), tmp_path)
    _set(tmp_path, model_max_length=stated)
    both = Both.of(tmp_path)
    assert longest_input(both.mine) == longest_input(both.theirs)


def test_another_class_is_run_by_transformers_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _saved(tiny_tokenizer(), tmp_path)
    _set(tmp_path, tokenizer_class="FunnelTokenizer")
    with caplog.at_level(logging.WARNING):
        tokenizer = open_tokenizer(tmp_path)
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    assert f"transformers runs the tokenizer of {tmp_path} (FunnelTokenizer)" in caplog.text
    assert "BertTokenizer" in caplog.text


@pytest.mark.parametrize("damaged", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [None, "", "[]", "{ half"])
def test_files_that_cannot_be_read_are_named(
    tmp_path: Path, damaged: str, content: str | None
) -> None:
    _saved(tiny_tokenizer(), tmp_path)
    (tmp_path / damaged).unlink()
    if content is not None:
        (tmp_path / damaged).write_text(content)
    with pytest.raises(ModelError, match=r"no usable tokenizer in .*tokenizer_config\.json"):
        FileTokenizer(tmp_path)


def test_a_tokenizer_without_padding_is_refused(tmp_path: Path) -> None:
    _saved(ARCHITECTURES["gpt2"].tokenizer(), tmp_path)
    with pytest.raises(ModelError, match=r"no padding token \(pad_token=None\)"):
        open_tokenizer(tmp_path)


def test_settings_of_transformers_alone_are_refused(tmp_path: Path) -> None:
    tokenizer = FileTokenizer(_saved(tiny_tokenizer(), tmp_path))
    with pytest.raises(ModelError, match="'return_offsets_mapping': True"):
        tokenizer(["saw"], max_length=9, **ALWAYS, return_offsets_mapping=True)


def test_parts_that_the_class_does_not_make_are_those_of_the_file(tmp_path: Path) -> None:
    """transformers 5 makes them anew, of the class; what is written then opens there alike."""
    own, written = tmp_path / "own", tmp_path / "written"
    tiny_tokenizer().save_pretrained(own)
    file = own / "tokenizer.json"
    content = json.loads(file.read_text())
    replaced = {"type": "Replace", "pattern": {"String": "pear"}, "content": "apple"}
    parts = {"type": "Sequence", "normalizers": [content["normalizer"], replaced]}
    file.write_text(json.dumps({**content, "normalizer": parts}))
    tokenizer = load_tokenizer(own)
    expected = tokenizer("apple apple")["input_ids"]
    assert tokenizer("apple pear")["input_ids"] == expected
    assert FileTokenizer(own)(["apple pear"], max_length=9, **ALWAYS)["input_ids"].tolist() == [
        expected
    ]
    save_tokenizer(tokenizer, written)
    assert AutoTokenizer.from_pretrained(written)("apple pear")["input_ids"] == expected


@pytest.mark.parametrize("name", ["albert", "bert", "deberta-v2", "xlnet"])
def test_the_second_text_of_a_pair_has_a_segment_of_its_own(name: str, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(_saved(ARCHITECTURES[name].tokenizer(), tmp_path))
    assert {0, 1} <= set(tokenizer("apple", "saw")["token_type_ids"])


def _changed(folder: Path, **changes: Any) -> Path:
    """A folder with tiny_tokenizer, with other values in parts of its tokenizer.json."""
    tiny_tokenizer().save_pretrained(folder)
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    for part, values in changes.items():
        content[part] = {**content[part], **values}
    file.write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    "changes",
    [{"model": {"max_input_chars_per_word": 3}}, {"normalizer": {"clean_text": False}}],
    ids=["model", "normalizer"],
)
def test_what_a_file_states_of_model_and_normalizer_holds(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    own, written = _changed(tmp_path / "own", **changes), tmp_path / "written"
    texts = ["apple saw", "pear\x00 \x07saw"]
    Both.of(own).batch([(text,) for text in texts])
    tokenizer = load_tokenizer(own)
    save_tokenizer(tokenizer, written)
    plain = AutoTokenizer.from_pretrained(written)
    assert plain(texts)["input_ids"] == tokenizer(texts)["input_ids"]


@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "TokenizersBackend"])
def test_a_tokenizer_of_no_class_opens_under_both_majors(name: str, tmp_path: Path) -> None:
    """transformers 5 calls it otherwise, and gives its pairs no segments."""
    own, written = _changed(tmp_path / "own"), tmp_path / "written"
    _set(own, tokenizer_class=name)
    tokenizer = load_tokenizer(own)
    assert set(tokenizer("apple", "saw")["token_type_ids"]) == {0, 1}
    assert isinstance(open_tokenizer(own), FileTokenizer)
    save_tokenizer(tokenizer, written)
    settings = json.loads((written / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
