"""Bytes and time of models that were not made, from a few that were.

Both are sums over what a model is made of: something fixed, and something for each layer, for its
heads, for its neurons and for each entry of the vocabulary, which time does not depend on. So a
least-squares fit through a few measured models of one start and variant predicts the rest.
Attention computes in whole heads and the runtime in blocks of neurons, so that the fit is near and
not exact; how near is a row of the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bertender.compression.candidates import Candidate
from bertender.compression.records import Cost, Probe

__all__ = ["CostModel", "fitted"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CostModel:
    """Predicts the costs of candidates of one start and variant."""

    bytes_of: Floats
    """(5,): fixed, a layer, its attention, its feed-forward part, an entry of the vocabulary."""
    ms_of: Floats
    """(4,): the same without the vocabulary."""
    entries: Mapping[bool, int]
    """The vocabulary's size, cut or not."""
    depths: tuple[int, int]
    """The fewest and the most layers that it was fitted to."""

    def covers(self, candidate: Candidate) -> bool:
        """Return whether a candidate's depth lies in what it was fitted to."""
        fewest, most = self.depths
        return fewest <= candidate.layers <= most

    def predict(self, candidate: Candidate) -> Cost:
        """Return what a candidate will weigh and take."""
        layers = _layers(candidate)
        size = float(self.bytes_of @ [*layers, self.entries[candidate.vocab]])
        return Cost(model_mb=max(size, 0.0) / 1e6, single_ms=max(float(self.ms_of @ layers), 0.0))


def fitted(probes: Sequence[Probe]) -> CostModel:
    """Return the costs that probes of one start and variant have, by least squares."""
    layers = np.array([_layers(probe.candidate) for probe in probes])
    entries = np.array([probe.entries for probe in probes])
    sizes = np.array([1e6 * probe.cost.model_mb for probe in probes])
    depths = [probe.candidate.layers for probe in probes]
    times_ms = np.array([probe.cost.single_ms for probe in probes])
    return CostModel(
        bytes_of=_least_squares(np.column_stack([layers, entries]), sizes),
        ms_of=_least_squares(layers, times_ms),
        depths=(min(depths), max(depths)),
        entries={probe.candidate.vocab: probe.entries for probe in probes},
    )


def _layers(candidate: Candidate) -> list[float]:
    depth = candidate.layers
    return [1.0, depth, depth * (1 - candidate.heads), depth * (1 - candidate.ffn)]


def _least_squares(rows: Floats, values: Floats) -> Floats:
    """Return the weights of the columns; columns that rows cannot tell apart share theirs."""
    scale = np.abs(rows).max(0)
    scale[scale == 0] = 1  # of a part that no model here has
    weights, *_ = np.linalg.lstsq(rows / scale, values, rcond=None)
    return np.asarray(weights / scale)
