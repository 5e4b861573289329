"""Training of a vocabulary on a corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

from tokenizers import BertWordPieceTokenizer, Tokenizer
from tokenizers.models import WordLevel
from transformers import BertTokenizerFast, PreTrainedTokenizerBase, PreTrainedTokenizerFast

# --- from distill.vocabularies.wordpiece
# WordPiece, uncased, as BERT's (Devlin et al. 2018, arXiv 1810.04805, section 3).
#
# Departure: tokens are merged by how often a pair occurs, as the `tokenizers` library does it;
# the
# original trainer, which weighs pairs by likelihood, was never published.

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MOST_LETTERS = 1000
"""Letters that get an entry of their own; words with a rarer one become [UNK]."""
PASSAGES_AT_ONCE = 1000
"""To count the words of: a word that is in many of them is taken apart only once."""


def train_wordpiece(
    passages: Iterable[str], vocabulary_size: int, max_length: int
) -> BertTokenizerFast:
    """Train an uncased WordPiece vocabulary on a corpus; the same passages give the same one.

    The trainer numbers letters as it meets words in a hash table, whose order changes from run to
    run, and breaks ties by these numbers. Letters that are named beforehand keep their places.
    The passages are read twice.
    """
    trainer = BertWordPieceTokenizer(lowercase=True)
    first, following = _letters(trainer, passages, most=min(MOST_LETTERS, vocabulary_size // 4))
    trainer.train_from_iterator(
        passages,
        vocab_size=vocabulary_size,
        special_tokens=[*SPECIAL_TOKENS, *(f"##{letter}" for letter in following)],
        initial_alphabet=first,
        limit_alphabet=len(first),
        show_progress=False,
    )
    # built again from the vocabulary, which makes it add [CLS] and [SEP]
    tokenizer = BertWordPieceTokenizer(vocab=trainer.get_vocab(), lowercase=True)
    return BertTokenizerFast(tokenizer_object=tokenizer._tokenizer, model_max_length=max_length)


def _letters(
    tokenizer: BertWordPieceTokenizer, passages: Iterable[str], most: int
) -> tuple[list[str], list[str]]:
    """Return the commonest letters of a corpus, and those of them that continue a word."""
    counts: Counter[str] = Counter()
    continuing: set[str] = set()
    for words in _words(tokenizer, iter(passages)):
        for word, count in words.items():
            counts.update(dict.fromkeys(word, count))
            continuing.update(word[1:])
    letters = sorted(sorted(counts, key=lambda letter: (-counts[letter], letter))[:most])
    return letters, [letter for letter in letters if letter in continuing]


def _words(tokenizer: BertWordPieceTokenizer, passages: Iterator[str]) -> Iterator[Counter[str]]:
    """Yield how often words occur, some passages at a time."""
    while batch := list(islice(passages, PASSAGES_AT_ONCE)):
        words: Counter[str] = Counter()
        for run, count in Counter(" ".join(batch).split()).items():
            text = tokenizer.normalizer.normalize_str(run)
            for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text):
                words[word] += count
        yield words


# --- from distill.vocabularies.stand_in
# A tokenizer in the place of one that is not trained yet, for shapes that do not depend on it.

PADDING = "[PAD]"


def stand_in_tokenizer() -> PreTrainedTokenizerBase:
    """Return a tokenizer that has padding and no more."""
    model = WordLevel({PADDING: 0}, unk_token=PADDING)
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), pad_token=PADDING)
