"""BASELINE: the bag of words.

What does the work loads scikit-learn and is imported where it runs: settings are read without it.
"""

from __future__ import annotations

from pathlib import Path

from bertender.core.artifact import Artifact
from bertender.pipeline.products import Product
from bertender.pipeline.stage import Inputs, Stage
from bertender.problems import SINGLE_LABEL
from distill.finetuning.config import BagOfWordsConfig

__all__ = ["BASELINE"]


def _baseline(inputs: Inputs, config: BagOfWordsConfig, out: Path) -> Artifact:
    from distill.finetuning.baseline import train_bag_of_words

    return train_bag_of_words(inputs.task, config, out)


BASELINE = Stage(
    name="baseline",
    config=BagOfWordsConfig,
    problem_types=(SINGLE_LABEL.name,),
    function=_baseline,
    sources=(0,),
    makes=lambda config: Product("baseline", "bag-of-words"),
)
