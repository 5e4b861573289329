"""Settings of a student, shared by every kind of distillation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    NonNegativeFloat,
    model_validator,
)

from bertender.core.config import Rule, parts_of
from bertender.core.errors import BertenderError, ConfigError, UnknownNameError, nearest_hint
from bertender.training.config import TrainingConfig
from distill.losses.terms import LAYER_MAPS
from distill.methods import AUTO, METHODS, automatic_settings
from distill.methods.method import Method
from distill.students.student import START_LAYERS, StudentShape


def _numbers_by_name(value: Any) -> Any:
    """Read "soft=0.7,hard=0.3" as a mapping."""
    if not isinstance(value, str):
        return value
    pairs = [pair.partition("=") for pair in value.split(",")]
    return {name.strip(): number for name, _, number in pairs}


def _numbers_or_word(value: Any) -> Any:
    """Read "1,3,5" as numbers, a row of START_LAYERS as it is, and nothing as None."""
    parts = parts_of("" if value is None else value)
    if not isinstance(parts, list | tuple):
        parts = (parts,)
    if len(parts) == 1 and parts[0] in START_LAYERS:
        return parts[0]
    if not all(str(part).isdigit() for part in parts):
        raise ConfigError(
            f"teacher_layers={value!r}: give numbers from 0, as 1,3,5, or one of "
            f"{', '.join(START_LAYERS)}.{nearest_hint(str(value), START_LAYERS)}"
        )
    return tuple(int(part) for part in parts) or None


_TeacherLayers = Annotated[tuple[int, ...] | str | None, BeforeValidator(_numbers_or_word)]


def methods_own(rows: Mapping[str, Method]) -> dict[str, str]:
    """Return the help text instead of defaults that some of these methods change."""
    names = {name for row in rows.values() for name in row.settings}
    return dict.fromkeys(sorted(names), "the method's own")


def _lacking(config: StudentConfig) -> list[str]:
    """Return the settings of a shape that the method's student does not have."""
    explicit = [
        name for name in sorted(config.row.student.lacks) if getattr(config, name) is not None
    ]
    return [name for name in explicit if name != "layers" or config.layers != 1]


def _with_linear_head() -> list[str]:
    return [name for name, row in METHODS.items() if row.student.linear_head]


def _relation_heads(config: StudentConfig) -> int:
    """Return the heads that relations are cut into, explicit or the method's own; 1 of none."""
    own = (getattr(term, "relation_heads", None) for term in config.row.terms if term.weight)
    return config.relation_heads or max(filter(None, own), default=1)


def _of_earlier_phases(setting: str) -> Rule[StudentConfig]:
    """Return the rule of a setting of the phases before the last."""
    last = setting.removeprefix("earlier_")
    return Rule(
        lambda config: not config.changed_method().has_phases,
        f"method {{method!r}} has one phase only, for {last}. Leave it out.",
        frozenset({setting}),
        beyond_default=True,
    )


def _is_uneven_start(config: StudentConfig) -> bool:
    """Return whether as many layers are named to start from as the student does not have."""
    count = config.numbered_layers
    return bool(
        config.row.student.layer_by_layer and count and config.layers and count != config.layers
    )


def _unchangeable(config: StudentConfig) -> str:
    """Return why no term of the method can be changed so, and what can be; empty if they can."""
    try:
        config.changed_method()
    except BertenderError as error:
        return str(error)
    return ""


RULES: Mapping[str, Rule[StudentConfig]] = {
    "changes of no term": Rule(lambda config: bool(_unchangeable(config)), _unchangeable),
    "epochs of no phase": _of_earlier_phases("earlier_epochs"),
    "learning rate of no phase": _of_earlier_phases("earlier_learning_rate"),
    "layers to start from": Rule(
        _is_uneven_start,
        "teacher_layers={teacher_layers}: give {layers}, one for each of the student's layers, or "
        "leave it out for the method's choice.",
    ),
    "a choice of layers to average": Rule(
        lambda config: (
            isinstance(config.teacher_layers, str)
            and not config.row.student.layer_by_layer
            and "teacher_layers" not in config.row.student.lacks
        ),
        "teacher_layers={teacher_layers}: the student of method {method!r} starts from the mean of "
        "layers. Give their numbers, as 1,3,5, or leave it out for all of them.",
    ),
    "a shape that the student lacks": Rule(
        lambda config: bool(_lacking(config)),
        lambda config: (
            f"{config.as_set(_lacking(config))}: the student of method {config.method!r} has no "
            "such part to choose. Leave it out, or choose another method."
        ),
    ),
    "no feed-forward part": Rule(
        lambda config: config.feed_forward_size == 0 and not config.row.student.linear_head,
        lambda config: (
            f"feed_forward_size=0: the student of method {config.method!r} needs its feed-forward "
            f"part; students of {', '.join(_with_linear_head())} do without. Give 1 or more, "
            "or leave it out."
        ),
    ),
    "heads that do not divide": Rule(
        lambda config: bool(
            config.row.student.heads_divide_width
            and config.hidden_size
            and config.heads
            and config.hidden_size % config.heads
        ),
        "hidden_size={hidden_size} is not a multiple of heads={heads}. Choose heads to divide it.",
    ),
    "relation heads that do not divide": Rule(
        lambda config: bool(config.hidden_size and config.hidden_size % _relation_heads(config)),
        lambda config: (
            f"relation_heads={_relation_heads(config)} must divide the widths of both models, and "
            f"hidden_size={config.hidden_size} is not a multiple of it. Choose other "
            "relation_heads, or another hidden_size."
        ),
    ),
}
"""Conflicts of settings."""


class PhasedConfig(TrainingConfig):
    """Settings of training in phases: the fields of TrainingConfig are those of the last."""

    panel: ClassVar[str] = "Training"

    earlier_epochs: int | None = Field(
        None, ge=1, description="epochs of each phase before the last, in methods that have some"
    )
    earlier_learning_rate: float | None = Field(
        None, gt=0, description="learning rate of the phases before the last"
    )


class StudentConfig(PhasedConfig):
    """Settings of a student; those that are not set have the method's own default."""

    panel: ClassVar[str] = "Student"
    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Losses": ("teacher_layers", "temperature", "weights", "layer_map", "relation_heads"),
    }
    rules: ClassVar[Mapping[str, Rule[Any]]] = RULES

    rows: ClassVar[Mapping[str, Method]] = METHODS
    """The methods that there are for this kind of distillation."""
    shown_defaults: ClassVar[Mapping[str, str]] = methods_own(METHODS)

    method: str = Field(
        AUTO, description="a name from `bertender methods`; auto chooses by what there is"
    )
    layers: int | None = Field(
        None,
        ge=1,
        description="the student's layers; by default all of another start's, of the teacher's "
        "half or as many as the method sets",
    )
    hidden_size: int | None = Field(
        None, ge=8, description="its width; by default that of the model that it starts from"
    )
    heads: int | None = Field(None, ge=1, description="its heads; the teacher's by default")
    feed_forward_size: int | None = Field(
        None,
        ge=0,
        description="width of its feed-forward part; by default 4 x its input; 0 where the "
        "head may be linear",
    )
    teacher_layers: _TeacherLayers = Field(
        None,
        description=f"its first weights: teacher layers as 1,3,5, or {', '.join(START_LAYERS)}; "
        "the method's choice by default",
    )
    temperature: float | None = Field(
        None,
        gt=0,
        description="softness of the teacher's distribution; the method's own by default",
    )
    weights: Annotated[dict[str, NonNegativeFloat], BeforeValidator(_numbers_by_name)] = Field(
        default_factory=dict, description="change loss weights, as soft=0.7,hard=0.3,cosine=0"
    )
    layer_map: Annotated[str | None, LAYER_MAPS.validator()] = Field(
        None, description=f"which layers are matched: {', '.join(LAYER_MAPS)}"
    )
    relation_heads: int | None = Field(
        None, ge=1, description="heads that relations are cut into; the method's own by default"
    )

    @model_validator(mode="wrap")
    @classmethod
    def _filled(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Fill in what `auto` chooses and the method's defaults; neither is an explicit setting."""
        usual = cls.model_fields["method"].default
        explicit = dict(values)
        if usual == AUTO == explicit.get("method", usual):
            explicit.pop("method", None)  # what it stands for may change with other settings
            chosen = automatic_settings(explicit)
        else:
            chosen = {"method": explicit.get("method", usual)}
        method = cls._row(chosen["method"]) if isinstance(chosen["method"], str) else None
        config = handler({**(method.settings if method else {}), **chosen, **explicit})
        config.model_fields_set.intersection_update(explicit)
        return config

    @classmethod
    def _row(cls, name: str) -> Method:
        if name not in cls.rows:
            raise UnknownNameError("distillation method", name, cls.rows, setting="method")
        return cls.rows[name]

    @property
    def row(self) -> Method:
        """The method as its table has it."""
        return self.rows[self.method]

    @property
    def numbered_layers(self) -> int:
        """How many layers to start from are given by number."""
        return len(self.teacher_layers) if isinstance(self.teacher_layers, tuple) else 0

    def changed_method(self) -> Method:
        """Return the method with the config's weights and settings of terms.

        Raises:
            UnknownNameError, ConfigError: there is nothing of that name to change.
        """
        return self.rows[self.method].changed(
            self.weights,
            temperature=self.temperature,
            layers=LAYER_MAPS[self.layer_map] if self.layer_map else None,
            relation_heads=self.relation_heads,
        )

    def shape(
        self, method: Method, depth: int, texts: int = 1, *, own_start: bool = False
    ) -> StudentShape:
        """Return the shape of the student that is asked for.

        Args:
            method: it has the defaults.
            depth: how many layers the start has.
            texts: of an example.
            own_start: whether the start is an encoder of the student's own, not the teacher.
        """
        chosen = self.numbered_layers if method.student.layer_by_layer else 0
        return StudentShape(
            layers=self.layers or chosen or method.student.depth(depth, own_start=own_start),
            hidden_size=self.hidden_size,
            heads=self.heads,
            feed_forward_size=self.feed_forward_size,
            teacher_layers=self.teacher_layers,
            texts=texts,
        )
