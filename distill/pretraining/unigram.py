"""Tokens of a unigram language model, uncased, as ALBERT's (Kudo 2018, arXiv 1804.10959, 3.2)."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AlbertTokenizerFast

# --- from distill.vocabularies.unigram_model
# The estimation of a unigram language model's tokens (Kudo 2018, arXiv 1804.10959, 3.2).
#
# P(word) is the sum over its segmentations x of the product of p(x_i), eq. (1). Seeds are the
# letters
# and the substrings with the highest count times length. Then, until few enough are left:
# estimate p
# by EM over all segmentations of the words (with SentencePiece's sparse prior, the exponential of
# digamma for the counts), and drop the quarter of the tokens that is missed least.
# Departure: the loss of a token is its expected count times log p(token) - log P(token without
# itself), from all its other segmentations; the paper divides the corpus anew, SentencePiece
# takes
# the second-best segmentation alone.
#
# The trainer of the `tokenizers` library estimates the same, but visits the words in an order
# that
# changes from run to run, and with it the last digits of the sums, and the order of the tokens.

LONGEST_TOKEN = 16
SEEDS_AN_ENTRY = 10
REMAINING_SHARE = 0.75
EM_STEPS = 2
FEWEST_EXPECTED = 0.5
"""No token is thought rarer than this, so that every word keeps a segmentation."""
DECIMALS = 6
"""Of the log probabilities: the digits that every machine agrees on."""

TINY = 1e-300
"""Stands for the probability of what no other tokens make."""

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]


class Lattice:
    """Every segmentation of some words into tokens, in flat arrays.

    A word of n letters has nodes 0 to n, between its letters; an edge is a token between two. All
    arrays of edges are sorted by the place of their end within the word, so that each place is
    one step for all words together.
    """

    def __init__(self, words: Sequence[str], tokens: Mapping[str, int], whole: bool = True) -> None:
        """Lay out the edges.

        Args:
            words: what to segment; every single letter of them is a token.
            tokens: their numbers.
            whole: whether a word that is a token may be its own segmentation.
        """
        self.sizes = np.array([len(word) + 1 for word in words])
        self.last = np.cumsum(self.sizes) - 1
        flat = array("i")
        for word, last in zip(words, self.last.tolist(), strict=True):
            first = last - len(word)
            for start in range(len(word)):
                for end in range(start + 1, min(start + LONGEST_TOKEN, len(word)) + 1):
                    token = tokens.get(word[start:end])
                    if token is not None and (whole or end - start < len(word)):
                        flat.extend((end, first + start, first + end, token))
        edges = np.array(flat, dtype=np.int32).reshape(-1, 4)
        self.edges = edges[np.argsort(edges[:, 0], kind="stable")].T.copy()

    def keep(self, tokens: Numbers) -> None:
        """Drop the edges of all other tokens."""
        self.edges = self.edges[:, np.isin(self.edges[3], tokens)]

    def probabilities(self, p: Floats) -> Floats:
        """Return P of each word, from p (tokens): the sum over all of its segmentations."""
        return np.asarray(self._forward(p)[self.last])

    def expected_counts(self, p: Floats, counts: Floats) -> Floats:
        """Return how often each token occurs, expected over the segmentations of all words."""
        _, start, end, token = self.edges
        forward, backward = self._forward(p), self._backward(p)
        scale = np.repeat(counts / forward[self.last], self.sizes)
        weights = forward[start] * p[token] * backward[end] * scale[start]
        return np.asarray(np.bincount(token, weights, len(p)), dtype=np.float64)

    def _forward(self, p: Floats) -> Floats:
        """Return for each node the probability of what stands before it in the word."""
        result = np.zeros(self.last[-1] + 1)
        result[self.last - self.sizes + 1] = 1
        for step in self._steps():
            _, start, end, token = self.edges[:, step]
            result += np.bincount(end, result[start] * p[token], len(result))
        return result

    def _backward(self, p: Floats) -> Floats:
        """Return for each node the probability of what stands after it in the word."""
        result = np.zeros(self.last[-1] + 1)
        result[self.last] = 1
        for step in reversed(self._steps()):
            _, start, end, token = self.edges[:, step]
            result += np.bincount(start, result[end] * p[token], len(result))
        return result

    def _steps(self) -> list[slice]:
        """Return the edges that end at place 1 of their words, at place 2, and so on."""
        places = np.arange(1, self.sizes.max() + 1)
        bounds = np.searchsorted(self.edges[0], places).tolist()
        return [slice(*bound) for bound in pairwise(bounds)]


def estimate_tokens(words: Mapping[str, int], size: int) -> list[tuple[str, float]]:
    """Return the tokens that explain words best, likeliest first, with their log probabilities.

    Args:
        words: how often each occurs.
        size: the most tokens; every letter of the words is one, so more than there are letters.
    """
    occurrences = _substrings(words)
    letters = sorted(token for token in occurrences if len(token) == 1)
    tokens = [*letters, *_seeds(occurrences, most=SEEDS_AN_ENTRY * size)]
    numbers = {token: number for number, token in enumerate(tokens)}
    lattice, alone = Lattice(list(words), numbers), Lattice(tokens, numbers, whole=False)
    counts = np.array(list(words.values()), dtype=float)
    expected = np.array([occurrences[token] for token in tokens], dtype=float)
    left = np.arange(len(tokens))
    while True:
        p, expected = _fitted(lattice, counts, expected, left)
        if len(left) <= size:
            return _ranked([tokens[number] for number in left], np.log(p[left]))
        loss = expected[left] * np.log(p[left] / np.maximum(alone.probabilities(p)[left], TINY))
        loss[: len(letters)] = np.inf  # nothing can stand in for a letter
        left = _most_missed(left, loss, max(size, int(REMAINING_SHARE * len(left))))
        lattice.keep(left)
        alone.keep(left)


def _fitted(
    lattice: Lattice, counts: Floats, expected: Floats, left: Numbers
) -> tuple[Floats, Floats]:
    """Return p of each token and its expected count, after some steps of EM."""
    for _ in range(EM_STEPS):
        p = _probabilities(expected, left)
        expected = lattice.expected_counts(p, counts)
    return p, expected


def _most_missed(left: Numbers, loss: Floats, most: int) -> Numbers:
    """Return the numbers, in order, of so many tokens at most: those of the highest loss."""
    return np.sort(left[np.argsort(-loss, kind="stable")[:most]])


def _probabilities(expected: Floats, left: Numbers) -> Floats:
    """Return p of each token from its expected count; 0 for those that were removed."""
    counts = np.maximum(expected[left], FEWEST_EXPECTED)
    p = np.zeros(len(expected))
    p[left] = np.exp(digamma(counts) - digamma(counts.sum()))
    return p


def _ranked(tokens: Sequence[str], scores: Floats) -> list[tuple[str, float]]:
    """Return tokens with their rounded scores, best first, ties in the order of the alphabet."""
    rounded = np.round(scores, DECIMALS).tolist()
    return sorted(zip(tokens, rounded, strict=True), key=lambda entry: (-entry[1], entry[0]))


def _substrings(words: Mapping[str, int]) -> Counter[str]:
    """Count every substring of the words that may be a token."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for start in range(len(word)):
            for end in range(start + 1, min(start + LONGEST_TOKEN, len(word)) + 1):
                counts[word[start:end]] += count
    return counts


def _seeds(occurrences: Mapping[str, int], most: int) -> list[str]:
    """Return the longer substrings of the highest count times length.

    Those that occur only within one longer substring are left out, and those that occur once.
    """
    within: set[str] = set()
    for token, count in occurrences.items():
        within.update(part for part in (token[1:], token[:-1]) if occurrences.get(part) == count)
    free = (token for token in occurrences.keys() - within if len(token) > 1)
    repeated = (token for token in free if occurrences[token] > 1)
    return sorted(repeated, key=lambda token: (-occurrences[token] * len(token), token))[:most]


# --- from distill.vocabularies.unigram
# Tokens of a unigram language model, uncased, as ALBERT's (Kudo 2018, arXiv 1804.10959, 3.2).
#
# A text is split into its likeliest sequence of tokens; white space is the mark ▁ at the start of
# a
# word, so that the tokens joined are the text again. BERT's tokens frame a text: [CLS] A [SEP] B
# [SEP], with segments. The probabilities are estimated in `unigram_model`.
# Departures from SentencePiece, which the paper describes: the corpus is counted as words, of
# which
# the commonest 100,000 are learned from, and accents are stripped with a text's case. So neither
# memory nor time grow with the corpus beyond the words to count.

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
