"""Analyses of a PyTorch model: importance and masking of heads, attention, and hidden states.

All analyses use the same held-out texts of the task, and choose nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertender.comparison.accuracy import TOKENS_PER_BATCH, decoded, encoded_buckets, score_by
from bertender.core.artifact import Artifact
from bertender.core.card import library_versions
from bertender.core.errors import DataError
from bertender.core.progress import progress_bar
from bertender.models.classifier import Classifier, load_torch_classifier, torch_classifier_of
from bertender.models.families import family_of
from bertender.models.own_models import heads_of
from bertender.report.analyses import (
    AnalyseConfig,
    Analysis,
    AttentionOfHead,
    Map,
    Masking,
    SimilarityFindings,
    check_analysable,
)
from bertender.report.attention import (
    FEWEST_TOKENS,
    PATTERNS,
    attention_on,
    is_punctuation,
    patterns,
    texts_of,
)
from bertender.report.similarity import Similarities
from bertender.tasks.loading import sample
from bertender.tasks.task import Split, Task, with_labels_of
from bertender.text.batch import Batch, length_buckets
from bertender.text.tokenizer import load_tokenizer
from bertender.training.examples import token_dataset
from bertender.training.heads import head_of
from distill.pruning.importance import gated, importance_of
from distill.teachers.encoders import on_device


@dataclass(frozen=True)
class Opened:
    """A model, and the texts to analyse it on, in batches of similar length."""

    artifact: Artifact
    task: Task
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    classifier: Classifier
    split: Split
    batches: Sequence[Batch]


def analyse(artifact: Artifact, task: Task, config: AnalyseConfig) -> Analysis:
    """Analyse a model on held-out texts of a task.

    Raises:
        ModelError: the artifact is not a PyTorch model, or its architecture is not a row of
            FAMILIES.
        ConfigError: the task has other labels than the model.
        DataError: there are no held-out texts.
    """
    check_analysable(artifact)
    artifact = artifact.of_task(task.record())
    task = with_labels_of(task, artifact)
    opened = open_model(artifact, task, config)
    run: Mapping[str, Callable[[Opened], Any]] = {
        "importance": head_importance,
        "masking": masking,
        "attention": head_attention,
        "similarity": similarity,
    }
    return Analysis(
        name=artifact.name,
        artifact=artifact.place,
        digest=artifact.digest,
        family=artifact.card.family,
        task=task.name,
        texts=len(opened.split),
        versions=library_versions(),
        **{name: work(opened) for name, work in run.items() if name in config.only},
    )


def open_model(artifact: Artifact, task: Task, config: AnalyseConfig) -> Opened:
    """Open a model with readable attention, and the texts."""
    split = sample(task.dev.labelled, config.texts, task.problem)
    if not len(split):
        raise DataError(f"task {task.name!r} has no labelled held-out texts. Give --dev FILE.")
    model = on_device(load_torch_classifier(artifact, attn_implementation="eager")).eval()
    family_of(model)
    tokenizer = load_tokenizer(artifact.path)
    classifier = torch_classifier_of(artifact, model, tokenizer)
    buckets = encoded_buckets(classifier.encode, split.examples, TOKENS_PER_BATCH)
    order = [row for bucket in buckets for row in bucket]
    in_order = Split(
        tuple(split.examples[row] for row in order), tuple(split.label_ids[row] for row in order)
    )
    batches = [classifier.encode([split.examples[row] for row in bucket]) for bucket in buckets]
    return Opened(artifact, task, model, tokenizer, classifier, in_order, batches)


def head_importance(opened: Opened) -> Map:
    """Return the importance of heads by gradients, as in `prune` (Michel et al., eq. 2)."""
    head = head_of(opened.task.problem)
    examples = token_dataset(opened.split, opened.tokenizer, opened.task.problem_type)
    buckets = length_buckets(examples.lengths, TOKENS_PER_BATCH, counts=examples.counts)

    def batches() -> Any:
        with progress_bar("importance of heads", len(buckets)) as bar:
            for bucket in buckets:
                batch = examples.batch(bucket)
                yield {name: each.to(opened.model.device) for name, each in batch.items()}
                bar.advance()

    found = importance_of(opened.model, "gradient", batches(), head=head).normalised.heads
    return tuple(tuple(round(each, 5) for each in layer.tolist()) for layer in found)


def masking(opened: Opened) -> Masking:
    """Return the score without each head, and with only this head in its layer.

    Michel et al. 2019 (arXiv 1905.10650), sections 3.2 and 3.3.
    """
    counts = heads_of(opened.model.config)
    whole = score_with(opened, [])
    without, alone = [], []
    with progress_bar("mask heads", 2 * sum(counts), "heads") as bar:
        for layer, count in enumerate(counts):
            of_one, of_others = list[float | None](), list[float | None]()
            for head in range(count):
                of_one.append(score_with(opened, gates(counts, layer, head, 0.0)))
                only = gates(counts, layer, head, 1.0)
                of_others.append(score_with(opened, only) if count > 1 else None)
                bar.advance(2)
            without.append(tuple(of_one))
            alone.append(tuple(of_others))
    return Masking(
        metric=opened.task.metric, score=whole, without=tuple(without), alone=tuple(alone)
    )


def gates(counts: Sequence[int], layer: int, head: int, gate: float) -> list[torch.Tensor]:
    """Return the gates of all layers, (heads,) each: a head has a given gate, the others of its
    layer the opposite, and other layers are open."""
    made = [torch.ones(count) for count in counts]
    made[layer] = torch.full((counts[layer],), 1.0 - gate)
    made[layer][head] = gate
    return made


def score_with(opened: Opened, heads: Sequence[torch.Tensor]) -> float | None:
    """Return the score with gates on heads, None where it is undefined; without gates, that of the
    whole model."""
    own, split = opened.classifier, opened.split
    with gated(opened.model, [each.to(opened.model.device) for each in heads]):
        outputs = [each for batch in opened.batches for each in own.outputs_of(batch)]
    predictions = decoded(own.problem, outputs, split.examples)
    found = score_by(opened.task.metric, own.labels, split, predictions, outputs)
    return None if found.undefined else found.value


@dataclass(frozen=True)
class TextStates:
    """States of an encoder for one row of tokens, without padding."""

    ids: Any
    """(seq,)"""
    attention: Sequence[Any]
    """Attention of each layer, (heads, seq, seq)."""
    states: Any
    """Embeddings and each layer's output, (layers + 1, seq, hidden)."""


def each_text(opened: Opened, title: str, *, attention: bool) -> Any:
    """Yield the states of each row of tokens, or its attention."""
    encoder = opened.model.base_model
    takes = opened.classifier.predictor.inputs  # type: ignore[attr-defined]  # PyTorch's
    with progress_bar(title, len(opened.batches)) as bar, torch.inference_mode():
        for batch in opened.batches:
            tensors = {
                name: torch.from_numpy(batch.arrays[name]).to(opened.model.device)
                for name in takes
                if name in batch.arrays
            }
            found = encoder(
                **tensors,
                output_attentions=attention,
                output_hidden_states=not attention,
                return_dict=True,
            )
            real = batch.arrays["attention_mask"].astype(bool)
            maps = [each.double().cpu().numpy() for each in found.attentions or ()]
            layers = [each.double().cpu().numpy() for each in found.hidden_states or ()]
            for row, is_token in enumerate(real):
                yield TextStates(
                    batch.arrays["input_ids"][row][is_token],
                    [each[row][:, is_token][:, :, is_token] for each in maps],
                    np.array([each[row][is_token] for each in layers]),
                )
            bar.advance()


def head_attention(opened: Opened) -> tuple[tuple[AttentionOfHead, ...], ...]:
    """Return the patterns of each head, and its attention on special tokens and punctuation."""
    tokenizer = opened.tokenizer
    punctuation = punctuation_of(tokenizer)
    special = {"[CLS]": tokenizer.cls_token_id, "[SEP]": tokenizer.sep_token_id}
    counts: list[Any] = []
    sums: list[dict[str, Any]] = []
    texts = with_pattern = 0
    for text in each_text(opened, "attention", attention=True):
        kinds = {name: text.ids == number for name, number in special.items() if number is not None}
        kinds["punctuation"] = np.isin(text.ids, punctuation)
        separators = kinds.get("[SEP]", np.zeros(len(text.ids), dtype=bool))
        parts, texts = texts_of(separators), texts + 1
        is_long = len(text.ids) >= FEWEST_TOKENS
        with_pattern += is_long
        for layer, maps in enumerate(text.attention):
            if layer == len(counts):
                counts.append(np.zeros((len(maps), len(PATTERNS))))
                sums.append(dict.fromkeys(kinds, 0.0))
            if is_long:
                counts[layer][np.arange(len(maps)), patterns(maps, parts)] += 1
            for name, share in attention_on(maps, kinds).items():
                sums[layer][name] = sums[layer][name] + share
    return tuple(
        tuple(
            AttentionOfHead(
                patterns={
                    name: round(float(own[place]) / max(with_pattern, 1), 4)
                    for place, name in enumerate(PATTERNS)
                },
                on={name: round(float(total[head]) / texts, 4) for name, total in of_layer.items()},
            )
            for head, own in enumerate(layer)
        )
        for layer, of_layer in zip(counts, sums, strict=True)
    )


def punctuation_of(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens of a vocabulary that consist of punctuation."""
    special = set(tokenizer.all_special_ids)
    return [
        number
        for token, number in tokenizer.get_vocab().items()
        if number not in special and is_punctuation(token)
    ]


def similarity(opened: Opened) -> SimilarityFindings | None:
    """Return SelfSim and IntraSim of each layer; None if fewer than two texts have words."""
    found, special = Similarities(), opened.tokenizer.all_special_ids
    for text in each_text(opened, "hidden states", attention=False):
        is_word = ~np.isin(text.ids, special)
        found.add(text.ids[is_word], text.states[:, is_word])
    anisotropy = found.anisotropy
    if anisotropy is None:
        return None

    def adjusted(values: Any) -> tuple[float, ...] | None:
        return None if values is None else tuple(np.round(values - anisotropy, 5).tolist())

    return SimilarityFindings(
        words=len(found.words()),
        anisotropy=tuple(np.round(anisotropy, 5).tolist()),
        self_similarity=adjusted(found.self_similarity()),
        intra_similarity=adjusted(found.intra_similarity()),
    )
