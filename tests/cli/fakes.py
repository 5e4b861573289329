"""An endpoint that needs no server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import pytest

from bertender.cli import asking
from bertender.core.errors import ServingError
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.text.batch import Example
from serve.client.endpoint import Classification, ServedModel

__all__ = ["TOO_LONG", "FakeEndpoint", "endpoint"]


TOO_LONG = "huge"
"""A text that the endpoint refuses, as the real one does a text over its limit."""


class FakeEndpoint:
    """Predicts the first word as the label; what it was asked stays in `asked`."""

    model = ServedModel(
        max_batch_size=2,
        text_columns=1,
        problem=SINGLE_LABEL,
        digest="toy",
        identity={"digest": "toy"},
    )
    asked: ClassVar[list[Example]] = []
    urls: ClassVar[list[str]] = []
    settings: ClassVar[list[dict[str, Any]]] = []
    fails_after: ClassVar[int | None] = None
    """So many requests go well, and then the process is as good as killed."""
    is_replaced: ClassVar[bool] = False
    """Another model is deployed meanwhile."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.urls.append(url)
        self.settings.append(settings)
        self.concurrency = settings["concurrency"]
        self.batch_size = settings["batch_size"] or self.model.max_batch_size
        self.requests = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None: ...

    async def is_same_model(self) -> bool:
        return not self.is_replaced

    async def classify(self, examples: Sequence[Example]) -> list[Classification]:
        if self.requests == self.fails_after:
            raise KeyboardInterrupt
        self.requests += 1
        self.model.requests(examples, self.batch_size)  # raises for what no model can read
        for row, example in enumerate(examples):
            if TOO_LONG in example:
                name = "TEXT_PAIR" if example.index(TOO_LONG) else "TEXT"
                reason = f"{name} row {row} has 9 bytes, allowed 8. Split the text."
                raise ServingError(f"the server at http://x refused: {reason}")
        self.asked.extend(examples)
        return [
            Classification(label=e[0].split()[0], score=0.5, logits=(0.0, 1.0)) for e in examples
        ]


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> type[FakeEndpoint]:
    """A fake endpoint in place of the one that `bertender classify` asks."""
    for name in ("asked", "urls", "settings"):
        monkeypatch.setattr(FakeEndpoint, name, [])
    monkeypatch.setattr(asking, "AsyncEndpoint", FakeEndpoint)
    return FakeEndpoint
