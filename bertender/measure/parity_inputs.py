"""Check that both models read the same tokens: tokenizers are compared before any logit.

Truncation at another length, another case or a lost accent, swapped pairs and lost token types
change few texts of a task, or none of them: SST-2 is in lower case already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bertender.models.predictor import Classifier
from bertender.text.batch import Tokenize
from bertender.text.example import Example

__all__ = ["input_problems", "inputs_comparable"]

ACCENTED = "\u00c9t\u00e9"
"""Two accents, of a capital and of a small letter."""


def input_problems(
    reference: Classifier, candidate: Classifier, examples: Sequence[Example]
) -> list[str]:
    """Return what is wrong with the candidate's tokens; nothing where tokens are not comparable.

    They are where both read tokens of one vocabulary. Texts are compared one by one, unpadded,
    and once more in capitals.
    """
    if not (examples and inputs_comparable(reference, candidate)):
        return []
    wrong = list(_differing(reference, candidate, [*examples, _capitals(examples[0])]))
    if not wrong:
        return []
    example, name = wrong[0]
    text = reference.problem.separator.join(example)
    return [
        f"inputs: {name} of {len(wrong)} of {len(examples) + 1} texts are not the reference's, "
        f"allowed 0: another tokenizer, truncation or order of texts; first: "
        f"{(text if len(text) <= 80 else text[:77] + '...')!r}"
    ]


def inputs_comparable(reference: Classifier, candidate: Classifier) -> bool:
    """Return whether both read tokens of one vocabulary."""
    first, second = reference.encode, candidate.encode
    if not (isinstance(first, Tokenize) and isinstance(second, Tokenize)):
        return False
    return bool(first.tokenizer.get_vocab() == second.tokenizer.get_vocab())


def _differing(
    reference: Classifier, candidate: Classifier, examples: Sequence[Example]
) -> Iterator[tuple[Example, str]]:
    """Yield each example that is read otherwise, with the name of the first input that differs."""
    for example in examples:
        expected, actual = (each.encode([example]).arrays for each in (reference, candidate))
        for name, array in expected.items():
            # models without token types read texts that have them none the less
            other = actual.get(name, np.zeros_like(array))
            if not np.array_equal(array, other):
                yield example, name
                break


def _capitals(example: Example) -> Example:
    return tuple(f"{text.upper()} {ACCENTED}" for text in example)
