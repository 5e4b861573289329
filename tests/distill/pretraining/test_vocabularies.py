"""Vocabularies: the same on every run, whole without bertender, and true to the text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from bertender.core.errors import ConfigError, UnknownNameError
from bertender.text.tokenizer import load_tokenizer
from distill.pretraining import vocabularies
from distill.pretraining.config import TOKENIZERS, PretrainConfig
from distill.pretraining.vocabularies import MOST_COUNTED, train_tokenizer
from tests.toys import FRUIT, TOOLS, packed

ROOT = Path(__file__).resolve().parents[3]

WORDS = [f"{fruit} and {tool}" for fruit in FRUIT for tool in TOOLS] * 3
TIES = [f"{chr(0x4E00 + number)}word{number % 37} {number % 11}" for number in range(300)]
"""Words that tie in their counts, and more letters than entries for them."""


def trained(name: str, size: int = 400) -> PreTrainedTokenizerBase:
    return train_tokenizer(name, WORDS, size, 32)


def uncased(text: str) -> str:
    return " ".join(text.lower().split())


NORMALISED: dict[str, Callable[[str], str]] = {
    "wordpiece": uncased,
    "bpe": lambda text: text,
    "char-bpe": uncased,
    "unigram": uncased,
    "sentencepiece": lambda text: text,
}
"""What a text is when it comes back from its tokens."""
PAIRS: dict[str, list[str]] = {
    "wordpiece": ["[CLS]", "[SEP]", "[SEP]"],
    "bpe": ["<s>", "</s>", "</s>", "</s>"],
    "char-bpe": ["[CLS]", "[SEP]", "[SEP]"],
    "unigram": ["[CLS]", "[SEP]", "[SEP]"],
    "sentencepiece": ["[CLS]", "[SEP]", "[SEP]"],
}
"""The special tokens around a pair."""
WITHOUT_SEGMENTS = ("bpe",)
LOSSLESS = ("bpe", "sentencepiece")
ALIKE = {name: trained(name) for name in TOKENIZERS}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_vocabulary_has_what_models_and_objectives_need(name: str) -> None:
    tokenizer = ALIKE[name]
    special = ("pad", "unk", "cls", "sep", "mask")
    ids = [getattr(tokenizer, f"{token}_token_id") for token in special]
    assert len(set(ids)) == len(ids) and max(ids) < 5 and set(ids) <= {*tokenizer.all_special_ids}
    assert len(tokenizer) <= 400 and tokenizer.is_fast
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))
    assert tokenizer.model_max_length == 32
    for fruit, tool in zip(FRUIT, TOOLS, strict=True):
        first, *_, last = tokenizer.tokenize(f"{fruit} and {tool}")
        assert fruit in first and tool in last, "a common word is one piece"


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=60)
@given(words=st.lists(st.text(st.sampled_from("aeplrhmAPM"), min_size=1), max_size=6))
def test_decoded_it_is_the_normalised_text(name: str, words: list[str]) -> None:
    text = "  ".join(words)
    ids = ALIKE[name](text)["input_ids"]
    assert ALIKE[name].decode(ids, skip_special_tokens=True) == NORMALISED[name](text)


@pytest.mark.parametrize("name", LOSSLESS)
@given(text=st.text(max_size=40))
@example("Hello  World, the Café")
@example(" two before\tand three after   ")
@example("<0x41> is spelt, and <0xÄ")
def test_bytes_make_any_text(name: str, text: str) -> None:
    tokenizer = ALIKE[name]
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    kept = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    expected = text.replace("\u2581", " ") if name == "sentencepiece" else text
    assert kept == expected or any(token in text for token in tokenizer.all_special_tokens)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_what_it_has_not_seen_is_unknown_or_bytes(name: str) -> None:
    tokenizer = ALIKE[name]
    ids = tokenizer("apple \u0416", add_special_tokens=False)["input_ids"]
    assert (tokenizer.unk_token_id in ids) == (name not in LOSSLESS)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_same_text_gives_the_same_vocabulary(name: str) -> None:
    for size in (TOKENIZERS[name].smallest, 400):
        first, *others = (
            train_tokenizer(name, TIES, size, 32).backend_tokenizer.to_str() for _ in range(4)
        )
        assert all(other == first for other in others)


TRAIN_ALL = """
import json, sys
from pathlib import Path
from distill.pretraining.vocabularies import TOKENIZERS, train_tokenizer
texts = json.loads(sys.stdin.read())
for name in TOKENIZERS:
    train_tokenizer(name, texts, 400, 32).save_pretrained(Path(sys.argv[1]) / name)
"""


@pytest.fixture(scope="module")
def by_processes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What two processes, whose strings hash differently, have trained on the same texts."""
    folders = []
    for seed in ("1", "2"):
        folder = tmp_path_factory.mktemp(f"seed-{seed}")
        subprocess.run(
            [sys.executable, "-c", TRAIN_ALL, str(folder)],
            input=json.dumps([*TIES, *WORDS]),
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            text=True,
            check=True,
        )
        folders.append(folder)
    return folders


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZERS)
def test_two_processes_train_the_same_files(name: str, by_processes: list[Path]) -> None:
    first, second = (
        {path.name: path.read_bytes() for path in (folder / name).iterdir()}
        for folder in by_processes
    )
    assert first == second and "tokenizer.json" in first
    whole = train_tokenizer(name, [*TIES, *WORDS], 400, 32)
    assert load_tokenizer(by_processes[0] / name).get_vocab() == whole.get_vocab()


OPEN_ALONE = """
import json, sys
for name in ("bertender", "distill"):
    sys.modules[name] = None
from transformers import AutoTokenizer
told = {}
for folder in sys.argv[1:]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer("apple", "and saw")
    told[folder.rpartition("/")[2]] = {
        "pieces": tokenizer.convert_ids_to_tokens(tokens["input_ids"]),
        "special": tokenizer.get_special_tokens_mask(
            tokens["input_ids"], already_has_special_tokens=True
        ),
        "segments": tokens.get("token_type_ids"),
        "mask": tokenizer.mask_token_id,
        "longest": tokenizer.model_max_length,
    }
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def opened_alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process without bertender makes of a pair with each of the saved tokenizers."""
    folder = tmp_path_factory.mktemp("saved")
    for name, tokenizer in ALIKE.items():
        tokenizer.save_pretrained(folder / name)
    words = [sys.executable, "-c", OPEN_ALONE, *(str(folder / name) for name in ALIKE)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZERS)
def test_it_opens_without_bertender_and_frames_pairs(
    name: str, opened_alone: dict[str, Any]
) -> None:
    told = opened_alone[name]
    framing = [
        token
        for token, is_special in zip(told["pieces"], told["special"], strict=True)
        if is_special
    ]
    assert framing == PAIRS[name]
    assert told["mask"] == ALIKE[name].mask_token_id and told["longest"] == 32
    if name in WITHOUT_SEGMENTS:
        assert told["segments"] is None
    else:
        second = told["pieces"].index("[SEP]") + 1
        count = len(told["pieces"]) - second
        assert told["segments"] == [0] * second + [1] * count


@pytest.mark.parametrize("name", TOKENIZERS)
def test_its_blocks_hold_every_token(name: str) -> None:
    tokenizer = ALIKE[name]
    blocks = packed(WORDS, tokenizer, 16).columns["input_ids"]
    assert {block[0] for block in blocks} == {tokenizer.cls_token_id}
    there = [token for block in blocks for token in block[1:]]
    tokenised = tokenizer(WORDS, add_special_tokens=False)["input_ids"]
    assert there == [token for ids in tokenised for token in (*ids, tokenizer.sep_token_id)]


def test_too_small_a_vocabulary_is_refused() -> None:
    assert PretrainConfig.parse({"tokenizer": "bpe", "vocabulary_size": 261}).vocabulary_size == 261
    with pytest.raises(ConfigError, match="vocabulary_size=260 is too small for tokenizer 'bpe'"):
        PretrainConfig.parse({"tokenizer": "bpe", "vocabulary_size": 260})
    assert len(train_tokenizer("bpe", ["a b"], 261, 32)) == 261


def test_an_unknown_tokenizer_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"no tokenizer 'wordpeice'. Did you mean 'wordp"):
        TOKENIZERS["wordpeice"]


def test_rare_words_are_forgotten_where_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Common words are counted through, however many rare ones stream by."""
    assert MOST_COUNTED > 1_000_000
    monkeypatch.setattr("distill.pretraining.vocabularies.MOST_COUNTED", 60)
    monkeypatch.setattr("distill.pretraining.vocabularies.PASSAGES_AT_ONCE", 5)
    rare = (f"apple wrench {chr(97 + row % 26) * (3 + row // 26)}" for row in range(400))
    tokenizer = train_tokenizer("unigram", list(rare), 100, 32)
    assert tokenizer.tokenize("apple wrench") == ["▁apple", "▁wrench"]


def test_merges_of_letters_by_hand() -> None:
    """The words of Sennrich et al. 2016, figure 1: "e s" occurs 6 + 3 times, then "es t", "l o"."""
    corpus = ["low"] * 5 + ["lower"] * 2 + ["newest"] * 6 + ["widest"] * 3
    tokenizer = train_tokenizer("char-bpe", corpus, 100, 32)
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    assert merges[:3] == [["e", "s"], ["es", "t</w>"], ["l", "o"]]
    assert tokenizer.tokenize("Lowest, den")[-4:] == ["[UNK]", "d", "e", "n</w>"]
    assert tokenizer.decode(tokenizer("low newest")["input_ids"][1:-1]) == "low newest"


def test_words_with_vowel_signs_stay_whole() -> None:
    texts = ["हिन्दी भाषा में लिखा", "यह सरल वाक्य है", "cafe\u0301 bleu"] * 20
    tokenizer = train_tokenizer("sentencepiece", texts, 600, 32)
    for text in texts[:3]:
        assert tokenizer.tokenize(text) == [f"\u2581{word}" for word in text.split()]


@pytest.mark.parametrize("name", ["wordpiece", "char-bpe", "unigram", "sentencepiece"])
def test_many_letters_without_an_entry_are_said(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A Chinese corpus has thousands of letters."""
    texts = [chr(0x4E00 + number) for number in range(1200)]
    train_tokenizer(name, texts, 6000, 32)
    assert not caplog.records
    train_tokenizer(name, texts, 2000, 32)
    assert "% of the letters of the corpus are none of the" in caplog.text
    assert "the corpus has 120" in caplog.text


@pytest.mark.parametrize("name", ["wordpiece", "char-bpe", "unigram", "sentencepiece"])
def test_rare_letters_take_no_entries_from_words(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabularies, "USUAL_LETTERS", 5)
    monkeypatch.setattr(vocabularies, "COVERAGE", 0.9)
    rare = {chr(0x3B1 + number) for number in range(20)}
    known = train_tokenizer(name, ["apple pear"] * 100 + sorted(rare), 600, 32).get_vocab()
    assert {*"apler"} <= {*"".join(known)} and not rare & {*"".join(known)}


def test_letters_without_an_entry_are_bytes() -> None:
    tokens = ALIKE["sentencepiece"].tokenize("apple  \u00e9")
    assert tokens == ["\u2581apple", "\u2581", "\u2581", "<0xC3>", "<0xA9>"]
