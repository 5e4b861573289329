"""Training vocabularies on a corpus: WordPiece, BPE of bytes or letters, unigram models.

All kinds stream the passages, keep only distinct words in memory, and are deterministic. Tokens of
a unigram language model (Kudo 2018, arXiv 1804.10959, 3.2) are estimated by EM, with all words
segmented at once in flat arrays.
"""

from __future__ import annotations

import json
import logging
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma
from tokenizers import (
    BertWordPieceTokenizer,
    ByteLevelBPETokenizer,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (  # type: ignore[attr-defined]  # of other names in transformers 5
    AlbertTokenizerFast,
    BertTokenizerFast,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    RobertaTokenizerFast,
)

from bertender.core.build_once import directory_once
from bertender.text.batch import batched
from bertender.text.tokenizer import load_tokenizer, save_tokenizer
from distill.pretraining.config import TOKENIZERS
from distill.pretraining.corpus import PASSAGES_AT_ONCE

logger = logging.getLogger(__name__)

LETTERS_SHARE = 4
"""One entry in so many may be a letter; words with rarer letters become unknown."""
USUAL_LETTERS = 1000
"""Letters with an entry however rare, as in the vocabulary of BERT."""
COVERAGE = 0.9995
"""Share of the letters of a corpus at which further ones have no entry, as SentencePiece's
`character_coverage`: those of Chinese matter, and foreign ones in an English corpus do not."""
UNKNOWN_SHARE = 0.005
"""Share of the letters of a corpus without an entry above which a warning is logged."""
OF_WORDPIECE = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
OF_BPE = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
OF_UNIGRAM = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
"""Special tokens of each kind."""
END_OF_WORD = "</w>"
SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
WITH_SEGMENTS = ["input_ids", "token_type_ids", "attention_mask"]
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
"""Tokens of bytes, for letters without an entry."""

SPACE = "\u2581"
MARKS = "\u200c\u200d" + "".join(
    letter for letter in map(chr, range(0x300, 0x1F000)) if unicodedata.category(letter)[0] == "M"
)
"""Characters within words that `\\w` leaves out: vowel signs of Indic scripts, accents, joiners."""
LONGEST_RUN = 24
RUNS = re.compile(
    rf"{SPACE}?(?:(?:[^\W\d_][{MARKS}]*){{1,{LONGEST_RUN}}}|\d{{1,{LONGEST_RUN}}}|[^\w{SPACE}]|_)|{SPACE}"
)
"""Runs within which tokens lie: letters, or digits, or one other character, each with the mark of a
space before it. SentencePiece also divides by script."""
MOST_WORDS = 100_000
MOST_COUNTED = 2_000_000
"""Most distinct words in memory; the rarest are dropped when there are more."""


def train_tokenizer(
    name: str, passages: Iterable[str], vocabulary_size: int, max_length: int
) -> PreTrainedTokenizerFast:
    """Train a vocabulary on a corpus, deterministically.

    Args:
        name: a name in TOKENIZERS.
        passages: the corpus.
        vocabulary_size: most entries.
        max_length: most tokens of an input.

    Raises:
        UnknownNameError: there is no kind of this name.
    """
    kinds: dict[str, Callable[[Iterable[str], int, int], PreTrainedTokenizerFast]] = {
        "wordpiece": train_wordpiece,
        "bpe": train_byte_level_bpe,
        "char-bpe": train_char_bpe,
        "unigram": train_unigram,
        "sentencepiece": train_sentencepiece,
    }
    assert kinds.keys() == TOKENIZERS.keys()
    return kinds[name](passages, vocabulary_size, max_length)


def trained_once(
    name: str, passages: Iterable[str], vocabulary_size: int, max_length: int, directory: Path
) -> PreTrainedTokenizerBase:
    """Train a tokenizer, or load the tokenizer of the interrupted run.

    Args:
        name: a name in TOKENIZERS.
        passages: the corpus.
        vocabulary_size: most entries.
        max_length: most tokens of an input.
        directory: directory in the work directory of the run.
    """

    def train_and_save(draft: Path) -> None:
        save_tokenizer(train_tokenizer(name, passages, vocabulary_size, max_length), draft)

    identity = (name, vocabulary_size, max_length)  # the directory's name identifies the corpus
    return load_tokenizer(directory_once(directory, identity, train_and_save))


def stand_in_tokenizer() -> PreTrainedTokenizerBase:
    """Return a tokenizer with only a padding token, for shapes that do not depend on the
    vocabulary."""
    padding = OF_WORDPIECE[0]
    model = models.WordLevel({padding: 0}, unk_token=padding)
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), pad_token=padding)


def train_wordpiece(
    passages: Iterable[str], vocabulary_size: int, max_length: int
) -> PreTrainedTokenizerFast:
    """Train an uncased WordPiece vocabulary, as BERT's (Devlin et al. 2018, arXiv 1810.04805, 3).

    The trainer numbers letters in the order of a hash table, which changes from run to run, and
    breaks ties by these numbers. To be deterministic, letters are counted first and given to the
    trainer, so that passages are read twice. Departure: pairs are merged by frequency, like in the
    `tokenizers` library; the original trainer, which merges by likelihood, was never published.
    """
    trainer = BertWordPieceTokenizer(lowercase=True)
    first, following = _letters(trainer, passages, vocabulary_size // LETTERS_SHARE)
    trainer.train_from_iterator(
        passages,
        vocab_size=vocabulary_size,
        special_tokens=[*OF_WORDPIECE, *(f"##{letter}" for letter in following)],
        initial_alphabet=first,
        limit_alphabet=len(first),
        show_progress=False,
    )
    # rebuilt from the vocabulary, so that it adds [CLS] and [SEP]
    tokenizer = BertWordPieceTokenizer(vocab=trainer.get_vocab(), lowercase=True)
    made: PreTrainedTokenizerFast = BertTokenizerFast(
        tokenizer_object=tokenizer._tokenizer, model_max_length=max_length
    )
    return made


def _letters(
    tokenizer: BertWordPieceTokenizer | Tokenizer, passages: Iterable[str], most: int
) -> tuple[list[str], list[str]]:
    """Return the most frequent letters of a corpus, and the letters among them that continue words.

    Args:
        tokenizer: tokenizer whose normalizer and pre-tokenizer make the words.
        passages: the corpus.
        most: most letters.
    """
    counts: Counter[str] = Counter()
    continuing: set[str] = set()
    for batch in batched(passages, PASSAGES_AT_ONCE):
        words: Counter[str] = Counter()
        # each distinct word is split once
        for run, count in Counter(" ".join(batch).split()).items():
            text = tokenizer.normalizer.normalize_str(run)
            for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text):
                words[word] += count
        for word, count in words.items():
            counts.update(dict.fromkeys(word, count))
            continuing.update(word[1:])
    letters = sorted(_known_letters(counts, most))
    return letters, [letter for letter in letters if letter in continuing]


def train_byte_level_bpe(
    passages: Iterable[str], vocabulary_size: int, max_length: int
) -> RobertaTokenizerFast:
    """Train byte-level byte-pair encoding, cased, as RoBERTa's (Liu et al. 2019, 1907.11692, 4.4).

    Merges follow Sennrich et al. 2016, arXiv 1508.07909, over UTF-8 bytes (Radford et al. 2019):
    every text has tokens, and decodes to itself. Texts have RoBERTa's special tokens, without
    segments: <s> A </s>, and <s> A </s></s> B </s> for pairs. The trainer sorts the bytes before it
    merges, and takes the lower pair of numbers at ties, so that the order of words does not matter.
    """
    trainer = ByteLevelBPETokenizer()
    trainer.train_from_iterator(
        passages, vocab_size=vocabulary_size, special_tokens=list(OF_BPE), show_progress=False
    )
    start, end = ((token, trainer.token_to_id(token)) for token in ("<s>", "</s>"))
    trainer.post_processor = processors.RobertaProcessing(end, start, add_prefix_space=False)
    return RobertaTokenizerFast(tokenizer_object=trainer._tokenizer, model_max_length=max_length)


def train_char_bpe(
    passages: Iterable[str], vocabulary_size: int, max_length: int
) -> PreTrainedTokenizerFast:
    """Train byte-pair encoding of letters with end-of-word marks (Sennrich et al. 2016, arXiv
    1508.07909, 3.2).

    A word starts as its letters, the last with the mark </w>, and the most frequent pair is merged.
    Texts are lower-cased, without accents, and split at punctuation, like those of GPT-1 (Radford
    et al. 2018) and XLM's English models (Lample and Conneau 2019, 1901.07291). Texts have BERT's
    special tokens: [CLS] A [SEP] B [SEP], with segments.
    As in `train_wordpiece`, letters are counted first, with and without the mark, since the trainer
    numbers unknown letters in an order that changes from run to run.
    """
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL["unk_token"]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(END_OF_WORD)
    letters, _ = _letters(tokenizer, passages, vocabulary_size // LETTERS_SHARE)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[*OF_WORDPIECE, *(f"{letter}{END_OF_WORD}" for letter in letters)],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        end_of_word_suffix=END_OF_WORD,
        show_progress=False,
    )
    tokenizer.train_from_iterator(passages, trainer)
    trained = json.loads(tokenizer.to_str())["model"]
    # rebuilt, so that letters with a mark are not special tokens
    tokenizer.model = models.BPE(
        trained["vocab"],
        [tuple(pair) for pair in trained["merges"]],
        unk_token=SPECIAL["unk_token"],
        end_of_word_suffix=END_OF_WORD,
    )
    made = Tokenizer(tokenizer.model)
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        setattr(made, part, getattr(tokenizer, part))
    return _with_bert_frame(made, OF_WORDPIECE, SPECIAL, max_length)


def _bert_frame(tokens: Sequence[str]) -> processors.TemplateProcessing:
    """Return the post-processor that adds [CLS] and [SEP], for a vocabulary that begins with
    `tokens`."""
    return processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, tokens.index(token)) for token in ("[CLS]", "[SEP]")],
    )


def _with_bert_frame(
    tokenizer: Tokenizer, tokens: Sequence[str], special: Mapping[str, str], max_length: int
) -> PreTrainedTokenizerFast:
    """Return a transformers tokenizer with BERT's special tokens: [CLS] A [SEP] B [SEP].

    Args:
        tokenizer: tokenizer whose vocabulary begins with `tokens`.
        tokens: special tokens.
        special: special tokens by their names in transformers.
        max_length: most tokens of an input.
    """
    tokenizer.add_special_tokens(list(tokens))
    tokenizer.post_processor = _bert_frame(tokens)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        model_input_names=WITH_SEGMENTS,
        clean_up_tokenization_spaces=False,
        **special,
    )


def train_unigram(
    passages: Iterable[str], vocabulary_size: int, max_length: int
) -> PreTrainedTokenizerFast:
    """Train an uncased unigram language model, as ALBERT's (Kudo 2018, arXiv 1804.10959, 3.2).

    A text is split into its likeliest sequence of tokens. White space becomes the mark ▁ at the
    start of a word, so that joined tokens give the text again. Texts have BERT's special tokens:
    [CLS] A [SEP] B [SEP], with segments. `estimate_tokens` estimates the probabilities. Departures
    from the paper's SentencePiece: training uses the counts of the 100,000 most frequent words, so
    that memory and time hardly grow with the corpus, and accents are stripped, like case.
    """
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )
    counts = _run_counts(
        passages, lambda batch: tokenizer.normalizer.normalize_str("\n".join(batch)).split()
    )
    tokens = estimate_tokens(
        _known_words(counts, vocabulary_size // LETTERS_SHARE), vocabulary_size - len(OF_UNIGRAM)
    )
    special = [(token, 0.0) for token in OF_UNIGRAM]
    tokenizer.model = models.Unigram([*special, *tokens], OF_UNIGRAM.index("<unk>"))
    tokenizer.add_special_tokens(list(OF_UNIGRAM))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE)]
    )
    tokenizer.decoder = decoders.Metaspace(SPACE)
    tokenizer.post_processor = _bert_frame(OF_UNIGRAM)
    made: PreTrainedTokenizerFast = AlbertTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=max_length, model_input_names=WITH_SEGMENTS
    )
    return made


def train_sentencepiece(
    passages: Iterable[str], vocabulary_size: int, max_length: int
) -> PreTrainedTokenizerFast:
    """Train a unigram model of unchanged text (Kudo and Richardson 2018, arXiv 1808.06226, 3.2).

    Lossless: case, accents and white space are kept, and a text decodes to itself. A space becomes
    the mark ▁, with one more before the text; a letter without an entry becomes its UTF-8 bytes
    (<0xE6>). Special tokens and estimation are those of `train_unigram`.
    Departures from SentencePiece: no NFKC normalisation; repeated spaces are kept; byte tokens are
    less likely than the six letters that spell them, so that a text with "<0xE6>" also decodes to
    itself. As there, a ▁ in the text becomes a space.
    """
    room = vocabulary_size - len(OF_UNIGRAM) - len(BYTES)
    counts = _run_counts(passages, lambda batch: [w for text in batch for w in text.split(" ")])
    words = _known_words(counts, room // LETTERS_SHARE)
    for letter in sorted({*"".join(BYTES)}):
        words.setdefault(letter, 1)
    tokens = estimate_tokens(words, room)
    spelt = max(map(len, BYTES)) * min(score for _, score in tokens) - 1
    scores = [(token, 0.0) for token in OF_UNIGRAM] + [(byte, spelt) for byte in BYTES] + tokens
    tokenizer = Tokenizer(models.Unigram(scores, OF_UNIGRAM.index("<unk>"), True))
    tokenizer.normalizer = normalizers.Prepend(SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="never")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(SPACE)])
    special = {**SPECIAL, "pad_token": "<pad>", "unk_token": "<unk>"}
    return _with_bert_frame(tokenizer, OF_UNIGRAM, special, max_length)


def _run_counts(
    passages: Iterable[str], split: Callable[[list[str]], Iterable[str]]
) -> Counter[str]:
    """Count the words of a corpus, each cut into its runs of one kind of character.

    Args:
        passages: the corpus.
        split: passages -> their words.
    """
    counts: Counter[str] = Counter()
    for batch in batched(passages, PASSAGES_AT_ONCE):
        for word, count in Counter(split(batch)).items():
            for run in RUNS.findall(SPACE + word):
                counts[run] += count
        if len(counts) > MOST_COUNTED:
            counts = Counter(dict(_commonest(counts, MOST_COUNTED // 2)))
    return counts


def _known_words(counts: Counter[str], most: int) -> dict[str, int]:
    """Return the most frequent words, cut at rare letters, which will be unknown.

    Args:
        counts: counts of words.
        most: most known letters.
    """
    letters: Counter[str] = Counter()
    for word, count in counts.items():
        letters.update(dict.fromkeys(word, count))
    known = _known_letters(letters, most)
    words: Counter[str] = Counter()
    for word, count in counts.items():
        cut = "".join(letter if letter in known else " " for letter in word)
        for part in filter(None, cut.split(" ")):
            words[part] += count
    return dict(_commonest(words, MOST_WORDS))


def _known_letters(counts: Counter[str], most: int) -> set[str]:
    """Return the most frequent letters; a warning is logged if the others are many."""
    known: set[str] = set()
    covered, total = 0, counts.total()
    for letter, count in _commonest(counts, most):
        if len(known) >= USUAL_LETTERS and covered >= COVERAGE * total:
            break
        known.add(letter)
        covered += count
    if (share := 1 - covered / max(total, 1)) > UNKNOWN_SHARE:
        logger.warning(
            "%.1f %% of the letters of the corpus are none of the %d commonest: words with them "
            "are read as unknown, or byte by byte. Give a larger vocabulary_size: one entry in %d "
            "may be a letter, and the corpus has %d",
            *(100 * share, most, LETTERS_SHARE, len(counts)),
        )
    return known


def _commonest(counts: Counter[str], most: int) -> list[tuple[str, int]]:
    """Return the entries with the highest counts, ties in alphabetical order."""
    return sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:most]


LONGEST_TOKEN = 16
SEEDS_AN_ENTRY = 10
REMAINING_SHARE = 0.75
EM_STEPS = 2
FEWEST_EXPECTED = 0.5
"""Smallest expected count of a token, so that every word keeps a segmentation."""
DECIMALS = 6
"""Digits of the log probabilities that are equal on all machines."""
TINY = 1e-300
"""Probability of the other segmentations of a token that has none."""

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]


def estimate_tokens(words: Mapping[str, int], size: int) -> list[tuple[str, float]]:
    """Return the likeliest tokens of a unigram model of words, with their log probabilities.

    Kudo 2018, arXiv 1804.10959, 3.2: P(word) is the sum over its segmentations x of the product of
    p(x_i), eq. (1). Seeds are the letters and the substrings with the highest count times length.
    Then, until few enough are left: estimate p by EM over all segmentations of the words (with
    SentencePiece's sparse prior, the exponential of digamma for the counts), and drop the quarter
    of the tokens with the least loss. Departure: the loss of a token is its expected count times
    log p(token) - log P(token without itself), over all its other segmentations; the paper segments
    the corpus again, SentencePiece takes only the second-best segmentation. The trainer of the
    `tokenizers` library estimates the same, but its order of words changes from run to run, which
    changes the last digits of the sums and the order of tokens.

    Args:
        words: counts of words.
        size: most tokens, more than the letters of the words, which are all tokens.
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
        for _ in range(EM_STEPS):
            p = _probabilities(expected, left)
            expected = lattice.expected_counts(p, counts)
        if len(left) <= size:
            break
        loss = expected[left] * np.log(p[left] / np.maximum(alone.probabilities(p)[left], TINY))
        loss[: len(letters)] = np.inf  # letters cannot be replaced
        most = max(size, int(REMAINING_SHARE * len(left)))
        left = np.sort(left[np.argsort(-loss, kind="stable")[:most]])
        lattice.keep(left)
        alone.keep(left)
    scores = np.round(np.log(p[left]), DECIMALS).tolist()
    ranked = zip((tokens[number] for number in left), scores, strict=True)
    return sorted(ranked, key=lambda entry: (-entry[1], entry[0]))


class Lattice:
    """All segmentations of some words into tokens, in flat arrays.

    A word of n letters has nodes 0 to n, between its letters; an edge is a token between two nodes.
    Edges are sorted by the position of their end in the word, so that one step handles a position
    in all words.
    """

    def __init__(self, words: Sequence[str], tokens: Mapping[str, int], whole: bool = True) -> None:
        """Build the edges.

        Args:
            words: words to segment; each of their letters is a token.
            tokens: token -> number.
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
        """Return the expected count of each token over the segmentations of all words."""
        _, start, end, token = self.edges
        forward, backward = self._forward(p), self._backward(p)
        scale = np.repeat(counts / forward[self.last], self.sizes)
        weights = forward[start] * p[token] * backward[end] * scale[start]
        return np.asarray(np.bincount(token, weights, len(p)), dtype=np.float64)

    def _forward(self, p: Floats) -> Floats:
        """Return for each node the probability of the word before it."""
        result = np.zeros(self.last[-1] + 1)
        result[self.last - self.sizes + 1] = 1
        for step in self._steps():
            _, start, end, token = self.edges[:, step]
            result += np.bincount(end, result[start] * p[token], len(result))
        return result

    def _backward(self, p: Floats) -> Floats:
        """Return for each node the probability of the word after it."""
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


def _probabilities(expected: Floats, left: Numbers) -> Floats:
    """Return p of each token from its expected count; 0 for those that were removed."""
    counts = np.maximum(expected[left], FEWEST_EXPECTED)
    p = np.zeros(len(expected))
    p[left] = np.exp(digamma(counts) - digamma(counts.sum()))
    return p


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

    Substrings that occur once, or only within one longer substring, are left out.
    """
    within: set[str] = set()
    for token, count in occurrences.items():
        within.update(part for part in (token[1:], token[:-1]) if occurrences.get(part) == count)
    free = (token for token in occurrences.keys() - within if len(token) > 1)
    repeated = (token for token in free if occurrences[token] > 1)
    return sorted(repeated, key=lambda token: (-occurrences[token] * len(token), token))[:most]
