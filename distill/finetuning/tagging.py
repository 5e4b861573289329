"""Teachers that tag words: fine-tuning an encoder on the tags of a task.

It runs on the path of text classifiers, `finetune.train_on_labels`, with a label for each token.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.artifact import Artifact
from bertender.tasks.tagging import TaggingTask
from distill.data import tagged_dataset
from distill.finetuning.finetune import FinetuneConfig, train_on_labels
from distill.scoring import tagging_score
from distill.teachers.encoders import find_encoder, load_tagger
from distill.writing import artifact_at

__all__ = ["finetune_tagger", "finetune_tagger_by_name"]


def finetune_tagger_by_name(task: TaggingTask, config: FinetuneConfig, out: Path) -> Artifact:
    """Find and load the encoder that `config.teacher` names, then `finetune_tagger` it."""
    source = find_encoder(config.teacher)
    torch.manual_seed(config.seed)  # the new head is random
    model, tokenizer = load_tagger(source, task.labels)
    return finetune_tagger(model, tokenizer, task, config, out, parent=artifact_at(source))


def finetune_tagger(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: TaggingTask,
    config: FinetuneConfig,
    out: Path,
    *,
    parent: Artifact | None = None,
) -> Artifact:
    """Fine-tune a token classifier on a tagging task and write it as a torch artifact.

    Args:
        model: any AutoModelForTokenClassification, with a head over the task's labels.
        tokenizer: its tokenizer, a fast one.
        task: training and held-out sentences.
        config: see FinetuneConfig; `config.teacher` is only recorded here.
        out: directory of the artifact.
        parent: the pre-trained artifact that the model came from, if it was one.

    Raises:
        ConfigError: settings that conflict, found before anything is read or trained.
    """
    config.check_rules()
    examples = tagged_dataset(task.train, tokenizer, config.max_length)
    score = partial(tagging_score, tokenizer=tokenizer, task=task, max_length=config.max_length)
    return train_on_labels(model, tokenizer, task, examples, config, out, score, parent=parent)
