"""Models as the door knows them, by the configurations of a repository."""

from __future__ import annotations

from typing import Any

from serve.config import BackendParameters
from serve.door.engine import Model


def model_of(config: Any, version: str) -> Model:
    """Return a model by its configuration in a repository of `bertender serve`."""
    values = as_mapping(config)
    limits = BackendParameters.from_model_config(values)
    return Model(
        name=config.name,
        version=version,
        inputs=tuple(each.name for each in config.input),
        outputs={
            each.name: (datatype(values["output"][place]["data_type"]), tuple(each.dims))
            for place, each in enumerate(config.output)
        },
        max_batch_size=config.max_batch_size,
        max_text_bytes=limits.max_text_bytes,
        longest_input=limits.max_length or limits.longest_input,
        config=values,
    )


def datatype(name: str) -> str:
    """Return the protocol's name of a type of Triton's configuration."""
    return name.removeprefix("TYPE_").replace("STRING", "BYTES")


def as_mapping(message: Any) -> dict[str, Any]:
    """Return a message of protobuf as Triton writes it as JSON: with fields that have no value,
    and numbers of 64 bits as numbers."""
    values: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.has_presence and not message.HasField(field.name):
            continue
        if hasattr(value, "items"):
            values[field.name] = {key: _plain(field, each) for key, each in value.items()}
        elif hasattr(value, "append"):
            values[field.name] = [_plain(field, each) for each in value]
        else:
            values[field.name] = _plain(field, value)
    return values


def _plain(field: Any, value: Any) -> Any:
    if hasattr(value, "DESCRIPTOR"):
        return as_mapping(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return value
