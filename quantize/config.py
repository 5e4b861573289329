"""Settings of `quantize`: QuantizeConfig, the SCHEMES that read it, and its RULES."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    ModelWrapValidatorHandler,
    ValidationInfo,
    model_validator,
)

from bertender.core.card import Kind
from bertender.core.config import Rule, Table
from bertender.core.errors import ConfigError
from bertender.gate.config import GateConfig
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES, WITH_INTEGERS, RuntimeName
from bertender.training.config import JudgedConfig, TrainingConfig
from quantize.integers import AUTO, CALIBRATORS, TARGETS

AUTO_SCHEME = "auto"
"""The scheme `auto`: the first of CANDIDATES that passes."""

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
SHARED = frozenset(
    {
        *("scheme", "target", "runtime", "no_embeddings", "max_drop", "parity_texts"),
        *("golden_texts", "seed"),
    }
)
"""Settings that every scheme reads."""

Settings = Mapping[str, Any]
FOUR_BIT_TABLES: Settings = {"scheme": "four-bit-embeddings", "max_drop": 0.5}
DYNAMIC: Settings = {"scheme": "dynamic"}
STATIC: Settings = {"scheme": "static", "calibrator": "mse"}
MIXED: Settings = {"scheme": "mixed", "base": "static", "max_drop": 0.5}
CANDIDATES: tuple[Settings, ...] = (FOUR_BIT_TABLES, DYNAMIC, STATIC, MIXED)
"""Schemes to try by default until one passes; explicit settings override theirs. The first is the
smallest, and as fast as the second: it passes only if the score on the validation texts hardly
changes."""


@dataclass(frozen=True)
class Scheme:
    """A row of SCHEMES."""

    summary: str
    reads: frozenset[str] = frozenset()
    """Settings that the scheme reads besides SHARED."""
    then: tuple[Settings, ...] = (DYNAMIC, STATIC, MIXED)
    """Schemes to suggest after a refusal: the first one not tried yet."""
    source: Kind = "onnx"
    """Kind of source artifact."""
    precision: str = "int8"
    """Precision of the graph, a row of the gate's TOLERANCES. Names in braces are settings."""
    fitted: bool = False
    """Whether activations are smoothed and weights rounded for training texts: `smoothing`,
    `rounding`."""
    four_bit_tables: bool = False
    """Whether large embedding tables have 4 bits, whatever `table_bits` says."""


SCHEMES = Table(
    "quantization scheme",
    {
        "dynamic": Scheme(
            "int8 weights per channel; activation scales found while running",
            reads=ATTENTION,
            then=(STATIC,),
            fitted=True,
        ),
        "static": Scheme(
            "int8 weights per channel; activation scales found before, on training texts",
            reads=CALIBRATION,
            then=(STATIC, MIXED),
            fitted=True,
        ),
        "mixed": Scheme(
            "int8, and the parts that suffer most in float until the score holds",
            reads=CALIBRATION | SENSITIVITY | {"base"},
            then=(MIXED, {"scheme": "qat"}),
            fitted=True,
        ),
        "four-bit-embeddings": Scheme(
            "as dynamic, and embedding tables of 4 bits in groups: smaller, and as fast",
            reads=frozenset({"block_size"}) | ATTENTION,
            then=(DYNAMIC, STATIC),
            fitted=True,
            precision="int4",
            four_bit_tables=True,
        ),
        "four-bit": Scheme(
            "4-bit weights in groups where the score holds, int8 elsewhere: for size",
            reads=SENSITIVITY | {"block_size"},
            then=({"scheme": "four-bit", "max_drop": 0.5}, DYNAMIC),
            precision="int4",
        ),
        "qat": Scheme(
            "trained with 8-bit errors (Q8BERT), from a torch artifact; scales are learned",
            reads=TRAINING,
            then=({"scheme": "qat", "epochs": 3}, {"scheme": "qat", "epochs": 10}),
            source="torch",
        ),
        "q-bert": Scheme(
            "trained with weights of 2, 3 or 4 bits, the most sensitive of more (Q-BERT), "
            "from a torch artifact: for size, and as fast as static",
            reads=TRAINING | SENSITIVITY | LOW_BITS | {"block_size"},
            then=(
                {"scheme": "q-bert", "table_bits": 8},
                {"scheme": "q-bert", "weight_bits": 3},
                {"scheme": "q-bert", "weight_bits": 4},
                {"scheme": "qat"},
            ),
            source="torch",
            precision="int{weight_bits}",
        ),
    },
)

SENSITIVITIES = Table(
    "sensitivity",
    {
        "leave-one-out": "how much the loss falls when one part stays in float",
        "hessian-trace": "mean curvature of the loss along a part's weights",
        "hessian-eigenvalue": "largest curvature of the loss along a part's weights",
    },
)
"""Measures of the cost of quantizing each part; see `sensitivity`."""

BLOCK_SIZES = (16, 32, 64, 128, 256)
"""Numbers of values that share a 4-bit scale."""
WEIGHT_BITS = (2, 3, 4)
TABLE_BITS = (4, 8)
"""Bits of large embedding tables."""


def _one_of(allowed: Sequence[int], error: str) -> AfterValidator:
    """Return a validator of numbers; its error follows `SETTING=VALUE: `."""

    def checked(value: int | None, info: ValidationInfo) -> int | None:
        if value is None or value in allowed:
            return value
        reason = error.format(allowed=", ".join(map(str, allowed)))
        raise ConfigError(f"{info.field_name}={value}: {reason}")

    return AfterValidator(checked)


KNOWN_BLOCK = _one_of(
    BLOCK_SIZES,
    "no kernel has such blocks; allowed are {allowed}. Small blocks are nearer to the float "
    "weights, large ones smaller.",
)
KNOWN_WEIGHT_BITS = _one_of(
    WEIGHT_BITS, "such weights are not packed; allowed are {allowed}. Scheme qat has 8."
)
KNOWN_TABLE_BITS = _one_of(
    TABLE_BITS,
    "such tables have no look-up; allowed are {allowed}. To leave them in float, give "
    "--no-embeddings.",
)


def _readers(setting: str) -> list[str]:
    """Return the schemes that read a setting."""
    return [name for name, scheme in SCHEMES.items() if setting in scheme.reads]


def _unread(setting: str) -> Rule[QuantizeConfig]:
    """Return the rule that a setting needs a scheme that reads it."""
    return Rule(
        # `auto` skips the schemes that do not read it
        lambda config: config.scheme not in (AUTO_SCHEME, *_readers(setting)),
        lambda config: (
            f"scheme {config.scheme!r} does not read it; {' or '.join(_readers(setting))} does. "
            f"Leave it out, or give --scheme {_readers(setting)[0]}."
        ),
        frozenset({setting}),
    )


def _dynamic_elsewhere(config: QuantizeConfig) -> str:
    static = "--base static" if config.reads("base") else "--scheme static"
    return (
        f"scheme {config.scheme!r} finds the scales of activations while it runs, and "
        f"{RUNTIMES[config.runtime].title} computes such MatMuls in float, slower than those "
        f"of the float model. Give {static}, or leave --runtime out."
    )


def _why_all_are_skipped(config: QuantizeConfig) -> str:
    reasons = " ".join(f"{each.scheme} is skipped: {each.skipped}" for each in candidates(config))
    return f"no scheme of auto reads all of your settings. {reasons}"


RULES: Mapping[str, Rule[QuantizeConfig]] = {
    "mixed without max_drop": Rule(
        lambda config: config.reads("base") and config.max_drop is None,
        "scheme {scheme!r} returns parts to float until the score holds: set how much of it may be "
        "lost, in points, as --max-drop 0.5. Without a bound, use --scheme dynamic or static.",
    ),
    "4-bit tables left in float": Rule(
        lambda config: config.has_four_bit_tables and config.no_embeddings,
        "it leaves in float the tables that would have 4 bits. Leave it out, or give "
        "--scheme dynamic, or --scheme q-bert --table-bits 8.",
        frozenset({"no_embeddings"}),
    ),
    "block size of 8-bit tables": Rule(
        lambda config: config.reads("table_bits") and not config.has_four_bit_tables,
        "it changes nothing here: tables of 8 bits have a scale each. Give --table-bits 4 too, or "
        "leave it out.",
        frozenset({"block_size"}),
    ),
    "runtime without integer products": Rule(
        lambda config: not RUNTIMES[config.runtime].integer_products,
        "it multiplies no 8-bit integers, and would turn them back into floats. For a GPU, export "
        "in 16 bits instead, as bertender export --precision float16, or leave it out.",
        frozenset({"runtime"}),
    ),
    "4-bit tables in an unsuitable runtime": Rule(
        lambda config: config.has_four_bit_tables and not RUNTIMES[config.runtime].own_operators,
        "it has no look-up in tables of 4 bits. Leave it out, or give --scheme static, or "
        "--scheme q-bert --table-bits 8.",
        frozenset({"runtime"}),
    ),
    "fused attention in an unsuitable runtime": Rule(
        lambda config: config.fused_attention and not RUNTIMES[config.runtime].own_operators,
        "it has no 8-bit attention operator. Leave it out, or leave --fused-attention out.",
        frozenset({"runtime"}),
    ),
    "dynamic scales in an unsuitable runtime": Rule(
        lambda config: (
            config.scheme in SCHEMES
            and not config.is_static
            and not RUNTIMES[config.runtime].dynamic_scales
        ),
        _dynamic_elsewhere,
        frozenset({"runtime"}),
    ),
    "percentile with another calibrator": Rule(
        lambda config: config.reads("percentile") and config.calibrator != "percentile",
        "it changes nothing here: it needs --calibrator percentile. Give that too, or leave it "
        "out.",
        frozenset({"percentile"}),
    ),
    "calibration with a dynamic base": Rule(
        lambda config: config.reads("base") and config.base != "static",
        "it changes nothing here: it needs --base static, whose activations are calibrated. Give "
        "that too, or leave it out.",
        CALIBRATION,
    ),
    "sensitivity without max_drop": Rule(
        lambda config: (
            config.max_drop is None
            and config.reads(*SENSITIVITY)
            and not config.reads("sensitive_bits")
        ),
        "it changes nothing here: it needs --max-drop, for which parts go back. Give that too, or "
        "leave it out.",
        SENSITIVITY,
    ),
    "too few sensitive bits": Rule(
        lambda config: (
            config.reads("sensitive_bits")
            and config.sensitive_bits is not None
            and config.sensitive_bits <= config.weight_bits
        ),
        "{sensitive_bits} bits for the most sensitive weights are no more than "
        "weight_bits={weight_bits}. Give more, or leave it out.",
        frozenset({"sensitive_bits"}),
    ),
    "sensitivity with equal bits": Rule(
        lambda config: config.reads("sensitive_bits") and config.sensitive_bits is None,
        "it changes nothing here: all products have --weight-bits. Give --sensitive-bits too, or "
        "leave it out.",
        SENSITIVITY | {"sensitive_share"},
    ),
    "sensitive bits without a Hessian": Rule(
        lambda config: (
            config.reads("sensitive_bits")
            and config.sensitive_bits is not None
            and config.sensitivity == "leave-one-out"
        ),
        "bits are allotted by the curvature of the loss. Leave --sensitivity out, or give "
        "hessian-eigenvalue, as the paper does.",
        frozenset({"sensitive_bits"}),
        against="sensitivity",
    ),
    **{
        f"{setting} with another scheme": _unread(setting)
        for setting in sorted(
            frozenset[str]().union(*(row.reads for row in SCHEMES.values())) - SHARED
        )
    },
    "settings that skip all default schemes": Rule(
        lambda config: (
            config.scheme == AUTO_SCHEME and all(each.skipped for each in candidates(config))
        ),
        _why_all_are_skipped,
    ),
}
"""Conflicts of the settings of `quantize`."""


class QuantizeConfig(GateConfig, TrainingConfig, JudgedConfig):
    """Settings of `quantize`. Only `qat` and `q-bert` read the training settings."""

    panel: ClassVar[str] = "Scheme"
    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Calibration": ("calibrator", "percentile", "calibration_texts"),
        "Mixed and low bits": (
            *("base", "sensitivity", "sensitivity_texts", "block_size", "weight_bits"),
            *("sensitive_bits", "sensitive_share", "weight_groups", "table_bits"),
        ),
    }
    main: ClassVar[tuple[str, ...]] = ("scheme", "target", "runtime", "max_drop", "calibrator")
    rules: ClassVar[Mapping[str, Rule[Any]]] = RULES
    shown_defaults: ClassVar[Mapping[str, str]] = {
        "sensitivity": "leave-one-out; hessian-trace with sensitive_bits"
    }
    judging: ClassVar[frozenset[str]] = frozenset(
        {"allow_constant", "max_drop", "golden_texts", "parity_texts", "runtime"}
    )

    max_length: int | None = Field(
        None,
        ge=8,
        description="texts to train on are truncated to so many tokens; the model's by default",
    )
    target: Annotated[str, TARGETS.validator(AUTO)] = Field(
        AUTO, description=f"the machine that serves: {AUTO} (this one), {', '.join(TARGETS)}"
    )
    runtime: RuntimeName = Field(
        DEFAULT_RUNTIME,
        description="the runtime whose kernels, sums and logits the gates check: "
        f"{', '.join(WITH_INTEGERS)}",
    )
    no_embeddings: bool = Field(False, description="leave embedding tables in float")
    max_drop: float | None = Field(
        None, ge=0, description="most points of the metric to lose; more is refused"
    )
    calibrator: Annotated[str, CALIBRATORS.validator()] = Field(
        "mse", description=f"where static activations are clipped: {', '.join(CALIBRATORS)}"
    )
    percentile: float = Field(
        99.99, gt=50, le=100, description="share of the values that calibrator percentile keeps"
    )
    calibration_texts: int = Field(
        512, ge=1, description="training texts to calibrate activations on, at most"
    )
    base: Literal["dynamic", "static"] = Field(
        "dynamic", description="scheme of the parts that scheme mixed leaves quantized"
    )
    sensitivity: Annotated[str, SENSITIVITIES.validator()] = Field(
        "leave-one-out",
        description="measure that picks the parts that mixed and four-bit return, and the weights "
        "with more bits in q-bert: "
        f"{', '.join(SENSITIVITIES)}",
    )
    sensitivity_texts: int = Field(
        256, ge=1, description="training texts to measure sensitivity on, at most"
    )
    block_size: Annotated[int, KNOWN_BLOCK] = Field(
        32,
        description="inputs of a product, or values of a row of a table, that share a 4-bit "
        f"scale: {', '.join(map(str, BLOCK_SIZES))}",
    )
    weight_bits: Annotated[int, KNOWN_WEIGHT_BITS] = Field(
        3, description=f"bits of the weights of layers: {', '.join(map(str, WEIGHT_BITS))}"
    )
    sensitive_bits: Annotated[int | None, KNOWN_WEIGHT_BITS] = Field(
        None,
        description="bits of the weights that the loss is most sensitive to, by its Hessian; by "
        "default as the others",
    )
    sensitive_share: float = Field(
        0.5, gt=0, lt=1, description="share of the products that have sensitive_bits"
    )
    weight_groups: int = Field(
        128,
        ge=1,
        description="groups of a product's outputs that share a scale in q-bert, as in the paper; "
        "the file is as large with any number",
    )
    table_bits: Annotated[int, KNOWN_TABLE_BITS] = Field(
        8, description=f"bits of large embedding tables: {', '.join(map(str, TABLE_BITS))}"
    )
    fused_attention: bool = Field(
        False,
        description="fuse each attention that ONNX Runtime's optimizer finds into one of its "
        "operators: faster for single texts on some CPUs",
    )
    soft_labels: float = Field(
        1.0, ge=0, description="weight of the float model's logits next to the labels in training"
    )
    epochs: int = Field(1, ge=1, description="passes over the training examples, if it trains")
    learning_rate: float = Field(2e-5, gt=0, description="peak learning rate of AdamW in training")
    precision: Literal["auto", "bf16", "fp32"] = Field(
        "fp32",
        description="precision to train in; bf16 has hardly more digits than 8-bit steps",
    )
    seed: int = Field(0, ge=0, description="seed of the drawn texts and of the training order")
    scheme: Annotated[str, SCHEMES.validator(AUTO_SCHEME)] = Field(
        AUTO_SCHEME,
        description="how to choose scales: a row of `bertender schemes`, or auto, which tries "
        f"{', '.join(row['scheme'] for row in CANDIDATES)} and takes the first that passes",
    )

    @model_validator(mode="wrap")
    @classmethod
    def _by_curvature(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """By default, allot bits by the curvature that is computed fastest."""
        config = handler(values)
        allots = config.reads("sensitive_bits") and config.sensitive_bits is not None
        if not allots or config.is_explicit("sensitivity"):
            return config
        filled = config.changed({"sensitivity": "hessian-trace"})
        filled.model_fields_set.discard("sensitivity")  # it is not explicit
        return filled

    def reads(self, *settings: str) -> bool:
        """Return whether the scheme reads all of some settings; False for `auto`."""
        return self.scheme in SCHEMES and SCHEMES[self.scheme].reads.issuperset(settings)

    @property
    def trains(self) -> bool:
        """Whether the scheme starts from a torch artifact."""
        return self.scheme in SCHEMES and SCHEMES[self.scheme].source == "torch"

    @property
    def is_static(self) -> bool:
        """Whether activation scales are in the graph, found on texts beforehand."""
        return self.reads("calibration_texts") and (not self.reads("base") or self.base == "static")

    @property
    def has_four_bit_tables(self) -> bool:
        """Whether large embedding tables have 4 bits."""
        always = self.scheme in SCHEMES and SCHEMES[self.scheme].four_bit_tables
        return always or (self.reads("table_bits") and self.table_bits == 4)

    @property
    def graph_precision(self) -> str:
        """Row of the gate's TOLERANCES; int8 for `auto`."""
        if self.scheme == AUTO_SCHEME:
            return "int8"
        return SCHEMES[self.scheme].precision.format_map(dict(self))


@dataclass(frozen=True)
class Candidate:
    """A row of CANDIDATES merged with the user's settings."""

    config: QuantizeConfig
    skipped: str = ""
    """Why it is skipped; empty if it is tried."""

    @property
    def scheme(self) -> str:
        return self.config.scheme


def candidates(config: QuantizeConfig) -> Iterator[Candidate]:
    """Yield every row of CANDIDATES; those that would ignore an explicit setting are skipped."""
    for row in CANDIDATES:
        explicit = {name: getattr(config, name) for name in sorted(config.model_fields_set)}
        made = type(config).model_validate({**row, **explicit, "scheme": row["scheme"]})
        try:
            made.check_rules()
        except ConfigError as error:
            yield Candidate(made, str(error))
        else:
            yield Candidate(made)
