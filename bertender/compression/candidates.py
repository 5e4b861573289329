"""Candidates of a compression: every chain that the settings allow, as data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import Field

from bertender.compression.config import CompressConfig
from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.errors import ConfigError, HubUnreachableError, ModelError, UnknownNameError
from bertender.models.runtimes import DEFAULT_RUNTIME
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Task

# --- from bertender.compression.variants
# Variants of a trained model: how its graph is quantized, and the runtime that runs it.


class Variant(Record):
    """A scheme, a runtime, and the form of attention; a trained model may have any."""

    scheme: str
    runtime: str = Field(DEFAULT_RUNTIME, description="row of RUNTIMES that the graph is made for")
    fused_attention: bool = Field(False, description="whether each attention is one operator")

    @property
    def variant(self) -> Variant:
        """The variant alone, of what has more."""
        return Variant(
            scheme=self.scheme, runtime=self.runtime, fused_attention=self.fused_attention
        )

    @property
    def variant_name(self) -> str:
        """A name for tables and files."""
        fused = ["fused-attention"] if self.fused_attention else []
        elsewhere = [self.runtime] if self.runtime != DEFAULT_RUNTIME else []
        return "-".join([self.scheme, *fused, *elsewhere])

    @property
    def settings(self) -> dict[str, Any]:
        """Those of `quantize`, the defaults left out: a scheme may refuse what it does not read."""
        runtime = {"runtime": self.runtime} if self.runtime != DEFAULT_RUNTIME else {}
        fused = {"fused_attention": True} if self.fused_attention else {}
        return {"scheme": self.scheme, **runtime, **fused}


def variants_of(config: CompressConfig) -> list[Variant]:
    """Return the variants whose parts go together, the preferred first.

    All schemes in the first runtime come before another runtime, and plain attention before fused.

    Raises:
        ConfigError: a part that the user named goes with none of the others.
    """
    possible: list[Variant] = []
    refusals: dict[Variant, str] = {}
    for variant in _combinations(config):
        try:
            STAGES["quantize"].config.parse(variant.settings)
        except UnknownNameError as error:  # of `scheme`; runtimes are checked by the config
            raise UnknownNameError(error.kind, error.name, error.known, setting="schemes") from None
        except ConfigError as error:
            refusals[variant] = str(error)
        else:
            possible.append(variant)
    _check_all_used(config, possible, refusals)
    return possible


def _combinations(config: CompressConfig) -> Iterator[Variant]:
    attentions = (False, True) if config.fused_attention else (False,)
    names = (dict.fromkeys(each) for each in (config.runtimes, attentions, _schemes(config)))
    for runtime, fused, scheme in product(*names):
        yield Variant(scheme=scheme, runtime=runtime, fused_attention=fused)


def _schemes(config: CompressConfig) -> tuple[str, ...]:
    """Return the schemes; by default one more for other runtimes, which run it in integers."""
    if config.is_explicit("schemes") or set(config.runtimes) == {DEFAULT_RUNTIME}:
        return config.schemes
    return (*config.schemes, "static")


def _check_all_used(
    config: CompressConfig, possible: Sequence[Variant], refusals: Mapping[Variant, str]
) -> None:
    """Raise ConfigError for what the user named and no variant has."""
    parts: dict[str, Callable[[Variant], object]] = {
        "schemes": lambda variant: variant.scheme,
        "fused_attention": lambda variant: variant.fused_attention,
        "runtimes": lambda variant: variant.runtime,
    }
    for name, part in parts.items():
        used = {part(each) for each in possible}
        for variant, reason in refusals.items():
            if part(variant) not in used and config.is_explicit(name):
                raise ConfigError(
                    f"{name}={part(variant)}: no candidate can have it, with these schemes, "
                    f"runtimes and fused_attention. Of {variant.variant_name}, `quantize` says: "
                    f"{reason}"
                )


# --- from bertender.compression.candidates
# Candidates: every chain that the settings allow, as data.
#
# A candidate is a start, a depth, what pruning cuts, and a variant: how it is quantized and run.
# What
# it is made of is all that its bytes and its time depend on; what it learns decides its score.

DEPTHS = (1, 2, 3, 4, 6, 12)


class Start(Record):
    """Where a student begins: with the first layers of an encoder, or as a kind without layers."""

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

    The variant's fields are its own, as saved reports have them.
    """

    start: Start
    layers: int
    heads: float = Field(description="share of the heads to cut")
    ffn: float = Field(description="share of the feed-forward neurons to cut")
    vocab: bool = Field(description="whether the vocabulary is cut to what the texts need")

    @property
    def name(self) -> str:
        """A name for tables and folders."""
        return f"{self.shape_name}-{self.variant_name}"

    @property
    def shape_name(self) -> str:
        """The name without the variant: of what is trained."""
        cuts = [f"{part}-{100 * share:g}" for part, share in self._cuts() if share]
        vocab = ["vocab"] if self.vocab else []
        depth = [str(self.layers)] if self.layers else []
        return "-".join([self.start.name, *depth, *cuts, *vocab])

    @property
    def is_distilled(self) -> bool:
        """Whether a student is trained; the teacher itself is only pruned and quantized."""
        start = self.start
        return start.encoder is not None or not start.layers or self.layers < start.layers

    @property
    def is_pruned(self) -> bool:
        """Whether anything is cut."""
        return bool(self.heads or self.ffn or self.vocab)

    @property
    def remaining(self) -> float:
        """The layers' weights that remain, in whole layers: a third is attention's."""
        return self.layers * ((1 - self.heads) / 3 + 2 * (1 - self.ffn) / 3)

    def _cuts(self) -> Iterator[tuple[str, float]]:
        yield "heads", self.heads
        yield "ffn", self.ffn


def all_candidates(
    starts: Sequence[Start], config: CompressConfig, *, vocab: bool = True
) -> list[Candidate]:
    """Return every candidate that the settings allow.

    Args:
        starts: what students may start from.
        config: depths, shares, schemes and runtimes.
        vocab: whether the vocabulary of this task's models can be cut.

    Raises:
        ConfigError: a scheme or a runtime that is named goes with none of the others.
    """
    variants = variants_of(config)
    return [
        Candidate(start=start, layers=layers, heads=heads, ffn=ffn, vocab=cut, **dict(variant))
        for start in starts
        for layers in _depths(start, config)
        for heads, ffn, cut, variant in product(
            config.heads if layers else (0.0,),
            config.ffn if layers else (0.0,),
            (False, True) if vocab else (False,),
            variants,
        )
    ]


def _depths(start: Start, config: CompressConfig) -> list[int]:
    if not start.layers:
        return [0]
    wanted = config.layers or (*DEPTHS, start.layers)
    deepest = start.layers if start.most_layers is None else start.most_layers
    return sorted({layers for layers in wanted if start.fewest_layers <= layers <= deepest})


# --- from bertender.compression.starts
# Where students may start from: the teacher's own layers, encoders, and nothing at all.

logger = logging.getLogger(__name__)

OWN = "teacher"


def starts_of(teacher: Artifact, task: Task, config: CompressConfig) -> list[Start]:
    """Return the starts that a config allows; a default one that is not there is left out.

    Raises:
        ModelError, HubUnreachableError: one that the user named cannot be had.
        ConfigError: a method that the user named does not train on such a task.
    """
    from distill.teachers.encoders import depth_of  # it loads PyTorch

    own = str(teacher.path)
    starts = _own_starts(depth_of(own), _least_entries(own), config)
    for name in dict.fromkeys(config.students):
        try:
            made = _start(name, task)
        except (ConfigError, ModelError, HubUnreachableError) as error:
            if config.is_explicit("students"):
                raise
            logger.warning("no student starts from %s: %s", name, error)
            continue
        free = _free_name(made.name, [start.name for start in starts])
        # a kind without layers reads the teacher's tokens
        entries = _least_entries(made.encoder or own)
        starts.append(made.model_copy(update={"name": free, "least_entries": entries}))
    return starts


def _own_starts(layers: int, least_entries: int, config: CompressConfig) -> list[Start]:
    """Return the teacher's own layers; of several methods, each alone, and the whole teacher."""
    own = Start(name=OWN, layers=layers, least_entries=least_entries)
    methods = [*dict.fromkeys(config.method)]
    if len(methods) < 2:
        return [own.model_copy(update={"method": next(iter(methods), None)})]
    shorter = {"most_layers": layers - 1}
    return [
        own.model_copy(update={"fewest_layers": layers}),  # which no method trains
        *(
            own.model_copy(update={"name": f"{OWN}-{method}", "method": method, **shorter})
            for method in methods
        ),
    ]


def _start(name: str, task: Task) -> Start:
    """Return the start of a name: of a method whose student has no layers, else an encoder."""
    from distill.methods import METHODS
    from distill.teachers.encoders import depth_of

    if name not in METHODS or "layers" not in METHODS[name].student.lacks:
        return Start(name=Path(name).name, layers=depth_of(name), encoder=name)
    distill = STAGES["distill"]
    distill.check(distill.config.parse({"method": name}), task)
    return Start(name=name, layers=0, method=name)


def _least_entries(encoder: str) -> int:
    """Return how many entries of an encoder's vocabulary always remain.

    0 where it cannot be cut: a step that shall cut it says why.
    """
    from bertender.text.tokenizer import load_tokenizer
    from distill.pretraining.vocabulary_cutting import least_entries
    from distill.teachers.encoders import located

    try:
        return least_entries(load_tokenizer(located(encoder)))
    except ModelError:
        return 0


def _free_name(name: str, taken: list[str]) -> str:
    """Return a name that no start has: folders of one name may lie in different places."""
    names = [name, *(f"{name}-{number}" for number in range(2, len(taken) + 3))]
    return next(each for each in names if each not in taken)
