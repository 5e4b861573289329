"""Fine-tuning an encoder on a task, or on several tasks at once.

The whole classifier is trained, or its head alone, or one more layer at a time from the top.

Several tasks: MT-DNN (Liu et al. 2019, arXiv 1901.11504).
Model: one encoder for all tasks and a head for each (section 3). Training, Algorithm 1: each task's
examples are packed into mini-batches, the batches of all tasks are shuffled together in every
epoch, and each step minimises the loss of its batch's task. A task's share of the steps is thus
proportional to its size, and its head learns from its own batches alone.
Departures: heads are the architecture's classification heads, with their pooler on [CLS] if any,
for pairs too (the paper reads pairs with a stochastic answer network); the loss is cross-entropy
alone (the paper has regression and ranking tasks as well); the optimizer is AdamW with the settings
of every other stage instead of Adamax.
`finetune --task A --more-tasks B,C --out OUT` writes OUT, OUT-B and OUT-C, each a plain classifier.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertender.comparison.accuracy import SETTINGS_OF_RUN, another_rate, check_varied
from bertender.comparison.fitting import epoch_score, final_score
from bertender.core.artifact import Artifact, check_writable
from bertender.core.build_once import work_directory
from bertender.core.errors import ConfigError, ModelError
from bertender.core.findings import Findings, OtherTask
from bertender.core.machine import is_main_process, wait_for_processes
from bertender.models.classifier import model_inputs
from bertender.models.families import encoder_layers
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.tasks.loading import load_task
from bertender.tasks.task import Task, TaskConfig
from bertender.training.checkpoint import start_digest
from bertender.training.examples import (
    TASK_COLUMN,
    TensorBatch,
    TokenDataset,
    cut_at,
    token_dataset,
    usual_length,
)
from bertender.training.heads import HEADS, head_of
from bertender.training.heads.head import Head
from bertender.training.loop import planned, train, training_findings
from bertender.training.steps import LossParts, Objective, switch_off_dropout
from distill.finetuning.adversarial import FreeLB
from distill.finetuning.config import (
    FinetuneConfig,
    MultiTaskConfig,
    check_distinct,
    check_task,
    check_word_labels,
    sibling_paths,
)
from distill.teachers.encoders import find_encoder, load_classifier, load_to_learn
from distill.trained import artifact_at, write_trained

logger = logging.getLogger(__name__)


def finetune_by_name(task: Task, config: FinetuneConfig, out: Path) -> Artifact:
    """Load the encoder that `config.teacher` names, then `finetune` it."""
    source = find_encoder(config.teacher)
    parent = artifact_at(source)
    check_writable(out, parent)
    torch.manual_seed(config.seed)  # the new head is random
    model, tokenizer = load_to_learn(source, task)
    head_of(task.problem).begin(model, task.train.label_ids)
    return finetune(model, tokenizer, task, config, out, parent=parent)


def finetune(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    config: FinetuneConfig,
    out: Path,
    *,
    parent: Artifact | None = None,
) -> Artifact:
    """Fine-tune a classifier of texts or words on a task and write it as a torch artifact.

    Args:
        model: a model with the head of the task's problem type (HEADS), over the task's labels.
        tokenizer: its tokenizer.
        task: training and held-out examples.
        config: see FinetuneConfig; `config.teacher` is only recorded here.
        out: directory of the artifact.
        parent: the pre-trained artifact that the model came from, if any.

    Raises:
        ConfigError: `max_length` exceeds the model's positions; raised before training starts.
        ConstantError: the trained model predicts only one label. Its checkpoints stay.
    """
    config.check_rules()
    check_task(task, config)
    config = config.paced()
    keeping = config.keeping(len(task.selection) > 0)
    head = head_of(task.problem).configured(config, task)
    max_length = config.max_length or usual_length([task], tokenizer, config.windows)
    tokenizer = cut_at(tokenizer, max_length, model.config, config.windows)
    examples = token_dataset(task.train, tokenizer, task.problem_type)
    identity = (task.fingerprint(), start_digest(model, tokenizer), parent and parent.digest)
    with (
        work_directory(out, "finetune", config.shaping(), *identity) as work,
        trained_parts(model, config),
    ):
        report = train(
            model,
            examples,
            with_settings(partial(label_objective, head=head), model, examples, config),
            config,
            work,
            description=f"fine-tune {out.name}",
            at_epoch_end=partial(epoch_score, tokenizer=tokenizer, task=task, config=config),
            keeping=keeping,
        )
        scores = final_score(model, tokenizer, task)
        check_varied(scores, task, config, SETTINGS_OF_RUN, _advice(config))
        findings = Findings(training=training_findings({"labels": report}), scores=scores)
        if is_main_process():
            written: dict[str, Any] = {"stage": "finetune", "config": config, "parent": parent}
            write_trained(model, tokenizer, task, findings, out=out, **written)
        wait_for_processes()
    return Artifact.load(out)


def _advice(config: FinetuneConfig) -> str:
    """Return advice for a model that has learned nothing."""
    return f"{another_rate(config)}, more epochs, or another seed"


def with_settings(
    objective: Objective, model: nn.Module, examples: TokenDataset, config: FinetuneConfig
) -> Objective:
    """Return the objective with adversarial training and gradual unfreezing, where set."""
    if config.freeze == "gradual":
        objective = GradualUnfreezing(objective, model, len(planned(examples, config)))
    if config.adversarial:
        objective = FreeLB(objective, config.adversarial_steps, config.adversarial_radius)
    return objective


def label_objective(
    model: torch.nn.Module, batch: TensorBatch, step: int, *, head: Head = HEADS[SINGLE_LABEL.name]
) -> LossParts:
    """Cross-entropy with the labels."""
    return {"hard": head.hard_loss(head.logits(model(**model_inputs(model, batch)), batch), batch)}


class SharedEncoder(nn.Module):
    """Classifiers of one architecture, one per task, that share the first one's encoder.

    Args:
        classifiers: transformers models; all but the first have their encoder replaced in place.
    """

    def __init__(self, classifiers: Sequence[PreTrainedModel]) -> None:
        super().__init__()
        first, *others = classifiers
        for other in others:
            for name, part in first.base_model.named_children():
                if name not in PARTS_OF_HEADS:
                    setattr(other.base_model, name, part)
        self.classifiers = nn.ModuleList(classifiers)

    def forward(self, batch: TensorBatch) -> torch.Tensor:
        """Return the logits (batch, labels) for the batch's task."""
        classifier = self.of_task(_task_number(batch))
        logits: torch.Tensor = classifier(**model_inputs(classifier, batch)).logits
        return logits

    def of_task(self, number: int) -> PreTrainedModel:
        """Return the classifier of a task by its number."""
        classifier = self.classifiers[number]
        assert isinstance(classifier, PreTrainedModel)
        return classifier


def finetune_tasks_by_name(task: Task, config: MultiTaskConfig, out: Path) -> Artifact:
    """Load what the config names and fine-tune it on one task or on several.

    Raises:
        ConfigError: the main task is among `more_tasks`.
        ArtifactError: one of the artifacts cannot be written where it belongs.
    """
    if not config.more_tasks:
        return finetune_by_name(task, config, out)
    check_distinct((task.name, *config.more_tasks))
    check_word_labels(task, config)
    source = find_encoder(config.teacher)
    parent = artifact_at(source)
    for path in (out, *sibling_paths(config, out)):
        check_writable(path, parent)
    # with the same limits on examples and the same share of validation texts
    names = ("max_train", "max_dev", "max_select", "select")
    limits = {name: task.source[name] for name in names if name in task.source}
    more = (load_task(TaskConfig(task=name, **limits)) for name in config.more_tasks)
    tasks = (task, *more)
    torch.manual_seed(config.seed)  # the new heads are random
    loaded = [load_classifier(source, each.labels) for each in tasks]
    classifiers, tokenizers = zip(*loaded, strict=True)
    return finetune_tasks(classifiers, tokenizers[0], tasks, config, out, parent=parent)


def finetune_tasks(
    classifiers: Sequence[PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    tasks: Sequence[Task],
    config: MultiTaskConfig,
    out: Path,
    *,
    parent: Artifact | None = None,
) -> Artifact:
    """Fine-tune one encoder with a head for each task; write an artifact for each task.

    Args:
        classifiers: one for each task, with a head over its labels.
        tokenizer: tokenizer of all classifiers.
        tasks: the main task first, then `config.more_tasks`.
        config: see MultiTaskConfig; `config.teacher` is only recorded here.
        out: directory of the main task's artifact, which is written last.
        parent: the pre-trained artifact that the models came from, if any.

    Returns:
        The main task's artifact.

    Raises:
        ConstantError: a classifier predicts only one label. No artifact is written.
    """
    config.check_rules()
    config = config.paced()
    keeping = config.keeping(all(len(each.selection) for each in tasks))
    heads = {each.name: head_of(each.problem).configured(config, each) for each in tasks}
    max_length = config.max_length or usual_length(tasks, tokenizer)
    tokenizer = cut_at(tokenizer, max_length, classifiers[0].config)
    shared = SharedEncoder(classifiers)
    prints = [task.fingerprint() for task in tasks]
    identity = (prints, start_digest(classifiers[0], tokenizer), parent and parent.digest)

    def score(trained: SharedEncoder) -> dict[str, float]:
        """Return each task's validation score, by task and metric name."""
        return {
            f"{task.name} {metric}": value
            for number, task in enumerate(tasks)
            for metric, value in epoch_score(
                trained.of_task(number), tokenizer, task, config
            ).items()
        }

    examples = joined([token_dataset(each.train, tokenizer) for each in tasks])
    with (
        work_directory(out, "finetune", config.shaping(), *identity) as work,
        trained_parts(shared, config),
    ):
        report = train(
            shared,
            examples,
            with_settings(objective_of(heads), shared, examples, config),
            config,
            work,
            description=f"fine-tune {out.name}",
            at_epoch_end=score,
            keeping=keeping,
        )
        scores = []
        for task, classifier in zip(tasks, classifiers, strict=True):
            scores.append(final_score(classifier, tokenizer, task))
            check_varied(scores[-1], task, config, SETTINGS_OF_RUN, _advice(config))

        if is_main_process():
            paths = (out, *sibling_paths(config, out))
            epochs = [
                [{task.metric: each[f"{task.name} {task.metric}"]} for each in report.epochs]
                for task in tasks
            ]
            # the main artifact comes last: its card names all others
            for number in reversed(range(len(tasks))):
                others = {
                    other.name: OtherTask(artifact=paths[place].name, epochs=epochs[place])
                    for place, other in enumerate(tasks)
                    if place != number
                }
                own = replace(report, epochs=epochs[number])
                training = training_findings({"labels": own}, together=others)
                write_trained(
                    classifiers[number],
                    tokenizer,
                    tasks[number],
                    Findings(training=training, scores=scores[number]),
                    out=paths[number],
                    stage="finetune",
                    config=config,
                    parent=parent,
                )
        wait_for_processes()
    return Artifact.load(out)


def joined(parts: Sequence[TokenDataset]) -> TokenDataset:
    """Return the examples of all tasks as one dataset, with a column of task numbers."""
    columns = {
        name: [value for part in parts for value in part.columns[name]] for name in parts[0].columns
    }
    numbers = [number for number, part in enumerate(parts) for _ in range(len(part))]
    return TokenDataset({**columns, TASK_COLUMN: numbers}, parts[0].padding)


def objective_of(heads: Mapping[str, Head]) -> Objective:
    """Return the objective of several tasks: the loss of each batch's task, by its name."""
    names = [*heads]

    def objective(model: nn.Module, batch: TensorBatch, step: int) -> LossParts:
        name = names[_task_number(batch)]
        return {name: heads[name].hard_loss(model(batch), batch)}

    return objective


def _task_number(batch: TensorBatch) -> int:
    return int(batch[TASK_COLUMN][0])  # a batch has examples of one task


PARTS_OF_HEADS = frozenset({"pooler"})
"""Modules of the base model in transformers, but of the head in the paper. They narrow [CLS] to the
needs of one task: if shared, the task that learns first keeps the others from learning."""

Weights = list[nn.Parameter]


@contextmanager
def trained_parts(model: nn.Module, config: FinetuneConfig) -> Iterator[None]:
    """Train all of a model of one or several classifiers, or its heads alone or first
    (`config.freeze`).

    A frozen encoder is the feature-based approach of Devlin et al. 2019 (arXiv 1810.04805, section
    5.3), with the last layer alone: a weighted sum of layers is no plain classifier, and other
    programs could not open it. It drops no values, so that the head learns on what it reads later.
    """
    held = weights_below_heads(model) if config.freeze else []
    if config.freeze and not held:
        raise ConfigError(
            f"freeze={config.freeze}: of this architecture, no encoder is known apart from its "
            "head. Leave it out."
        )
    with ExitStack() as hooks:
        if config.freeze == "encoder":
            for weight in held:
                weight.requires_grad_(False)
            for encoder in encoders_in(model):
                hooks.enter_context(encoder.register_forward_pre_hook(_without_dropout))
        try:
            yield
        finally:
            for weight in held:
                weight.requires_grad_(True)


def _without_dropout(encoder: nn.Module, inputs: object) -> None:
    switch_off_dropout(encoder)


def weights_below_heads(model: nn.Module) -> Weights:
    """Return the trainable weights of the encoder that one or several classifiers use."""
    return [
        weight
        for encoder in encoders_in(model)
        for name, weight in encoder.named_parameters()
        if weight.requires_grad and name.split(".")[0] not in PARTS_OF_HEADS
    ]


def encoders_in(model: nn.Module) -> list[nn.Module]:
    """Return the encoders of one or several classifiers, which have heads besides."""
    own = (each.base_model for each in _models_in(model) if each.base_model is not each)
    return [*dict.fromkeys(own)]


def _models_in(model: nn.Module) -> list[PreTrainedModel]:
    return [each for each in model.modules() if isinstance(each, PreTrainedModel)]


class GradualUnfreezing:
    """Gradual unfreezing (Howard and Ruder 2018, ULMFiT, arXiv 1801.06146, section 3.3).

    Heads learn first, then the last layer too, and so on down to the first layer; the embeddings
    and other encoder weights come last. Parts are unfrozen after equal shares of the steps: with as
    many epochs as parts, this is the paper's one part per epoch. A frozen part has no gradient and
    no optimizer state.
    Departures: the paper's discriminative and slanted triangular learning rates are left to the
    settings of the learning rate.

    Args:
        objective: the loss.
        model: a classifier, or several that share an encoder.
        steps: number of steps in the whole run.

    Raises:
        ConfigError: the architecture is not in FAMILIES.
    """

    def __init__(self, objective: Objective, model: nn.Module, steps: int) -> None:
        self.objective = objective
        self.parts = parts_from_the_top(model)
        self.steps = steps
        if (late := len(self.parts) - self.learning(steps - 1)) > 0:
            logger.warning(
                "freeze=gradual: %d steps are too few for %d parts of the encoder, of which the "
                "lowest %d never learn. Give more epochs, or a smaller batch_size or accumulation",
                *(steps, len(self.parts), late),
            )

    def __call__(self, model: nn.Module, batch: TensorBatch, step: int) -> LossParts:
        learning = self.learning(step)
        for place, weights in enumerate(self.parts, start=1):
            for weight in weights:
                weight.requires_grad_(place <= learning)
        return self.objective(model, batch, step)

    def learning(self, step: int) -> int:
        """Return how many parts below the heads learn in a step."""
        return step * (len(self.parts) + 1) // self.steps


def parts_from_the_top(model: nn.Module) -> list[Weights]:
    """Return the weights of each encoder layer, last layer first, then all other weights."""
    below = weights_below_heads(model)
    try:
        layers = encoder_layers(_models_in(model)[0])
    except ModelError as error:
        raise ConfigError(f"freeze=gradual: {error} Leave it out.") from None
    part_of: Mapping[nn.Parameter, int] = {
        weight: place  # shared weights learn with the last layer that has them
        for place, layer in enumerate(layers)
        for weight in layer.parameters()
    }
    of_layers = [
        [weight for weight in below if part_of.get(weight) == place]
        for place in reversed(range(len(layers)))
    ]
    others = [weight for weight in below if weight not in part_of]
    return [part for part in (*of_layers, others) if part]
