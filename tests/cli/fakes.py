"""An endpoint that needs no server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from bertender.problems import SINGLE_LABEL
from bertender.text.example import Example
from serve.client import Classification


class FakeEndpoint:
    """Answers with the first word as the label; what it was asked stays in `asked`."""

    text_columns = 1
    problem = SINGLE_LABEL
    asked: ClassVar[list[Example]] = []
    urls: ClassVar[list[str]] = []

    def __init__(self, url: str) -> None:
        self.urls.append(url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...

    def classify(self, examples: Sequence[Example]) -> list[Classification]:
        self.asked.extend(examples)
        return [
            Classification(label=e[0].split()[0], score=0.5, logits=(0.0, 1.0)) for e in examples
        ]
