"""The head of a finished model, and the data that it is to learn or teach from next.

Its labels may be those of the data in another order, or others.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bertender.core.errors import ModelError
from bertender.problems.problem import Problem, are_unnamed
from bertender.tasks.task import Task, listed, matched_labels
from bertender.training.heads.numbers import output_layer

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

UNIT_TEXTS = 256
"""Training texts that tell whether a head's numbers have the unit of the data's."""
LEAST_CORRELATION = 0.2
"""From which numbers rise with the data's: of 256 random ones, one in a thousand does."""


def put_in_order(model: PreTrainedModel, own: Sequence[str], labels: Sequence[str]) -> None:
    """Reorder the output layer's rows of a model with the labels `own`, in place.

    Raises:
        ModelError: the model has no output layer with a row for each label.
    """
    if (layer := output_layer(model, len(own))) is None:
        raise ModelError(
            f"the teacher's labels are {listed(own)}, and those of the task {listed(labels)}: the "
            "same in another order, and this architecture has no output layer whose rows can be "
            "put in order. Give a teacher with the order of the task."
        )
    _reorder(layer, [own.index(label) for label in labels])
    model.config.id2label = dict(enumerate(labels))
    model.config.label2id = {label: number for number, label in enumerate(labels)}


def fit_head(
    source: str,
    model: PreTrainedModel,
    report: Mapping[str, Any],
    problem: Problem[Any],
    outputs: Sequence[str],
) -> None:
    """Order the outputs of a model's head as the labels of the data, or let it start anew.

    A head for the same labels keeps what it has learned of each. A head for others starts anew: its
    outputs would begin with the weights of labels that they are not.
    """
    from transformers import AutoConfig

    from bertender.core.hub import open_pretrained

    prefix = f"{model.base_model_prefix}."
    head = {key for key in model.state_dict() if not key.startswith(prefix)}
    if head <= {*report["missing_keys"]}:
        return  # no head
    names = open_pretrained(AutoConfig, source).id2label or {}
    theirs = [names[number] for number in sorted(names)]  # a file may have "10" before "2"
    if theirs == [*outputs]:
        return
    anew = (source, len(theirs), listed(theirs), len(outputs), listed(outputs))
    said = "the head of %s is for %d outputs (%s) and starts anew, for %d (%s); its encoder goes on"
    if head & {*report["mismatched_keys"]}:
        logger.warning(said, *anew)
        return
    if problem.places_are_labels:
        return  # the one output is a choice's score
    layer = output_layer(model, len(outputs))
    found = matched_labels(outputs, theirs) if problem.names_labels else None
    if not problem.names_labels or layer is None or (found and are_unnamed(theirs)):
        logger.warning(
            "the head of %s goes on with its encoder: what it has learned as %s is here %s, in "
            "this order",
            *(source, listed(theirs), listed(outputs)),
        )
    elif found is None:
        logger.warning(said, *anew)
        _start_anew(model, layer)
    else:
        logger.info("the head of %s goes on, its outputs ordered as %s", source, listed(outputs))
        _reorder(layer, [theirs.index(found[1][label]) for label in outputs])


def fit_unit(
    source: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task
) -> None:
    """Scale and shift the numbers of a trained head where the data's have another unit.

    It starts anew where its numbers do not rise with theirs. Training would take as many steps as
    the units are apart, and a correlation would show none of it.
    """
    import numpy as np

    from bertender.comparison.accuracy import error_of_unit
    from bertender.comparison.fitting import evaluated

    layer, texts = output_layer(model, 1), task.train.labelled.first(UNIT_TEXTS)
    if layer is None or layer.bias is None or not layer.bias.any() or not len(texts):
        return
    truth = np.asarray(texts.label_ids, dtype=np.float64)
    numbers = np.asarray(evaluated(model, tokenizer, task, texts)[1], dtype=np.float64)
    if error_of_unit(truth, numbers) is None:
        return
    (mean, spread), (own_mean, own_spread) = ((x.mean(), x.std()) for x in (truth, numbers))
    rises = min(spread, own_spread) > 0 and np.corrcoef(truth, numbers)[0, 1] > LEAST_CORRELATION
    if rises:
        layer.weight.data *= spread / own_spread
        layer.bias.data.copy_((layer.bias.data - own_mean) * (spread / own_spread) + mean)
    else:
        _start_anew(model, layer)
    logger.warning(
        "the head of %s gives numbers of mean %.4g and standard deviation %.4g, and the data have "
        "%.4g and %.4g: it %s",
        *(source, own_mean, own_spread, mean, spread),
        "is scaled to them" if rises else "starts anew, as its numbers do not rise with theirs",
    )


def _reorder(layer: torch.nn.Linear, places: Sequence[int]) -> None:
    for parameter in layer.parameters():
        parameter.data.copy_(parameter.data[[*places]])


def _start_anew(model: PreTrainedModel, layer: torch.nn.Linear) -> None:
    """Give the layer that computes the outputs the weights of a new head."""
    layer.weight.data.normal_(0, getattr(model.config, "initializer_range", 0.02))
    if layer.bias is not None:
        layer.bias.data.zero_()
