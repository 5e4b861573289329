"""SCHEMES: every way to quantize a model, and those to try in turn or next."""

from __future__ import annotations

import operator
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertender.core.artifact import Artifact
from bertender.core.card import Kind, read_card
from bertender.core.config import Config, Rule, Table, on_demand
from bertender.core.errors import ConfigError
from bertender.models.runtimes import RUNTIMES
from bertender.tasks.task import Task
from bertender.training.config import TrainingConfig
from quantize.config import SchemeConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from quantize.context import QuantizationContext, Written

# --- from quantize.schemes
# SCHEMES: every way to quantize a model, by name; what writes a graph is imported when it does.

AUTO_SCHEME = "auto"
"""Instead of a row's name: the first row of CANDIDATES that passes."""

CALIBRATION = frozenset({"calibrator", "percentile", "calibration_texts"})
SENSITIVITY = frozenset({"sensitivity", "sensitivity_texts"})
TRAINING = frozenset(TrainingConfig.model_fields) | {
    "allow_constant",
    "calibration_texts",
    "soft_labels",
}
LOW_BITS = frozenset(
    {"weight_bits", "sensitive_bits", "sensitive_share", "weight_groups", "table_bits"}
)
ATTENTION = frozenset({"fused_attention"})
Settings = Mapping[str, Any]

FOUR_BIT_TABLES: Settings = {"scheme": "four-bit-embeddings", "max_drop": 0.5}
DYNAMIC: Settings = {"scheme": "dynamic"}
STATIC: Settings = {"scheme": "static", "calibrator": "mse"}
MIXED: Settings = {"scheme": "mixed", "base": "static", "max_drop": 0.5}


@dataclass(frozen=True)
class Scheme:
    """A row of SCHEMES."""

    summary: str
    write: Callable[[QuantizationContext, Path], Written]
    """(context, graph to write)"""
    reads: frozenset[str] = frozenset()
    """Settings that change something, besides those that all schemes read."""
    precision: Callable[[Any], str] = lambda config: "int8"
    """config -> the row of the parity gate's tolerances"""
    tables_of_4_bits: Callable[[Any], bool] = lambda config: False
    """config -> whether large tables have 4 bits"""
    source: Kind = "onnx"
    """Kind of artifact that it starts from."""
    check: Callable[[PreTrainedModel], None] = lambda model: None
    """Raises where it cannot quantize a torch model, or its graph, for its architecture. A step
    that starts from a graph finds that in the graph; the plan of a recipe has the model alone."""
    then: tuple[Settings, ...] = (DYNAMIC, STATIC, MIXED)
    """Schemes to try where it was refused: the first that was not tried just now."""

    def is_static(self, config: Any) -> bool:
        """Return whether the graph has the scales of activations, found on texts before."""
        return "calibration_texts" in self.reads and (
            "base" not in self.reads or config.base == "static"
        )


SCHEMES = Table(
    "quantization scheme",
    {
        "dynamic": Scheme(
            summary="int8 weights per channel; "
            "activation scales found while running, no data needed",
            write=on_demand("quantize.post_training:write_dynamic"),
            reads=ATTENTION,
            then=(STATIC,),
        ),
        "static": Scheme(
            summary="int8 weights per channel; activation scales found before, on training texts",
            write=on_demand("quantize.post_training:write_static"),
            reads=CALIBRATION,
            then=(STATIC, MIXED),
        ),
        "mixed": Scheme(
            summary="int8, and the parts that suffer most in float until the score holds",
            write=on_demand("quantize.mixed:write_mixed"),
            reads=CALIBRATION | SENSITIVITY | {"base"},
            then=(MIXED, {"scheme": "qat"}),
        ),
        "four-bit-embeddings": Scheme(
            summary="as dynamic, and embedding tables of 4 bits in groups: smaller, and as fast",
            write=on_demand("quantize.four_bit:write_four_bit_embeddings"),
            reads=frozenset({"block_size"}) | ATTENTION,
            tables_of_4_bits=lambda config: True,
            precision=lambda config: "int4",
            then=(DYNAMIC, STATIC),
        ),
        "four-bit": Scheme(
            summary="4-bit weights in groups where the score holds, int8 elsewhere: for size",
            write=on_demand("quantize.four_bit:write_four_bit"),
            reads=SENSITIVITY | {"block_size"},
            precision=lambda config: "int4",
            check=on_demand("quantize.four_bit:check_layers"),
            then=({"scheme": "four-bit", "max_drop": 0.5}, DYNAMIC),
        ),
        "qat": Scheme(
            summary="trained with 8-bit errors (Q8BERT), from a torch artifact; scales are learned",
            write=on_demand("quantize.qat:write_trained"),
            reads=TRAINING,
            source="torch",
            check=on_demand("quantize.qat:check_trainable"),
            then=({"scheme": "qat", "epochs": 3}, {"scheme": "qat", "epochs": 10}),
        ),
        "q-bert": Scheme(
            summary="trained with weights of 2, 3 or 4 bits, the most sensitive of more (Q-BERT), "
            "from a torch artifact: for size, and as fast as static",
            write=on_demand("quantize.q_bert:write_q_bert"),
            reads=TRAINING | SENSITIVITY | LOW_BITS | {"block_size"},
            tables_of_4_bits=lambda config: config.has_tables_of_4_bits,
            precision=lambda config: f"int{config.weight_bits}",
            source="torch",
            check=on_demand("quantize.q_bert:check_layers"),
            then=(
                {"scheme": "q-bert", "table_bits": 8},
                {"scheme": "q-bert", "weight_bits": 3},
                {"scheme": "q-bert", "weight_bits": 4},
                {"scheme": "qat"},
            ),
        ),
    },
)

SHARED = frozenset(
    {
        *("scheme", "target", "runtime", "no_embeddings", "max_drop", "parity_texts"),
        *("golden_texts", "seed"),
    }
)
"""Settings that every scheme reads."""


def _readers(setting: str) -> list[str]:
    return [name for name, scheme in SCHEMES.items() if setting in scheme.reads]


SCHEMES_OF_MORE_BITS = frozenset(_readers("sensitive_bits"))
"""Those that give some products more bits."""
QUICKEST_CURVATURE = "hessian-trace"
"""The row of SENSITIVITIES by which they do, unless another is given."""
RETURNING = frozenset(
    name
    for name, scheme in SCHEMES.items()
    if scheme.reads >= SENSITIVITY and not scheme.reads & LOW_BITS
)
"""Schemes that return parts to what they were, by their sensitivity."""


def _has_tables_of_4_bits(config: Any) -> bool:
    return config.scheme in SCHEMES and SCHEMES[config.scheme].tables_of_4_bits(config)


def _static_instead(scheme: str) -> str:
    """Return the settings of a scheme, or of another one, whose scales are found before."""
    return "--base static" if scheme in _readers("base") else "--scheme static"


def _unread(setting: str) -> Rule[Any]:
    """Return the rule that a setting is for the schemes that read it, added ones included."""
    return Rule(
        # of the schemes that are tried in turn, those that do not read it are skipped
        lambda config: config.scheme not in (AUTO_SCHEME, *_readers(setting)),
        lambda config: (
            f"scheme {config.scheme!r} does not read it; {' or '.join(_readers(setting))} does. "
            f"Leave it out, or give --scheme {_readers(setting)[0]}."
        ),
        frozenset({setting}),
    )


RULES: Mapping[str, Rule[Any]] = {
    "mixed without a bound": Rule(
        lambda config: config.scheme in _readers("base") and config.max_drop is None,
        "scheme {scheme!r} returns parts to float until the score holds: set how much of it may be "
        "lost, in points, as --max-drop 0.5. Without a bound, use --scheme dynamic or static.",
    ),
    "tables of 4 bits in float": Rule(
        lambda config: _has_tables_of_4_bits(config) and config.no_embeddings,
        "it leaves in float the tables that would have 4 bits. Leave it out, or give "
        "--scheme dynamic, or --scheme q-bert --table-bits 8.",
        frozenset({"no_embeddings"}),
    ),
    "blocks of tables of 8 bits": Rule(
        lambda config: (
            config.scheme in _readers("table_bits") and not _has_tables_of_4_bits(config)
        ),
        "it changes nothing here: tables of 8 bits have a scale each. Give --table-bits 4 too, or "
        "leave it out.",
        frozenset({"block_size"}),
    ),
    "a runtime without integers": Rule(
        lambda config: not RUNTIMES[config.runtime].integer_products,
        "it multiplies no 8-bit integers, and would turn them back into floats. For a GPU, export "
        "in 16 bits instead, as bertender export --precision float16, or leave it out.",
        frozenset({"runtime"}),
    ),
    "tables of 4 bits in another runtime": Rule(
        lambda config: _has_tables_of_4_bits(config) and not RUNTIMES[config.runtime].own_operators,
        "it has no look-up in tables of 4 bits. Leave it out, or give --scheme static, or "
        "--scheme q-bert --table-bits 8.",
        frozenset({"runtime"}),
    ),
    "fused attention in another runtime": Rule(
        lambda config: config.fused_attention and not RUNTIMES[config.runtime].own_operators,
        "it has no attention of 8 bits as one operator. Leave it out, or leave --fused-attention "
        "out.",
        frozenset({"runtime"}),
    ),
    "dynamic scales in another runtime": Rule(
        lambda config: (
            config.scheme in SCHEMES
            and not SCHEMES[config.scheme].is_static(config)
            and not RUNTIMES[config.runtime].dynamic_scales
        ),
        lambda config: (
            f"scheme {config.scheme!r} finds the scales of activations while it runs, and "
            f"{RUNTIMES[config.runtime].title} computes such MatMuls in float, slower than those "
            f"of the float model. Give {_static_instead(config.scheme)}, or leave --runtime out."
        ),
        frozenset({"runtime"}),
    ),
    "percentile of another calibrator": Rule(
        lambda config: (
            config.scheme in _readers("percentile") and config.calibrator != "percentile"
        ),
        "it changes nothing here: it needs --calibrator percentile. Give that too, or leave it "
        "out.",
        frozenset({"percentile"}),
    ),
    "calibration of a dynamic base": Rule(
        lambda config: config.scheme in _readers("base") and config.base != "static",
        "it changes nothing here: it needs --base static, whose activations are calibrated. Give "
        "that too, or leave it out.",
        CALIBRATION,
    ),
    "sensitivity without a bound": Rule(
        lambda config: config.scheme in RETURNING and config.max_drop is None,
        "it changes nothing here: it needs --max-drop, for which parts go back. Give that too, or "
        "leave it out.",
        SENSITIVITY,
    ),
    "fewer bits for the sensitive": Rule(
        lambda config: (
            config.scheme in _readers("sensitive_bits")
            and config.sensitive_bits is not None
            and config.sensitive_bits <= config.weight_bits
        ),
        "{sensitive_bits} bits for the most sensitive weights are no more than "
        "weight_bits={weight_bits}. Give more, or leave it out.",
        frozenset({"sensitive_bits"}),
    ),
    "sensitivity of equal bits": Rule(
        lambda config: (
            config.scheme in _readers("sensitive_bits") and config.sensitive_bits is None
        ),
        "it changes nothing here: all products have --weight-bits. Give --sensitive-bits too, or "
        "leave it out.",
        SENSITIVITY | {"sensitive_share"},
    ),
    "bits without a Hessian": Rule(
        lambda config: (
            config.scheme in _readers("sensitive_bits")
            and config.sensitive_bits is not None
            and config.sensitivity == "leave-one-out"
        ),
        "bits are allotted by the curvature of the loss. Leave --sensitivity out, or give "
        "hessian-eigenvalue, as the paper does.",
        frozenset({"sensitive_bits"}),
        against="sensitivity",
    ),
    **{
        f"{setting} of another scheme": _unread(setting)
        for setting in sorted(frozenset[str]().union(*(r.reads for r in SCHEMES.values())) - SHARED)
    },
}
"""Conflicts of the settings of `quantize`."""

# --- from quantize.candidates
# Schemes to try: in turn where none is named, and next where one was refused.

CANDIDATES: tuple[Settings, ...] = (FOUR_BIT_TABLES, DYNAMIC, STATIC, MIXED)
"""Schemes tried where none is named, until one passes; explicit settings go before these. The first
is the smallest, and as fast as the second: it passes only where the texts to choose by hardly
change their score."""

SAME: Callable[[Any, Any], bool] = operator.eq
COVERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "max_drop": lambda tried, wanted: tried is not None,
    "epochs": operator.ge,
    "weight_bits": operator.ge,
}
"""Setting -> whether a row's value would be nothing new after the one that was tried."""


@dataclass(frozen=True)
class Candidate:
    """A row of CANDIDATES with the settings of a user."""

    config: SchemeConfig
    scheme: str
    skipped: str = ""
    """Why it is not tried; empty where it is."""


def candidates(config: SchemeConfig) -> Iterator[Candidate]:
    """Yield every row of CANDIDATES, those that would ignore an explicit setting as skipped."""
    for row in CANDIDATES:
        made = type(config).model_validate({**row, **_explicit(config)})
        try:
            made.check_rules()
        except ConfigError as error:
            yield Candidate(made, row["scheme"], str(error))
        else:
            yield Candidate(made, row["scheme"])


def next_command(scheme: str, config: SchemeConfig, source: Artifact, task: Task, out: Path) -> str:
    """Return what to do after a scheme was refused: a command, where there is one left."""
    for row in SCHEMES[scheme].then:
        path = _source_of(row["scheme"], source)
        if path is None or _was_tried(row, scheme, config):
            continue
        flags = (*_flags(_task_settings(path, task)), *_flags(_settings(row, config), config))
        words = [
            "bertender",
            "quantize",
            Artifact.load(path, verify=False).place,
            *flags,
            "--out",
            str(out),
        ]
        return f"Try next: {shlex.join(words)}"
    return "Keep the float model: no other scheme is likely to pass."


def _explicit(config: SchemeConfig) -> dict[str, Any]:
    names = sorted(config.model_fields_set - {"scheme"})
    return {name: getattr(config, name) for name in names}


def _settings(row: Settings, config: SchemeConfig) -> Settings:
    """Return a row with the explicit settings that its scheme reads and no rule refuses there."""
    read = SHARED | SCHEMES[row["scheme"]].reads
    explicit = {name: value for name, value in _explicit(config).items() if value is not None}
    carried = {name: value for name, value in explicit.items() if name in read}
    fixed = {**row, **{name: carried[name] for name in ("max_drop",) if name in carried}}
    for rule in config.rules.values():
        if _breaks(rule, type(config).model_validate({**carried, **fixed})):
            carried = {name: carried[name] for name in carried if name not in rule.settings}
    return {**carried, **fixed}


def _breaks(rule: Rule[Any], config: SchemeConfig) -> bool:
    try:
        rule.check(config)
    except ConfigError:
        return True
    return False


def _was_tried(row: Settings, scheme: str, config: SchemeConfig) -> bool:
    tried = {"scheme": scheme, **config.model_dump(exclude={"scheme"})}
    return all(COVERS.get(name, SAME)(tried[name], value) for name, value in row.items())


def _source_of(scheme: str, source: Artifact) -> Path | None:
    """Return the artifact that a scheme starts from: this one, or the source of its export."""
    if SCHEMES[scheme].source == source.card.kind:
        return source.path
    parent = source.card.parent
    path = None if parent is None else Path(os.path.normpath(source.path / parent.path))
    return path if path and path.is_dir() else None


def _task_settings(path: Path, task: Task) -> Settings:
    """Return the flags that name the task, unless the card of the artifact there names it."""
    recorded = read_card(path).task.source
    return {} if task.source == recorded else task.source


def _flags(settings: Settings, config: Config | None = None) -> Iterator[str]:
    """Yield settings as words; what is off is turned off where it is on by default."""
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if value is False:
            if config and type(config).model_fields[name].default is True:
                yield f"--no-{flag}"
        elif value is not None:
            yield f"--{flag}"
            if value is not True:
                yield str(value)
