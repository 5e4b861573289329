"""Mixed precision: the parts that suffer most go back until the score holds.

Shen et al. 2020 (Q-BERT, arXiv 1909.05840): sensitive layers get more bits. There the bits are set
once, from the sensitivity alone; here a part at a time goes back, the most sensitive first, until
the score on held-out texts has lost no more than `max_drop`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bertender.core.errors import AccuracyError, ConfigError
from bertender.core.progress import progress_bar
from quantize.dynamic import write_dynamic
from quantize.job import Job, Written
from quantize.sensitivity import SENSITIVITIES, Write
from quantize.static import calibrated_ranges, write_with_ranges

__all__ = ["BASES", "returned", "write_mixed"]


def _dynamic(job: Job) -> Write:
    return write_dynamic


def _static(job: Job) -> Write:
    """Calibrate once, for all the graphs that are tried."""
    ranges = calibrated_ranges(job)
    return lambda job, target, left: write_with_ranges(job, target, ranges, left)


BASES = {"dynamic": _dynamic, "static": _static}
"""How the parts that stay quantized are."""


def write_mixed(job: Job, target: Path) -> Written:
    """Quantize the job's graph into `target`, except what must stay in float for its score."""
    if job.config.max_drop is None:
        raise ConfigError(
            "scheme 'mixed' returns parts to float until the score holds: say how much of it may "
            "be lost, in points, as --max-drop 0.5. Without a bound, take --scheme dynamic."
        )
    tables = [] if job.config.no_embeddings else [*job.inventory.tables]
    nodes = [*(product.node for product in job.inventory.products), *tables]
    return returned(job, target, BASES[job.config.base](job), "float", nodes)


def returned(job: Job, target: Path, write: Write, level: str, nodes: Sequence[str]) -> Written:
    """Return parts to what they were before, the most sensitive first, until the score holds.

    Args:
        job: its `max_drop` is what may be lost.
        target: the graph to write.
        write: quantizes all but some nodes.
        level: what a part returns to, in words.
        nodes: the parts that may return.

    Raises:
        AccuracyError: the score does not hold with all of them returned.
    """
    allowed = job.config.max_drop
    assert allowed is not None
    sensitivities = SENSITIVITIES[job.config.sensitivity].measure(job, write, nodes)
    ranking = sorted(nodes, key=lambda node: -sensitivities[node])
    tried = []
    with progress_bar(f"return to {level}", len(ranking)) as bar:
        for count in range(len(ranking)):
            written = write(job, target, ranking[:count])
            drop = job.drop(job.score(target))
            tried.append(drop)
            if drop <= allowed:
                return _told(written, ranking[:count], sensitivities, tried, level)
            bar.advance()
    raise AccuracyError(
        f"with one part of {len(ranking)} quantized, the model still lost {min(tried):.4g} points "
        f"of {job.task.metric} at best, and max_drop={allowed:g} allows no more. Keep "
        "the float model, or try --scheme qat."
    )


def _told(
    written: Written,
    back: list[str],
    sensitivities: Mapping[str, float],
    tried: list[float],
    level: str,
) -> Written:
    reasons = {
        node: f"returned to {level}: number {place} of {len(sensitivities)} in sensitivity "
        f"({sensitivities[node]:.3g}), and without it the score fell by {drop:.4g} points"
        for place, (node, drop) in enumerate(zip(back, tried, strict=False), start=1)
    }
    table = dict(sorted(sensitivities.items(), key=lambda row: -row[1]))
    found = {**written.found, "sensitivity": table, "drops": tried}
    return Written(written.quantized, {**written.float_nodes, **reasons}, found)
