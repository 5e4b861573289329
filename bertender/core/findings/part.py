"""The base of every part of an artifact's findings."""

from __future__ import annotations

from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from bertender.core.config import Record

__all__ = ["Part"]


class Part(Record):
    """A part of the findings. What is None is left out where it is written."""

    @model_serializer(mode="wrap")
    def _without_none(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = serialize(self)
        return {name: value for name, value in values.items() if value is not None}
