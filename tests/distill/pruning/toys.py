"""Models whose parts are worth little, and times that no clock has seen."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    PretrainedConfig,
    PreTrainedModel,
)

from bertender.core.findings import LatencyLoad
from bertender.core.machine import MachineLoad, Speedup
from bertender.models.families import encoder_layers, family_of
from bertender.models.own_models import PRUNABLE, head_size, heads_of, neurons_of
from distill.pruning.cutting import Remaining
from distill.pruning.latency import LatencyTable, Point, Stopwatches


def everything(config: PretrainedConfig) -> Remaining:
    """All heads and neurons of a model."""
    heads, neurons = (
        tuple(tuple(range(count)) for count in counts)
        for counts in (heads_of(config), neurons_of(config))
    )
    return Remaining(heads, neurons)


def with_copied_parts(model: PreTrainedModel, share: float = 0.5) -> PreTrainedModel:
    """Make head 1 and neuron 1 of each layer copies of 0 that write a share of what these write."""
    family, size = family_of(model), head_size(model.config)
    with torch.no_grad():
        for layer in encoder_layers(model):
            for part, width in ((family.projections, size), (family.feed_forward, 1)):
                weights = part.weights(layer)
                columns = weights.pop("output.weight")
                columns[:, width : 2 * width] = share * columns[:, :width]
                weights.pop("output.bias", None)
                for rows in weights.values():
                    rows[width : 2 * width] = rows[:width]
        if model.config.model_type == "mpnet":  # it adds a bias of its own to each head
            bias = model.base_model.encoder.relative_attention_bias.weight
            bias[:, 1] = bias[:, 0]
    return model


def twice_as_wide(model: PreTrainedModel, share: float) -> PreTrainedModel:
    """A BERT that answers the same with two of each head and neuron.

    The first of all pairs come first and write a share of what there was, the second the rest.
    """
    row, family = PRUNABLE["bert"], family_of(model)
    heads, neurons = ([2 * each for each in of(model.config)] for of in (heads_of, neurons_of))
    settings = {**model.config.to_dict(), "model_type": row.config.model_type}
    wider = row.classifier(row.config(**settings, heads_kept=heads, neurons_kept=neurons))
    weights, inner = (
        dict(model.state_dict()),
        [each.path for each in (*family.projections.inputs, *family.feed_forward.inputs)],
    )
    for name, weight in weights.items():
        if any(f".{path}." in name for path in inner):
            weights[name] = torch.cat([weight, weight])
        elif (
            f".{family.feed_forward.output}.weight" in name
        ):  # of attention too, which ends in the same words
            weights[name] = torch.cat([share * weight, (1 - share) * weight], 1)
    wider.load_state_dict(weights)
    return wider.eval()


def made_up_table(heads: int = 4, neurons: int = 64, **changes: Any) -> LatencyTable:
    """A head takes 0.5 ms and 16 neurons 1 ms, each part 0.25 ms besides, the rest 1 ms."""

    def points(most: int, each_ms: float) -> tuple[Point, ...]:
        counts = sorted({1, max(most // 2, 1), most})
        return tuple(Point(count=n, rounds_ms=(0.25 + n * each_ms,)) for n in counts)

    parts = {
        "load": LatencyLoad(texts=1, tokens=12, threads=1),
        "cpu_model": "made up",
        "attention": points(heads, 0.5),
        "feed_forward": points(neurons, 1 / 16),
        "rest_ms": (1.0,),
        "machine_load": MachineLoad(other_work=0.0, steal=0.0),
    }
    return LatencyTable.model_validate({**parts, **changes})


class MadeUpTimes(Stopwatches):
    """Times of the toys that no clock has seen."""

    def table(self, model: PreTrainedModel, load: LatencyLoad) -> LatencyTable:
        return made_up_table(load=load)

    def speedup(
        self, reference: PreTrainedModel, candidate: PreTrainedModel, load: LatencyLoad
    ) -> Speedup:
        return Speedup(value=2.5, low=2.25, high=2.75)


MADE_UP = MadeUpTimes()
