"""Candidates of a compression: every chain that the settings allow, as data.

A candidate is a start, a depth, the shares that pruning cuts, and a variant: how it is quantized
and run. Size and latency depend on these alone; the score depends on training.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import Field

from bertender.compression.config import CompressConfig
from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.errors import (
    ConfigError,
    HubUnreachableError,
    ModelError,
    UnknownNameError,
)
from bertender.models.runtimes import DEFAULT_RUNTIME
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Task

logger = logging.getLogger(__name__)

DEPTHS = (1, 2, 3, 4, 6, 12)
OWN = "teacher"
"""Name of the start with the teacher's own layers."""


class Variant(Record):
    """A scheme, a runtime, and the form of attention; a trained model may have any variant."""

    scheme: str
    runtime: str = Field(DEFAULT_RUNTIME, description="row of RUNTIMES that the graph is made for")
    fused_attention: bool = Field(False, description="whether each attention is one operator")

    @property
    def variant(self) -> Variant:
        """The variant of an object that has more fields."""
        return Variant(
            scheme=self.scheme, runtime=self.runtime, fused_attention=self.fused_attention
        )

    @property
    def variant_name(self) -> str:
        """Name for tables and files."""
        fused = ["fused-attention"] if self.fused_attention else []
        elsewhere = [self.runtime] if self.runtime != DEFAULT_RUNTIME else []
        return "-".join([self.scheme, *fused, *elsewhere])

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of `quantize`, without its defaults: a scheme may refuse settings that it does
        not read."""
        runtime = {"runtime": self.runtime} if self.runtime != DEFAULT_RUNTIME else {}
        fused = {"fused_attention": True} if self.fused_attention else {}
        return {"scheme": self.scheme, **runtime, **fused}


class Start(Record):
    """Where a student begins: with the first layers of an encoder, or as a model without layers."""

    name: str
    layers: int = Field(description="all that it has; 0 of a kind without layers")
    encoder: str | None = Field(None, description="None: the teacher's own layers, or none")
    method: str | None = Field(
        None, description="of `bertender methods`; None: what the start has by default"
    )
    fewest_layers: int = Field(1, description="of a student of it")
    most_layers: int | None = Field(None, description="of a student of it; None: all that it has")
    least_entries: int = Field(0, description="of its vocabulary, that stay whatever is cut")


class Candidate(Variant):
    """A chain of steps, from the teacher to a quantized model.

    The variant's fields are repeated here, as saved reports have them.
    """

    start: Start
    layers: int
    heads: float = Field(description="share of the heads to cut")
    ffn: float = Field(description="share of the feed-forward neurons to cut")
    vocab: bool = Field(description="whether the vocabulary is cut to what the texts need")

    @property
    def name(self) -> str:
        """Name for tables and folders."""
        return f"{self.shape_name}-{self.variant_name}"

    @property
    def shape_name(self) -> str:
        """Name without the variant, for training."""
        depth = [str(self.layers)] if self.layers else []
        heads = [f"heads-{100 * self.heads:g}"] if self.heads else []
        ffn = [f"ffn-{100 * self.ffn:g}"] if self.ffn else []
        vocab = ["vocab"] if self.vocab else []
        return "-".join([self.start.name, *depth, *heads, *ffn, *vocab])

    @property
    def is_distilled(self) -> bool:
        """Whether a student is trained; the teacher itself is only pruned and quantized."""
        start = self.start
        return start.encoder is not None or not start.layers or self.layers < start.layers

    @property
    def remaining(self) -> float:
        """Weights of the remaining layers, in whole layers; attention is a third of a layer."""
        return self.layers * ((1 - self.heads) / 3 + 2 * (1 - self.ffn) / 3)


def all_candidates(
    starts: Sequence[Start], config: CompressConfig, *, vocab: bool = True
) -> list[Candidate]:
    """Return every candidate that the settings allow.

    Args:
        starts: what students may start from.
        config: depths, shares, schemes and runtimes.
        vocab: whether some candidates have a smaller vocabulary.

    Raises:
        ConfigError: a scheme or runtime in the settings fits none of the others.
    """
    candidates, variants = [], variants_of(config)
    for start in starts:
        deepest = start.layers if start.most_layers is None else start.most_layers
        wanted = {*(config.layers or (*DEPTHS, start.layers))} if start.layers else {0}
        least = start.fewest_layers if start.layers else 0
        for layers in sorted(depth for depth in wanted if least <= depth <= deepest):
            choices = product(
                config.heads if layers else (0.0,),
                config.ffn if layers else (0.0,),
                (False, True) if vocab else (False,),
                variants,
            )
            candidates += [
                Candidate(
                    start=start, layers=layers, heads=heads, ffn=ffn, vocab=cut, **dict(variant)
                )
                for heads, ffn, cut, variant in choices
            ]
    return candidates


def cuts_vocabulary(task: Task, config: CompressConfig) -> bool:
    """Return whether some candidates have a smaller vocabulary; for vectors, only if its size is
    set.

    Raises:
        ConfigError: its size is set, but models of this task read all tokens.
    """
    explicit = [name for name in ("vocab_floor", "vocab_size") if config.is_explicit(name)]
    if explicit and task.problem.per_token:
        raise ConfigError(
            f"{config.as_set(explicit)}: tags and answers are learned token by token, so that all "
            f"tokens stay, and task {task.name!r} is one of {task.problem_type!r}. Leave out what "
            "is named."
        )
    return bool(explicit) or not task.problem.keeps_vocabulary


def variants_of(config: CompressConfig) -> list[Variant]:
    """Return the variants whose parts go together, the preferred first.

    All schemes in the first runtime come before the next runtime, and plain attention before fused.

    Raises:
        ConfigError: a scheme or runtime that the user named fits none of the others.
    """
    schemes = config.schemes
    if not config.is_explicit("schemes") and set(config.runtimes) != {DEFAULT_RUNTIME}:
        schemes = (*schemes, "static")  # the scheme for runtimes without dynamic scales
    attentions = (False, True) if config.fused_attention else (False,)
    possible: list[Variant] = []
    refusals: dict[Variant, str] = {}
    parts = (dict.fromkeys(each) for each in (config.runtimes, attentions, schemes))
    for runtime, fused, scheme in product(*parts):
        variant = Variant(scheme=scheme, runtime=runtime, fused_attention=fused)
        try:
            STAGES["quantize"].config.parse(variant.settings)
        except UnknownNameError as error:  # of `scheme`; the config checks runtimes
            raise UnknownNameError(error.kind, error.name, error.known, setting="schemes") from None
        except ConfigError as error:
            refusals[variant] = str(error)
        else:
            possible.append(variant)
    for setting, part in {
        "schemes": "scheme",
        "fused_attention": "fused_attention",
        "runtimes": "runtime",
    }.items():
        used = {getattr(each, part) for each in possible}
        for variant, reason in refusals.items():
            value = getattr(variant, part)
            if value not in used and config.is_explicit(setting):
                raise ConfigError(
                    f"{setting}={value}: no candidate can have it, with these schemes, runtimes "
                    f"and fused_attention. Of {variant.variant_name}, `quantize` says: {reason}"
                )
    return possible


def starts_of(teacher: Artifact, task: Task, config: CompressConfig) -> list[Start]:
    """Return the possible starts: the teacher's own layers, encoders, and methods without layers.

    A missing default start is left out.

    Raises:
        ModelError, HubUnreachableError: a start that the user named cannot be loaded.
        ConfigError: a method that the user named does not train on this kind of task.
    """
    from distill.teachers.encoders import depth_of

    own = str(teacher.path)
    whole = Start(name=OWN, layers=depth_of(own), least_entries=_least_entries(own))
    methods = [*dict.fromkeys(config.method)]
    if len(methods) < 2:
        starts = [whole.model_copy(update={"method": next(iter(methods), None)})]
    else:  # each method alone, and the whole teacher, which no method trains
        starts = [whole.model_copy(update={"fewest_layers": whole.layers})]
        for method in methods:
            shorter = {"name": f"{OWN}-{method}", "method": method, "most_layers": whole.layers - 1}
            starts.append(whole.model_copy(update=shorter))
    for name in dict.fromkeys(config.students):
        try:
            made = _start(name, task)
        except (ConfigError, ModelError, HubUnreachableError) as error:
            if config.is_explicit("students"):
                raise
            logger.warning("no student starts from %s: %s", name, error)
            continue
        taken = {start.name for start in starts}  # folders in several places may share a name
        names = [made.name, *(f"{made.name}-{number}" for number in range(2, len(taken) + 3))]
        free = next(each for each in names if each not in taken)
        # a model without layers reads the teacher's tokens
        entries = _least_entries(made.encoder or own)
        starts.append(made.model_copy(update={"name": free, "least_entries": entries}))
    return starts


def _start(name: str, task: Task) -> Start:
    """Return the start for a name: a method whose student has no layers, else an encoder."""
    from distill.methods import METHODS
    from distill.teachers.encoders import depth_of

    if name not in METHODS or "layers" not in METHODS[name].student.lacks:
        return Start(name=Path(name).name, layers=depth_of(name), encoder=name)
    distill = STAGES["distill"]
    distill.check(distill.config.parse({"method": name}), task)
    return Start(name=name, layers=0, method=name)


def _least_entries(encoder: str) -> int:
    """Return how many entries of an encoder's vocabulary always remain.

    0 where the vocabulary cannot be cut: the step that would cut it explains why.
    """
    from bertender.text.tokenizer import load_tokenizer
    from distill.pretraining.vocabulary_cutting import least_entries
    from distill.teachers.encoders import located

    try:
        return least_entries(load_tokenizer(located(encoder)))
    except ModelError:
        return 0
