"""Flags made from configs: every type of field, and every value that a user can give."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

from bertender.cli.flags import command_with_flags, settings_of
from bertender.comparison.records import CompareConfig
from bertender.core.config import Config
from bertender.core.errors import UnknownNameError
from bertender.gate.artifacts import VerifyConfig
from bertender.tasks.task import TaskConfig
from distill.distillation.config import DistillConfig, GeneralConfig
from distill.methods import GENERAL_METHODS
from serve.bulk import ClassifyConfig
from serve.client.access import AccessConfig
from serve.config import DeployConfig, ServeCommandConfig
from serve.loadtest import LoadConfig
from serve.tuning import TuneConfig
from tests.front import WRITERS, succeed


class Many(Config):
    """A field of every type that configs have."""

    count: int = Field(3, description="how many")
    rate: float = Field(0.5, description="how fast")
    name: str = Field("x", description="called")
    shape: Literal["round", "square"] = Field("round", description="looks")
    folder: Path | None = Field(None, description="where")
    limit: int | None = Field(None, description="at most")
    careful: bool = Field(True, description="slowly")
    loud: bool = Field(False, description="heard")
    layers: tuple[int, ...] | None = Field(None, description="which")
    weights: dict[str, float] = Field(default_factory=dict, description="how much")


class Other(Config):
    """A second config, with one name that the first has too."""

    name: str = Field("other", description="never seen: the first wins")
    extra: int = Field(1, description="more")


def parsed(*words: str, optional: tuple[type[Config], ...] = ()) -> dict[str, Any]:
    """The values that a command made from both configs receives."""
    received: dict[str, Any] = {}

    def command(values: dict[str, Any], own: Annotated[str, typer.Option()] = "own") -> None:
        received.update(values, own=own)

    app = typer.Typer()
    app.command()(command_with_flags(command, (Many, Other), optional=optional))
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return received


def given_of_both(values: dict[str, Any]) -> dict[str, Any]:
    return {**settings_of(Many, values), **settings_of(Other, values)}


def test_without_flags_the_values_are_the_defaults() -> None:
    values = parsed()
    assert Many.parse(settings_of(Many, values)) == Many()
    assert values["extra"] is None and values["own"] == "own"


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (("--count", "0"), "count", 0),
        (("--rate", "0"), "rate", 0.0),
        (("--name", ""), "name", ""),
        (("--shape", "square"), "shape", "square"),
        (("--folder", "a/b"), "folder", Path("a/b")),
        (("--limit", "0"), "limit", 0),
        (("--no-careful",), "careful", False),
        (("--careful",), "careful", True),
        (("--loud",), "loud", True),
        (("--layers", "1,3"), "layers", "1,3"),
        (("--weights", "a=0"), "weights", "a=0"),
        (("--extra", "2"), "extra", 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_given_arrives(words: tuple[str, ...], name: str, value: Any) -> None:
    for optional in ((), (Many, Other)):
        kept = given_of_both(parsed(*words, optional=optional))
        assert kept[name] == value and type(kept[name]) is type(value)


def test_optional_configs_give_only_what_was_given() -> None:
    assert given_of_both(parsed("--loud", optional=(Many, Other))) == {"loud": True}


def test_given_keeps_values_that_are_false() -> None:
    values = {"count": 0, "careful": False, "name": "", "limit": None, "layers": (), "else": 1}
    assert settings_of(Many, values) == {"count": 0, "careful": False, "name": "", "layers": ()}


CONFIGS = {
    **{name: stage.config for name, stage in WRITERS.items()},
    "task": TaskConfig,
    "verify": VerifyConfig,
    "compare": CompareConfig,
    "serve": ServeCommandConfig,
    "deploy": DeployConfig,
    "classify": ClassifyConfig,
    "loadtest": LoadConfig,
    "tune": TuneConfig,
    "access": AccessConfig,
}
TABLES_OF_ONE_ROW = [("quantize", "scheme")]
BESIDE_ANOTHER = {
    ("pretrain", "short_share"): ("--short-length=15", "0.25"),
    ("calibrate", "method"): ("--seed=0", "platt"),
    ("distill", "augmented_copies"): ("--augmentation=tinybert", "15"),
    ("distill", "augmentation_model"): ("--augmentation=tinybert", "some/thing"),
    ("distill", "earlier_epochs"): ("--method=tinybert", "15"),
    ("distill", "earlier_learning_rate"): ("--method=tinybert", "0.5"),
    ("distill", "min_confidence"): ("--more-teachers=labels.csv", "0.5"),
    ("distill", "vocab_size"): ("--method=hard", "150"),
    ("distill", "relation_heads"): ("--method=minilm-v2", "15"),
    ("distill-general", "relation_heads"): ("--method=minilm-v2", "15"),
    ("distill-general", "temperature"): ("--method=distilbert", "0.5"),
    ("distill-general", "weights"): ("--method=distilbert", "soft=0.25"),
    ("distill-general", "earlier_epochs"): ("--method=mobilebert", "15"),
    ("distill-general", "earlier_learning_rate"): ("--method=mobilebert", "0.5"),
    ("distill-general", "mask_probability"): ("--method=distilbert", "0.25"),
    ("distill-general", "vocabulary_size"): ("--method=small-vocab", "150"),
    ("export", "precision"): ("--optimize=basic", "float16"),  # of training, bf16 and others
    ("prune", "heads"): ("--rounds=2", "0.5"),  # a share here, a number in other stages
    ("prune", "ffn"): ("--rounds=2", "0.5"),
    ("prune", "layers"): ("--rounds=2", "3"),
    ("prune", "max_drop"): ("--rounds=2", "0.5"),
    ("quantize", "max_drop"): ("--scheme=mixed", "0.5"),
    ("prune", "target_latency"): ("--importance=taylor", "2.5x"),
    ("prune", "vocab_size"): ("--vocab=task", "150"),
    ("tune", "objective"): ("--rounds=3", "p99"),  # of pre-training, wwm and others
}
"""Fields that are refused without another flag: that flag, and a value."""
SWITCHES_BESIDE = {
    ("serve", "gpu"): ("--runtime=triton-onnxruntime", "--repository-only=models"),
}
"""Switches that are refused without other flags, and those."""
SWITCHES = [
    (name, field)
    for name, config in CONFIGS.items()
    for field, of in config.model_fields.items()
    if of.annotation is bool
]
FLAGS = [
    (name, field)
    for name, config in CONFIGS.items()
    for field in config.model_fields
    if (name, field) not in (*TABLES_OF_ONE_ROW, *BESIDE_ANOTHER, *SWITCHES)
    and field not in config.without_flag
    and (name, field) != ("distill-general", "method")  # each brings a learning rate of its own
]
UNLIKE_THEIR_DEFAULT = {
    "to": "openvino",
    "problem_type": "token_classification",
    "keep": "last",
    "patience": "15",
    "class_weights": "balanced",
    "label_smoothing": "0.25",
    "windows": "max",
    "freeze": "encoder",
    "adversarial": "freelb",
    "optimizer": "lamb",
    "server": "embedded",
    "triton": "http://127.0.0.1:8004",
    "otlp_endpoint": "http://127.0.0.1:4318",
    "allow_origin": "https://example.com",
    "across": "layer",
    "base": "static",
    "batch_size": "15",
    "settings": "instances",
    "texts_per_request": "15",
    "batches": "random",
    "block_size": "64",
    "sensitive_bits": "4",
    "table_bits": "4",
    "calibrator": "minmax",
    "concurrency": "15",
    "rate": "0.5",
    "percentile": "99.5",
    "select": "0.25",
    "grpc_port": "15",
    "abstain_below": "0.5",
    "label_map": "good=fruit",
    "sensitivity": "hessian-trace",
    "target": "avx2",
    "importance": "taylor",
    "precision": "bf16",
    "augmentation": "tinybert",
    "method": "minilm",
    "more_tasks": "mrpc",
    "objective": "wwm",
    "optimize": "basic",
    "packing": "doc-sentences",
    "language_alpha": "0.25",
    "subword_alpha": "0.25",
    "bpe_dropout": "0.25",
    "overflow": "allow",
    "short_length": "15",
    "tokenizer": "bpe",
    "runtime": "openvino",
    "schedule": "constant",
    "layer_map": "last",
    "teacher_layers": "0,1,2",
    "weights": "soft=0.25",
    "temperature": "0.5",
    "tolerance": "int8",
    **dict.fromkeys(("opset", "max_length", "max_train", "max_dev", "texts"), "15"),
    "external_above_mb": "15",
    **dict.fromkeys(
        (
            "opset",
            "max_length",
            "max_train",
            "max_dev",
            "max_queue_texts",
            "tokens_per_bucket",
            "retries",
            "texts",
            "latency_tokens",
        ),
        "15",
    ),
    **dict.fromkeys(("max_unlabelled", "unlabelled_min_words", "unlabelled_max_words"), "15"),
    "unlabelled_max_entropy": "0.5",
    **dict.fromkeys(("layers", "hidden_size", "heads", "feed_forward_size"), "15"),
}
"""What to write for fields whose default does not tell what they take."""


@pytest.mark.parametrize(("name", "field"), FLAGS)
def test_every_flag_reaches_its_field_and_no_other(name: str, field: str) -> None:
    config = CONFIGS[name]
    parsed = read_flag(config, field, another(field, getattr(config(), field)))
    explicit = [key for key in config.model_fields if key in parsed.model_fields_set]
    # a student of its own changes what `auto` chooses, which is not explicit
    assert [key for key in explicit if changed(key, parsed, config())] == [field]


def test_every_general_method_brings_its_settings() -> None:
    for name, method in GENERAL_METHODS.items():
        config = read_flags(GeneralConfig, "--method", name).model_dump()
        assert {key: config[key] for key in method.settings} == method.settings


@pytest.mark.parametrize(("name", "field"), SWITCHES)
def test_a_switch_is_turned_on_and_off(name: str, field: str) -> None:
    config, option = CONFIGS[name], field.replace("_", "-")
    flags = {f"--{option}": True, f"--no-{option}": False}
    if config.model_fields[field].default is False:
        del flags[f"--no-{option}"]  # what is off need not be turned off
    for flag, value in flags.items():
        beside = SWITCHES_BESIDE.get((name, field), ())
        parsed, plain = read_flags(config, *beside, flag), read_flags(config, *beside)
        assert getattr(parsed, field) is value
        others = [key for key in config.model_fields if changed(key, parsed, plain)]
        assert set(others) <= {field}


@pytest.mark.parametrize(("name", "field"), BESIDE_ANOTHER)
def test_a_flag_beside_another_reaches_its_field(name: str, field: str) -> None:
    beside, text = BESIDE_ANOTHER[name, field]
    flag = f"--{field.replace('_', '-')}={text}"
    config = CONFIGS[name]
    parsed, plain = read_flags(config, beside, flag), read_flags(config, beside)
    assert [key for key in config.model_fields if changed(key, parsed, plain)] == [field]


def test_what_is_not_given_has_the_methods_own_default() -> None:
    for flags, epochs in ((), 10), (("--epochs", "3"), 3):
        config = read_flags(DistillConfig, "--method", "bilstm", *flags)
        assert config.model_dump()["epochs"] == epochs
        assert config.model_dump()["learning_rate"] == 1e-3


@pytest.mark.parametrize(("name", "field"), TABLES_OF_ONE_ROW)
def test_a_flag_without_another_value_reaches_its_table(name: str, field: str) -> None:
    with pytest.raises(UnknownNameError, match="some/thing"):
        read_flag(CONFIGS[name], field, "some/thing")


def read_flag(config: type[Config], field: str, text: str) -> Config:
    """Return the config that a command with this one flag builds."""
    return read_flags(config, f"--{field.replace('_', '-')}", text)


def read_flags(config: type[Config], *words: str) -> Config:
    received = dict[str, Any]()

    def command(values: dict[str, Any]) -> None:
        received.update(values)

    app = typer.Typer()
    app.command()(command_with_flags(command, (config,)))
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    # as `parse` does, but for rules on several settings: here flags stand alone
    return config.model_validate(settings_of(config, received))


def another(field: str, default: Any) -> str:
    """A value other than the default, as it is written on the command line."""
    numbers = {int: lambda: str(default + 1), float: lambda: str(default / 2)}
    given = UNLIKE_THEIR_DEFAULT.get(field)
    if given and (type(default) is not int or given.isdigit()):  # `keep` is a number elsewhere
        return given
    return numbers.get(type(default), lambda: "some/thing")()


def changed(key: str, config: Config, default: Config) -> bool:
    return bool(getattr(config, key) != getattr(default, key))


def test_help_shows_choices_and_where_defaults_come_from() -> None:
    assert "auto|bf16|fp32" in succeed("finetune", "--help").stdout
    shown = succeed("export", "--help").stdout.replace("│", " ")
    assert "(the artifact's)" in " ".join(shown.split()), "broken into lines where it is narrow"


@pytest.mark.parametrize("name", CONFIGS)
def test_every_option_has_a_title_or_is_one_of_a_few_that_matter_most(name: str) -> None:
    config = CONFIGS[name]
    titles = config.titles()
    assert titles.keys() == config.model_fields.keys()
    assert [field for field, title in titles.items() if title is None] == [*config.main]
    assert len(config.main) <= 5 and "Settings" not in titles.values()
    moved = [
        field
        for each in config.__mro__
        for names in getattr(each, "panels", {}).values()
        for field in names
    ]
    assert set(moved) <= config.model_fields.keys()
