"""Settings of `prune`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from bertender.core.config import Rule, Table
from bertender.core.errors import ConfigError
from bertender.training.config import JudgedConfig, TrainingConfig
from distill.distillation.config import UnlabelledConfig

IMPORTANCES = Table(
    "importance",
    {"gradient": True, "fisher": True, "taylor": True, "magnitude": False, "random": False},
)
"""Whether an importance of heads and neurons needs texts. `importance.SCORERS` computes them."""

Across = Literal["model", "layer"]
"""Where heads and neurons compete: in the whole model, or in their layer."""

READ_ANYWAY = frozenset({"batch_size", "max_length", "seed", "tokens_per_batch"})
"""Settings of TrainingConfig that are read without training, too."""

OF_RECOVERY = frozenset({*TrainingConfig.model_fields, "teacher"} - READ_ANYWAY)
"""Settings that only training reads."""

WITH_A_TARGET = "fisher"
"""Default importance with a target latency: comparable between heads and neurons."""

OF_THE_TASK = "task"
"""In place of a corpus: the task's training texts."""


def _is_share(share: float, info: ValidationInfo) -> float:
    if not 0 <= share < 1:
        raise ConfigError(
            f"{info.field_name}={share} is not a share: give a number from 0 to below 1, as 0.4 "
            "for two of five. A layer keeps one at least; `layers` drops whole ones."
        )
    return share


def _parse_speedup(value: Any) -> Any:
    """Read "2.0x" or 2.0 as a speedup."""
    try:
        factor = float(str(value).strip().lower().removesuffix("x"))
    except ValueError:
        factor = math.nan
    if not 1 < factor < math.inf:
        raise ConfigError(
            f"target_latency={value!r} is not a factor of speed: give a number above 1, as 2.0x."
        )
    return factor


def _no_effect(
    where: Callable[[PruneConfig], bool],
    why: str,
    settings: frozenset[str],
    against: str | None = None,
) -> Rule[PruneConfig]:
    """Return a rule against settings that have no effect where `where` holds."""
    return Rule(where, why, settings, against, beyond_default=True)


RULES: Mapping[str, Rule[PruneConfig]] = {
    "nothing to prune": Rule(
        lambda config: not (config.cuts_parts or config.layers or config.vocab),
        "heads=0, ffn=0, layers=0 and no vocab: there is nothing to prune. Give the share of the "
        "heads or of the neurons to cut, as heads=0.4, how many layers, vocab=task, or "
        "target_latency=2.0x.",
    ),
    "rounds without parts": _no_effect(
        lambda config: not config.cuts_parts,
        "only heads and neurons are cut in rounds. Give heads, ffn or target_latency, or leave it "
        "out.",
        frozenset({"rounds"}),
    ),
    "importance without parts": _no_effect(
        lambda config: not config.cuts_parts,
        "only heads and neurons are compared by their importance. Give heads, ffn or "
        "target_latency, or leave it out.",
        frozenset({"across", "importance"}),
    ),
    "rescaling without parts": _no_effect(
        lambda config: not config.cuts_parts,
        "only heads and neurons that are left of a layer are rescaled. Give heads, ffn or "
        "target_latency, or leave it out.",
        frozenset({"retraining_free"}),
    ),
    "scored texts without effect": _no_effect(
        lambda config: not config.scores_texts,
        "what is cut here does not depend on texts. Give layers, or heads, ffn or target_latency "
        "by another importance; or leave it out.",
        frozenset({"scored_texts"}),
    ),
    "batches without a forward pass": _no_effect(
        lambda config: not (config.scores_texts or config.recovers),
        "no batch is computed here: nothing is trained, and what is cut does not depend on texts. "
        "Leave it out.",
        frozenset({"batch_size", "tokens_per_batch"}),
    ),
    "vocabulary settings without vocab": _no_effect(
        lambda config: config.vocab is None,
        "without vocab there are no texts to count tokens in. Give vocab, or leave it out.",
        frozenset({"vocab_floor", "vocab_size"}),
    ),
    "latency without a target": _no_effect(
        lambda config: config.target_latency is None,
        "nothing is timed without a target. Give target_latency, or leave it out.",
        frozenset({"latency_texts", "latency_tokens"}),
    ),
    "shares with a target": _no_effect(
        lambda config: config.target_latency is not None,
        "the target itself sets how many heads and neurons go from which layers. Leave out one of "
        "the two.",
        frozenset({"across", "ffn", "heads"}),
        against="target_latency",
    ),
    "training with rescaling": _no_effect(
        lambda config: config.retraining_free,
        "nothing is trained then. Leave out one of the two.",
        OF_RECOVERY,
        against="retraining_free",
    ),
    "training without recovery": _no_effect(
        lambda config: not config.recover,
        "nothing is trained then. Leave out one of the two.",
        OF_RECOVERY,
        against="recover",
    ),
    "unlabelled texts without effect": _no_effect(
        lambda config: not config.recovers and config.vocab != OF_THE_TASK,
        f"nothing is trained, and tokens are counted in them with vocab={OF_THE_TASK} alone. Give "
        "that, or leave it out.",
        frozenset({"max_unlabelled", "unlabelled", "unlabelled_texts"}),
    ),
    "recovery with rescaling": Rule(
        lambda config: config.retraining_free and config.recover,
        "rescaling replaces training. Leave out one of the two.",
        frozenset({"recover"}),
        against="retraining_free",
    ),
    "timed texts longer than max_length": Rule(
        lambda config: 0 < (config.max_length or 0) < (config.latency_tokens or 0),
        "no text is longer than max_length tokens. Give so many at most, or a larger max_length.",
        frozenset({"latency_tokens"}),
        against="max_length",
    ),
}
"""Conflicts of settings, and settings without effect."""


class PruneConfig(UnlabelledConfig, JudgedConfig):
    """Settings of `prune`. Training settings apply to the recovery after each round."""

    panel: ClassVar[str] = "What is cut"
    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Latency to reach": ("latency_texts", "latency_tokens"),
        "Recovery": ("recover", "teacher", "retraining_free", "max_drop"),
    }
    main: ClassVar[tuple[str, ...]] = ("heads", "ffn", "layers", "vocab", "target_latency")
    shown_defaults: ClassVar[Mapping[str, str]] = {
        "importance": "gradient; fisher for a target",
        "max_length": "the model's",
    }
    rules: ClassVar[Mapping[str, Rule[Any]]] = RULES
    judging: ClassVar[frozenset[str]] = frozenset({"allow_constant", "max_drop"})

    heads: Annotated[float, AfterValidator(_is_share)] = Field(
        0.0, description="share of the attention heads to cut, 0 to below 1"
    )
    ffn: Annotated[float, AfterValidator(_is_share)] = Field(
        0.0, description="share of the feed-forward neurons to cut, 0 to below 1"
    )
    target_latency: Annotated[float, BeforeValidator(_parse_speedup)] | None = Field(
        None,
        description="instead of shares: the speedup to reach, as 2.0x; heads are "
        "weighed against neurons by the time that they take on this machine",
    )
    latency_texts: int = Field(1, ge=1, description="texts of a batch that is timed for that")
    latency_tokens: int | None = Field(
        None, ge=1, description="tokens of each; the mean of the training texts by default"
    )
    layers: int = Field(
        0, ge=0, description="layers to drop first, those with the least effect on the loss"
    )
    vocab: str | None = Field(
        None,
        description="keep the tokens that these texts need: task (unlabelled texts are counted "
        "too), or a corpus (docs, .txt, .txt.xz, .parquet, a hub data set)",
    )
    vocab_floor: int = Field(1, ge=1, description="keep tokens that occur so often there")
    vocab_size: int | None = Field(
        None, ge=1, description="most entries of the vocabulary: the most frequent tokens stay"
    )
    importance: Annotated[str, IMPORTANCES.validator()] = Field(
        "gradient", description=f"importance of heads and neurons: {', '.join(IMPORTANCES)}"
    )
    across: Across = Field(
        "model",
        description="where the least important ones are looked for: model, layer",
    )
    rounds: int = Field(
        1, ge=1, description="cut heads and neurons in so many steps, scored again before each"
    )
    scored_texts: int = Field(
        1000, ge=1, description="training texts to measure importance on, at most"
    )
    recover: bool = Field(
        True, description="train after each cut on the outputs of a teacher, and on the labels"
    )
    teacher: Path | None = Field(
        None,
        description="artifact that the recovery learns from, such as the first teacher of a "
        "student; the unpruned model by default",
    )
    retraining_free: bool = Field(
        False, description="train nothing: rescale what remains by least squares instead"
    )
    max_drop: float | None = Field(
        None, ge=0, description="most points of the metric to lose; more is refused"
    )
    epochs: int = Field(1, ge=1, description="passes over the training examples in each recovery")

    @model_validator(mode="before")
    @classmethod
    def _default_importance(cls, values: Any) -> Any:
        """Default to an importance that is comparable between heads and neurons."""
        if isinstance(values, dict) and values.get("target_latency") is not None:
            return {"importance": WITH_A_TARGET, **values}
        return values

    @property
    def cuts_parts(self) -> bool:
        """Whether heads or neurons are cut."""
        return bool(self.heads or self.ffn or self.target_latency)

    @property
    def recovers(self) -> bool:
        """Whether the pruned model is trained."""
        return self.recover and not self.retraining_free

    @property
    def scores_texts(self) -> bool:
        """Whether the cut depends on the model's outputs on training texts."""
        by_texts = self.cuts_parts and IMPORTANCES[self.importance]
        return bool(by_texts or self.layers or self.retraining_free)
