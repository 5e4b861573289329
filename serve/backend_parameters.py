"""Settings of the Python backend, in config.pbtxt. The stub reads them without gRPC or protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field

from bertender.core.config import Config, parts_of
from bertender.problems import PROBLEMS, SINGLE_LABEL
from serve.config import ServeConfig
from serve.served_runtimes import DEFAULT_RUNTIME, ServedRuntimeName

__all__ = ["BackendParameters"]


class BackendParameters(Config):
    """Settings in config.pbtxt for the Python backend, besides those for Triton."""

    artifact: str = Field("artifact", description="folder, relative to the model version's")
    tokens_per_bucket: int
    digest: str | None = Field(
        None, description="of the artifact: by it, a client knows whether it is still the same"
    )
    stamp: str | None = Field(
        None,
        description="of the artifact's files when their digests were checked; while they have it, "
        "they are not read again",
    )
    runtime: ServedRuntimeName = DEFAULT_RUNTIME
    encoder: str | None = Field(
        None, description="the Triton model that runs the graph, where the runtime is Triton's"
    )
    encoder_inputs: Annotated[tuple[str, ...], BeforeValidator(parts_of)] = Field(
        (), description="names of its inputs, by commas"
    )
    threads: int = Field(description="of a run of the model; 0: see `ServeConfig`")
    concurrent_buckets: int = ServeConfig().concurrent_buckets
    max_length: int | None = None
    longest_input: int | None = Field(
        None,
        description="most tokens of an input that the artifact's tokenizer states; a client says "
        "by it, and by max_length, what texts were cut to",
    )
    max_text_bytes: int = ServeConfig().max_text_bytes
    max_queue_texts: int = ServeConfig().queue_texts
    queue_timeout_ms: float = ServeConfig().queue_timeout_ms
    problem_type: Annotated[str, PROBLEMS.validator()] = Field(
        SINGLE_LABEL.name, description="a row of PROBLEMS; the client reads responses by it"
    )

    def as_strings(self) -> dict[str, str]:
        """Return what is in config.pbtxt: the settings that have a value."""
        values = self.model_dump(exclude_none=True).items()
        texts = {name: ",".join(v) if isinstance(v, tuple) else str(v) for name, v in values}
        return {name: text for name, text in texts.items() if text}

    @classmethod
    def from_model_config(cls, config: Mapping[str, Any]) -> Self:
        """Read them back from the model configuration that Triton hands to its backends."""
        parameters = config["parameters"].items()
        return cls.parse({name: value["string_value"] for name, value in parameters})
