"""Tokens of a unigram language model, uncased, as ALBERT's (Kudo 2018, arXiv 1804.10959, 3.2).

A text is split into its likeliest sequence of tokens; white space is the mark ▁ at the start of a
word, so that the tokens joined are the text again. BERT's tokens frame a text: [CLS] A [SEP] B
[SEP], with segments. The probabilities are estimated in `unigram_model`.
Departures from SentencePiece, which the paper describes: the corpus is counted as words, of which
the commonest 100,000 are learned from, and accents are stripped with a text's case. So neither
memory nor time grow with the corpus beyond the words to count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AlbertTokenizerFast

from distill.vocabularies.unigram_model import estimate_tokens

__all__ = ["train_unigram"]

SPECIAL_TOKENS = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
PAD, UNKNOWN, START, END, _ = SPECIAL_TOKENS
SPACE = "\u2581"
LONGEST_RUN = 24
RUNS = re.compile(
    rf"{SPACE}?(?:[^\W\d_]{{1,{LONGEST_RUN}}}|\d{{1,{LONGEST_RUN}}}|[^\w{SPACE}]|_)|{SPACE}"
)
"""Bounds of a token: letters, or digits, or one other character; with the mark of a space
before it. SentencePiece divides by script, likewise."""
PASSAGES_AT_ONCE = 1000
MOST_LETTERS = 1000
MOST_WORDS = 100_000
MOST_COUNTED = 2_000_000
"""Distinct words that are held in memory; the rarest are forgotten when there are more."""


def train_unigram(
    passages: Iterable[str], vocabulary_size: int, max_length: int
) -> AlbertTokenizerFast:
    """Train a unigram vocabulary on a corpus; the same passages give the same one."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )
    words = _learned(_word_counts(tokenizer, iter(passages)), vocabulary_size)
    tokens = estimate_tokens(words, vocabulary_size - len(SPECIAL_TOKENS))
    special = [(token, 0.0) for token in SPECIAL_TOKENS]
    tokenizer.model = models.Unigram([*special, *tokens], SPECIAL_TOKENS.index(UNKNOWN))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE)]
    )
    tokenizer.decoder = decoders.Metaspace(SPACE)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {END}",
        pair=f"{START} $A {END} $B:1 {END}:1",
        special_tokens=[(token, SPECIAL_TOKENS.index(token)) for token in (START, END)],
    )
    return AlbertTokenizerFast(tokenizer_object=tokenizer, model_max_length=max_length)


def _word_counts(tokenizer: Tokenizer, passages: Iterator[str]) -> Counter[str]:
    """Count the words of a corpus, each cut into its runs of one kind of character."""
    counts: Counter[str] = Counter()
    while batch := list(islice(passages, PASSAGES_AT_ONCE)):
        text = tokenizer.normalizer.normalize_str("\n".join(batch))
        for word, count in Counter(text.split()).items():
            for run in RUNS.findall(SPACE + word):
                counts[run] += count
        if len(counts) > MOST_COUNTED:
            counts = Counter(dict(_commonest(counts, MOST_COUNTED // 2)))
    return counts


def _commonest(counts: Counter[str], most: int) -> list[tuple[str, int]]:
    """Return the entries with the highest counts, ties in the order of the alphabet."""
    return sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:most]


def _learned(counts: Counter[str], vocabulary_size: int) -> dict[str, int]:
    """Return the commonest words, cut where they hold a rare letter: it will be unknown."""
    letters: Counter[str] = Counter()
    for word, count in counts.items():
        letters.update(dict.fromkeys(word, count))
    known = {letter for letter, _ in _commonest(letters, min(MOST_LETTERS, vocabulary_size // 4))}
    words: Counter[str] = Counter()
    for word, count in counts.items():
        for part in "".join(letter if letter in known else " " for letter in word).split():
            words[part] += count
    return dict(_commonest(words, MOST_WORDS))
