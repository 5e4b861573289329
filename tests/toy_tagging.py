"""A toy task of tagging: fruit, tools and numbers in sentences."""

from __future__ import annotations

import torch

from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from bertender.tasks.task import Split, Task
from tests.toys import FRUIT, TOOLS

LABELS = TOKEN_CLASSIFICATION.label_names([("B-fruit", "B-tool", "B-count")])


def toy_sentences(count: int, seed: int) -> Split:
    """Runs of fruit and tools are entities of several words, numbers are one of several pieces."""
    generator = torch.Generator().manual_seed(seed)

    def draw(choices: int) -> int:
        return int(torch.randint(0, choices, (), generator=generator))

    def run(kind: str, words: tuple[str, ...]) -> list[tuple[str, str]]:
        chosen = [words[draw(6)] for _ in range(1 + draw(3))]
        return [(word, f"{'I' if place else 'B'}-{kind}") for place, word in enumerate(chosen)]

    def sentence() -> list[tuple[str, str]]:
        runs = [run("fruit", FRUIT), [("number", "O"), (str(10**6 + draw(10**6)), "B-count")]]
        return [*runs[draw(2)], ("number", "O"), *run("tool", TOOLS), *runs[draw(2)]]

    drawn = [tuple(zip(*sentence(), strict=True)) for _ in range(count)]
    numbers = {label: number for number, label in enumerate(LABELS)}
    return Split(
        tuple(words for words, _ in drawn),
        tuple(tuple(numbers[tag] for tag in tags) for _, tags in drawn),
    )


TASK = Task(
    "toy",
    LABELS,
    "entity_f1",
    ("words",),
    toy_sentences(160, 1),
    toy_sentences(24, 2),
    problem_type=TOKEN_CLASSIFICATION.name,
)
