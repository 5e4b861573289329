"""Settings of `compress`: the limits, the choices for candidates, and the budget."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from bertender.core.config import Config, Rule, parts_of
from bertender.gate.config import GOLDEN_TEXTS
from bertender.models.runtimes import DEFAULT_RUNTIME, WITH_INTEGERS, RuntimeName

Shares = Annotated[tuple[float, ...], BeforeValidator(parts_of)]
Names = Annotated[tuple[str, ...], BeforeValidator(parts_of)]


RULES: Mapping[str, Rule[CompressConfig]] = {
    "shares outside 0 to 1": Rule(
        lambda config: not all(0 <= share < 1 for share in (*config.heads, *config.ffn)),
        "a share to cut is from 0 to below 1, as 0.25 for a quarter. Give shares by commas.",
        frozenset({"heads", "ffn"}),
    ),
    "fewer than one layer": Rule(
        lambda config: any(layers < 1 for layers in config.layers),
        "a student has one layer at least. Give depths from 1, by commas.",
        frozenset({"layers"}),
    ),
    "auto among the schemes": Rule(
        lambda config: "auto" in config.schemes,
        "auto tries several schemes, of which each has its own size and time. Name those to choose "
        "from, as dynamic,static.",
        frozenset({"schemes"}),
    ),
    "two sources of unlabelled texts": Rule(
        lambda config: config.unlabelled is not None and config.unlabelled_texts > 0,
        "texts of a file and those of the task are not mixed here. Leave out one of the two.",
        frozenset({"unlabelled_texts"}),
        against="unlabelled",
        beyond_default=True,
    ),
    "no schemes": Rule(
        lambda config: not config.schemes,
        "there is nothing to choose from. Give a scheme at least, from `bertender schemes`.",
        frozenset({"schemes"}),
    ),
    "no runtimes": Rule(
        lambda config: not config.runtimes,
        f"there is nothing to choose from. Give a runtime at least: {', '.join(WITH_INTEGERS)}.",
        frozenset({"runtimes"}),
    ),
    "runtimes without integer products": Rule(
        lambda config: not {*config.runtimes} <= {*WITH_INTEGERS},
        "not all of them multiply 8-bit integers, and would turn them back into floats. Give some "
        f"of {', '.join(WITH_INTEGERS)}.",
        frozenset({"runtimes"}),
    ),
    "no pruning shares": Rule(
        lambda config: not (config.heads and config.ffn),
        "there is nothing to choose from. Give 0 to cut nothing.",
        frozenset({"heads", "ffn"}),
    ),
}
"""Conflicts of the settings of `compress`."""


class CompressConfig(Config):
    """Settings of `compress`."""

    panel: ClassVar[str] = "Candidates"
    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Training": (
            "epochs",
            "recovery_epochs",
            "learning_rate",
            "batch_size",
            "no_dropout",
            "budget_minutes",
            "seed",
        ),
        "Texts without labels": ("unlabelled", "unlabelled_texts"),
        "Timing": ("threads", "processes", "noisy", "golden_texts"),
    }
    main: ClassVar[tuple[str, ...]] = ("max_mb", "max_ms", "min_score", "students", "candidates")
    rules: ClassVar[Mapping[str, Rule[Any]]] = RULES
    shown_defaults: ClassVar[Mapping[str, str]] = {
        "layers": "1, 2, 3, 4, 6 and 12, up to all of the start's",
        "schemes": "dynamic, four-bit-embeddings; static too with other runtimes",
    }

    max_mb: float | None = Field(None, gt=0, description="most megabytes of the model's file")
    max_ms: float | None = Field(
        None,
        gt=0,
        description="most milliseconds for one text of natural length, the median, on this "
        "machine with `threads`",
    )
    min_score: float | None = Field(
        None, gt=0, le=1, description="least score on the held-out texts, which choose nothing"
    )
    unlabelled: Path | None = Field(
        None, description="more texts to learn from: .txt, .txt.xz, CSV, TSV, JSONL or Parquet"
    )
    unlabelled_texts: int = Field(
        0, ge=0, description="learn from so many unlabelled texts that come with the task, at most"
    )
    students: Names = Field(
        ("all-MiniLM-L6-v2", "static"),
        description="what students may start from by commas, besides the teacher's own layers: "
        "encoders (folders, packaged ones or hub names), and methods whose student has no layers "
        "(static, bilstm)",
    )
    layers: Annotated[tuple[int, ...], BeforeValidator(parts_of)] = Field(
        (), description="depths of students to choose from, by commas"
    )
    heads: Shares = Field(
        (0.0, 0.25, 0.5), description="shares of the heads to cut to choose from, by commas"
    )
    ffn: Shares = Field(
        (0.0, 0.25, 0.5), description="shares of the feed-forward neurons, by commas"
    )
    vocab_floor: int = Field(
        2, ge=1, description="where the vocabulary is cut, keep tokens that occur so often"
    )
    vocab_size: int = Field(
        12_000,
        ge=1,
        description="most entries of a vocabulary that is cut: the most frequent tokens stay; "
        "by default at least twice as many as always stay",
    )
    schemes: Names = Field(
        ("dynamic", "four-bit-embeddings"),
        description="ways to quantize to choose from, the preferred first, of `bertender schemes` "
        "that train nothing",
    )
    runtimes: Annotated[tuple[RuntimeName, ...], BeforeValidator(parts_of)] = Field(
        (DEFAULT_RUNTIME,),
        description="runtimes to choose from by commas, the preferred first: "
        f"{', '.join(WITH_INTEGERS)}",
    )
    fused_attention: bool = Field(
        False,
        description="also try attention as one operator, with the schemes that support it: faster "
        "for single texts in ONNX Runtime on some CPUs",
    )
    candidates: int = Field(6, ge=1, description="candidates to train, at most")
    method: Names = Field(
        (),
        description="of `bertender methods` to choose from by commas, for students of the "
        "teacher's own layers; by default auto, what distill takes",
    )
    epochs: int = Field(3, ge=1, description="passes over the texts of each student")
    recovery_epochs: int = Field(2, ge=1, description="passes over the texts after a cut")
    learning_rate: float = Field(1e-4, gt=0, description="peak learning rate of the students")
    batch_size: int = Field(
        32, ge=1, description="most texts of a batch, of the students and of their recovery"
    )
    no_dropout: bool = Field(
        False,
        description="drop no values at random in training and recovery; in its own training a "
        "student of static or bilstm always does",
    )
    budget_minutes: float | None = Field(
        None, gt=0, description="train for so long at most; candidates that do not fit are left out"
    )
    golden_texts: int = Field(
        GOLDEN_TEXTS,
        ge=0,
        description="of the validation texts to store in the model, which `bertender deploy` "
        "asks it about again; 0 for none, where texts must not leave this machine",
    )
    threads: int = Field(0, ge=0, description="to time with; 0: every core")
    processes: int = Field(3, ge=1, description="fresh processes that time the chosen models")
    seed: int = Field(0, ge=0, description="seed of every training")
    noisy: bool = Field(
        False, description="time on a busy machine as well, and mark the figures as noisy"
    )
