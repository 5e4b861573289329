"""What a user says of a pruning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo

from bertender.core.errors import ConfigError
from bertender.core.training import TrainingConfig
from distill.pruning.choice import ACROSS, Across
from distill.pruning.importance import IMPORTANCES, importance_named

__all__ = ["OF_THE_TASK", "PruneConfig"]

OF_RECOVERY = frozenset(
    {
        "checkpoint_steps",
        "epochs",
        "learning_rate",
        "precision",
        "schedule",
        "warmup_ratio",
        "weight_decay",
    }
)
"""Settings that nothing but training reads."""

OF_THE_TASK = "task"
"""In the place of a corpus: the task's own training texts."""


def _known_importance(name: str) -> str:
    importance_named(name)
    return name


def _is_share(share: float, info: ValidationInfo) -> float:
    if not 0 <= share < 1:
        raise ConfigError(
            f"{info.field_name}={share} is no share of what there is: give 0 to below 1, as 0.4 "
            "for two of five. A layer keeps one at least; `layers` drops whole ones."
        )
    return share


class PruneConfig(TrainingConfig):
    """What to prune, and how to recover. Training settings are those of each round's recovery."""

    heads: Annotated[float, AfterValidator(_is_share)] = Field(
        0.0, description="share of the attention heads to cut, 0 to below 1"
    )
    ffn: Annotated[float, AfterValidator(_is_share)] = Field(
        0.0, description="share of the feed-forward neurons to cut, 0 to below 1"
    )
    layers: int = Field(
        0, ge=0, description="layers to drop at first, those that the loss misses least"
    )
    vocab: str | None = Field(
        None,
        description="keep the word pieces that these texts need: task, or a corpus (docs, .txt, "
        ".txt.xz, .parquet, a hub data set)",
    )
    vocab_floor: int = Field(1, ge=1, description="keep pieces that occur so often there")
    importance: Annotated[str, AfterValidator(_known_importance)] = Field(
        "gradient", description=f"what heads and neurons are worth by: {', '.join(IMPORTANCES)}"
    )
    across: Across = Field(
        "model", description=f"where the least important ones are sought: {', '.join(ACROSS)}"
    )
    rounds: int = Field(
        1, ge=1, description="cut heads and neurons in so many steps, scored anew before each"
    )
    scored_texts: int = Field(
        1000, ge=1, description="training texts, at most, that importance is measured on"
    )
    recover: bool = Field(True, description="train after each cut on the unpruned model's answers")
    retraining_free: bool = Field(
        False, description="train nothing: rescale what is left by least squares instead"
    )
    max_drop: float | None = Field(
        None, ge=0, description="most points of the metric to lose; more is refused"
    )
    epochs: int = Field(1, ge=1, description="passes over the training examples in each recovery")

    @property
    def cuts_parts(self) -> bool:
        """Whether heads or neurons are cut."""
        return bool(self.heads or self.ffn)

    @property
    def recovers(self) -> bool:
        """Whether anything is trained."""
        return self.recover and not self.retraining_free

    def refuse_idle(self) -> None:
        """Raise ConfigError where nothing would be pruned, or a setting would change nothing."""
        for refused, why in (*self._idle(), *self._contradicting()):
            if refused:
                raise ConfigError(why)

    def _idle(self) -> Iterator[tuple[bool, str]]:
        """Yield whether a setting would change nothing, and what is said then."""
        yield (
            not (self.cuts_parts or self.layers or self.vocab),
            "heads=0, ffn=0, layers=0 and no vocab: there is nothing to prune. Give the share of "
            "the heads or of the neurons to cut, as heads=0.4, how many layers, or vocab=task.",
        )
        yield (
            self.rounds > 1 and not self.cuts_parts,
            f"rounds={self.rounds}: only heads and neurons are cut in rounds. Give heads or ffn, "
            "or leave rounds out.",
        )
        yield (
            self.vocab_floor > 1 and self.vocab is None,
            f"vocab_floor={self.vocab_floor}: it counts the pieces of which texts? Give vocab.",
        )
        yield (
            self.retraining_free and not self.cuts_parts,
            "retraining_free=True: only heads and neurons that are left of a layer are rescaled. "
            "Give heads or ffn, or leave retraining_free out.",
        )

    def _contradicting(self) -> Iterator[tuple[bool, str]]:
        """Yield whether two settings contradict each other, and what is said then."""
        trained = sorted(OF_RECOVERY & self.model_fields_set)
        if "recover" in self.model_fields_set and self.recover:
            trained.append("recover")
        yield (
            self.retraining_free and bool(trained),
            f"retraining_free=True and {', '.join(f'{n}={getattr(self, n)}' for n in trained)}: "
            "nothing is trained then. Leave out one of the two.",
        )
