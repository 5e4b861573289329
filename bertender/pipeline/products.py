"""Products of steps that are not made yet: what a step will write, what a later one wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bertender.core.card import Kind
from bertender.core.config import Config
from bertender.core.errors import BertenderError, ConfigError

if TYPE_CHECKING:  # they load PyTorch
    from transformers import PreTrainedModel

    from bertender.models.expected import ExpectedModel

__all__ = [
    "CLASSIFIER",
    "GRAPH_TO_QUANTIZE",
    "ONNX_CLASSIFIER",
    "PRETRAINED",
    "TORCH_CLASSIFIER",
    "TORCH_MODEL",
    "Earlier",
    "Product",
    "Source",
    "Want",
]


class Source(NamedTuple):
    """An earlier step that a step starts from, and where its artifact lies."""

    name: str
    path: Path


@dataclass(frozen=True)
class Product:
    """An artifact as far as the settings of its step define it."""

    stage: str
    kind: Kind
    classifies: bool = True
    predicts_words: bool = False
    """It has a masked-language head."""
    precision: str = "float32"
    fused: bool = False
    settings: Config | None = None
    """Those of its step, where a later step must agree with some."""
    model: ExpectedModel | None = None
    """Its architecture, and its shape where that follows from the settings; None where unknown,
    as of a hub name that is not cached."""

    def __str__(self) -> str:
        model = "classifier" if self.classifies else "encoder without a classification head"
        fused = ", its operators fused" if self.fused else ""
        return f"a {self.precision} {self.kind} {model} of stage {self.stage!r}{fused}"


@dataclass(frozen=True)
class Want:
    """A requirement on the artifact that a step starts from."""

    name: str
    suits: Callable[[Product], bool]
    next_step: str
    class_checks: tuple[Callable[[PreTrainedModel], None], ...] = ()
    """Checks of a model's architecture, which the step itself makes too."""
    shape_checks: tuple[Callable[[PreTrainedModel], None], ...] = ()
    """Checks of its layers and widths besides, likewise."""

    def check(self, source: str, product: Product) -> None:
        """Raise ConfigError where an earlier step will not make what is required.

        Raises:
            ModelError: what a check raises of the model that it will make.
        """
        if not self.suits(product):
            raise ConfigError(
                f"it starts from {source!r}, which will be {product}, and needs {self.name}. "
                f"{self.next_step}"
            )
        if product.model is not None:
            self._check_model(source, product.model)

    def _check_model(self, source: str, expected: ExpectedModel) -> None:
        shape_checks = self.shape_checks if expected.shape_known else ()
        try:
            for check in (*self.class_checks, *shape_checks):
                check(expected.model)
        except BertenderError as error:
            error.args = (f"it starts from {source!r}: {error}",)
            raise


CLASSIFIER = Want(
    "a classifier", lambda made: made.classifies, "Fine-tune the encoder first: stage finetune."
)
TORCH_MODEL = Want(
    "a torch model", lambda made: made.kind == "torch", "Give the step that it was made from."
)
TORCH_CLASSIFIER = Want(
    "a torch classifier",
    lambda made: made.kind == "torch" and made.classifies,
    "Give a step of stage finetune, distill or prune.",
)
PRETRAINED = Want(
    "an encoder of stage 'pretrain'",
    lambda made: made.stage == "pretrain",
    "Give a step of stage pretrain.",
)
ONNX_CLASSIFIER = Want(
    "an onnx classifier", lambda made: made.kind == "onnx", "Export it first: stage export."
)
GRAPH_TO_QUANTIZE = Want(
    "a float32 onnx classifier of operators that are not fused",
    lambda made: made.kind == "onnx" and made.precision == "float32" and not made.fused,
    "Give a step of stage export without precision and without optimize=fused.",
)


@dataclass(frozen=True)
class Earlier:
    """Models that a step of a recipe may start from, before any is made."""

    sources: Sequence[ExpectedModel | None] = ()
    """Those of the earlier steps that it starts from."""
    by_path: Mapping[Path, ExpectedModel | None] = field(default_factory=dict)
    """Those of all earlier steps, by where they will lie."""

    def model_at(self, name: str | Path) -> ExpectedModel | None:
        """Return the model that a setting names, as it will be when the step runs."""
        path = Path(name).resolve()
        if path in self.by_path:  # another one may lie there from a run before
            return self.by_path[path]
        from bertender.models.expected import expected_on_disk  # which loads PyTorch

        return expected_on_disk(name)
