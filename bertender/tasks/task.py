"""Task: splits of labelled examples, the labels, and the metric.

Models learn from `train`. Validation texts (`selection`) choose settings, the parts that stay
quantized, and whether a drop in score is allowed; held-out texts (`dev`) are evaluated once.

Validation texts are a share of the training file, drawn by a hash of the text: every stage of a
chain has the same validation texts, whatever the seed and the file's order or length, and
duplicates are in the same split.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from bertender.core.artifact import IMPORT_STAGE, Artifact
from bertender.core.card import LeftOutRows, TaskRecord
from bertender.core.config import Config
from bertender.core.errors import ConfigError, UnknownNameError, nearest_hint
from bertender.core.findings import ChosenOn
from bertender.metrics import METRICS
from bertender.metrics.metric import AND, is_labelled, labels_of_head, of_one_head
from bertender.problems import ONE_OUTPUT, PROBLEMS, SEVERAL_OUTPUTS
from bertender.problems.multi_label_classification import MULTI_LABEL
from bertender.problems.problem import Problem, are_unnamed
from bertender.problems.several_heads import SeveralHeads
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.text.batch import Example

logger = logging.getLogger(__name__)

SHOWN_LABELS = 20

Kind = Literal["training", "held-out"]
DEFAULT_SHARES: Mapping[Kind, float] = {"training": 0.1, "held-out": 0.2}
"""Share of validation texts; larger for a held-out file, since its texts also calibrate."""
LEAST_TEXTS = 50
"""Fewest validation texts: one text is 2 points."""
FEWEST_HELD_OUT = 10
"""Fewest held-out texts of a single file."""

SALT = b"selection of bertender"
"""Salt for validation texts, so that other hashes draw other texts."""
DEV_SALT = b"held-out texts of bertender"
"""Salt for held-out texts of a training file."""
DIGEST_BYTES = 8
HASHES = float(2 ** (8 * DIGEST_BYTES))


def _in_help(problem: Problem[Any]) -> str:
    """Return the metrics of a kind of problem for a help text."""
    return ", ".join(name for name in problem.metrics if not METRICS[name].only_shown)


def check_metric(name: str, problem: Problem[Any], targets: Sequence[Any]) -> str:
    """Return the name of a metric by which models of a kind of problem may be chosen.

    Raises:
        UnknownNameError: the kind has no such metric.
        ConfigError: the metric cannot choose, or has no value for the targets.
    """
    choosing = [each for each in problem.metrics if not METRICS[each].only_shown]
    is_mean = problem.heads and {*name.split(AND)} <= {*problem.metrics}
    if not is_mean and name not in problem.metrics:
        raise UnknownNameError(f"metric of {problem.name}", name, choosing, setting="metric")
    if reason := METRICS[name].only_shown:
        raise ConfigError(
            f"metric={name}: it cannot choose, as {reason}. It is shown with all scores. Choose by "
            f"{', '.join(choosing)}."
        )
    if not is_mean and name not in (possible := problem.metrics_of((), targets)):
        raise ConfigError(
            f"metric={name}: it has no value for these data (do their pairs have numbers?). Choose "
            f"by {', '.join(each for each in choosing if each in possible)}."
        )
    return name


def check_label_map(value: str | None) -> str | None:
    """Validate a label map; raise ValueError if it cannot be parsed."""
    _parsed(value)
    return value


def _parsed(label_map: str | None) -> Mapping[str, str]:
    if not label_map:
        return {}
    if label_map.lstrip().startswith("{"):
        try:
            names = json.loads(label_map)
        except json.JSONDecodeError as error:
            raise ValueError(f"it is not JSON: {error}") from None
        if all(isinstance(each, str) for each in names.values()):
            return dict(names)
        raise ValueError("a label map in JSON maps names to names")
    pairs = [part.partition("=") for part in label_map.split(",")]
    if not all(own.strip() and equals and theirs.strip() for own, equals, theirs in pairs):
        raise ValueError(
            "give DATA=MODEL for each label, by commas, as negative=LABEL_0,positive=LABEL_1; or a "
            "JSON object where labels have commas or equals signs"
        )
    return {own.strip(): theirs.strip() for own, _, theirs in pairs}


class TaskConfig(Config):
    """Settings of a task: its name or, for your own task, files and columns."""

    panel: ClassVar[str] = "Data"
    shown_defaults: ClassVar[Mapping[str, str]] = {"select": "0.1, or 0 where that is too few"}

    task: str = Field(
        "docs",
        description="a name from `bertender tasks`, several by commas for one model of all, or "
        "your own with --train",
    )
    train: Path | None = Field(
        None, description="your training file: CSV, TSV, JSONL, Parquet, or SQuAD's JSON"
    )
    dev: Path | None = Field(
        None,
        description="your held-out file, same format and columns; without one, a fifth of the "
        "training file, by a hash of the text",
    )
    text_column: str = Field("text", description="column of the text in your files")
    pair_column: str | None = Field(
        None,
        description="column of the second text, for pairs; of the choices of a question, several "
        "by commas or one with lists, by default choice_0, choice_1, ... or choices",
    )
    label_column: str = Field(
        "label",
        description="column of the label in your files, several by commas where each is a label; "
        "in CoNLL's by number, from 1",
    )
    label_map: Annotated[str | None, AfterValidator(check_label_map)] = Field(
        None,
        description="labels of your data and of a finished model: DATA=MODEL by commas; by default "
        "equal names",
    )
    problem_type: Annotated[str | None, PROBLEMS.validator()] = Field(
        None,
        description="of your files: single_label_classification, multi_label_classification (a "
        "list of labels, names by commas, or a column of 0 and 1 for each), regression (a number), "
        "multiple_choice (a question, its choices, and the number, letter or text of one), "
        "token_classification for words with tags (CoNLL, JSONL with lists, seq.in), "
        "question_answering (SQuAD's JSON, or columns), sentence_embedding (pairs, with a number "
        "or without), or ranking (a query, its passages, and their relevance); several by commas "
        "are heads, each with a label column; by default from the suffix",
    )
    metric: str | None = Field(
        None,
        description="score that chooses and leads tables; by default the task's, or that of the "
        "problem type: " + "; ".join(map(_in_help, PROBLEMS.values())),
    )
    skip_bad_rows: bool = Field(
        False, description="leave out rows of your files that cannot be used, and list them"
    )
    select: float | None = Field(
        None,
        ge=0,
        le=0.5,
        description="share of validation texts, which choose settings: training texts drawn by a "
        "hash of the text, which nothing learns from. With 0 the held-out texts choose and score. "
        "Tasks with a validation file (xnli-de) choose on that",
    )
    max_train: int | None = Field(None, ge=1, description="use only so many training examples")
    max_select: int = Field(2000, ge=1, description="use only so many of the validation texts")
    max_dev: int | None = Field(None, ge=1, description="use only so many held-out examples")


@dataclass(frozen=True)
class Split:
    """Labelled examples; `label_ids` index the task's labels.

    Targets depend on the problem type: for example, a number per example or per word.
    """

    examples: tuple[Example, ...]
    label_ids: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.examples)

    def __add__(self, other: Split) -> Split:
        """Return the examples of both splits."""
        return Split((*self.examples, *other.examples), (*self.label_ids, *other.label_ids))

    def first(self, count: int | None) -> Split:
        """Return the first `count` examples, or all of them for None."""
        return Split(self.examples[:count], self.label_ids[:count])

    def after(self, count: int) -> Split:
        """Return all but the first `count` examples."""
        return Split(self.examples[count:], self.label_ids[count:])

    @property
    def labelled(self) -> Split:
        """The labelled examples."""
        return self.where([*map(is_labelled, self.label_ids)])

    def texts(self) -> Iterator[str]:
        """Yield the texts; both texts of a pair."""
        return (text for example in self.examples for text in example)

    def digest(self) -> str:
        """Return a sha256 of the examples and their labels."""
        return hashlib.sha256(_split_bytes(self)).hexdigest()

    def where(self, chosen: Sequence[bool]) -> Split:
        """Return the examples for which a mask is True."""
        return Split(
            tuple(compress(self.examples, chosen)), tuple(compress(self.label_ids, chosen))
        )


@dataclass(frozen=True)
class Task:
    """A classification task with its data.

    Example:
        task: bertender.Task = bertender.load_task(train="train.csv", dev="dev.csv", select=0.3)
        print(task.name, task.metric, len(task.train), len(task.selection), len(task.dev))
    """

    name: str
    labels: tuple[str, ...]
    metric: str
    text_columns: tuple[str, ...]
    train: Split
    dev: Split
    source: dict[str, Any] = field(default_factory=dict)
    selection: Split = Split((), ())
    """Validation texts, from the training file or a separate file; never trained on."""
    reserved: tuple[Example, ...] = ()
    """Held-out and validation texts beyond `max_dev` and `max_select`; never trained on either."""
    left_out: LeftOutRows | None = None
    """Rows of the user's files that are in no split."""
    data: dict[str, str] = field(default_factory=dict)
    """Digest of all examples of each file."""
    problem_type: str = SINGLE_LABEL.name
    """A row of PROBLEMS."""

    @property
    def problem(self) -> Problem[Any]:
        """The row of PROBLEMS."""
        return _problem(self.problem_type, self.labels)

    def of_head(self, name: str, *, labelled: bool = True) -> Task:
        """Return the task of one of several heads, as for a model with only this head.

        Args:
            name: name of the head.
            labelled: leave out examples without a label for it.
        """
        assert isinstance(self.problem, SeveralHeads)
        whole = self.problem
        place, problem = [*whole.heads].index(name), whole.heads[name]
        labels = labels_of_head(self.labels, name)

        def own(split: Split) -> Split:
            examples = tuple(whole.example_of_head(name, each) for each in split.examples)
            found = Split(examples, tuple(each[place] for each in split.label_ids))
            return found.labelled if labelled else found

        return replace(
            self,
            name=f"{self.name}:{name}",
            labels=labels,
            metric=of_one_head(self.metric, name) or problem.metrics_of(labels, ())[0],
            problem_type=problem.name,
            train=own(self.train),
            dev=own(self.dev),
            selection=own(self.selection),
        )

    @property
    def skips_bad_rows(self) -> bool:
        """Whether unusable rows of the user's files are left out."""
        return bool(self.source.get("skip_bad_rows"))

    @property
    def chosen_on(self) -> ChosenOn:
        """Split of `choices`."""
        return "selection" if len(self.selection) else "dev"

    @property
    def choices(self) -> Split:
        """The validation examples: the selection, or the held-out examples if there is none."""
        return self.selection if len(self.selection) else self.dev

    @property
    def calibration(self) -> Split:
        """Examples for calibration and probes: the training examples, or the validation examples if
        there is only a held-out file."""
        return self.train if len(self.train) else self.choices

    def require_training(self, purpose: str) -> None:
        """Raise ConfigError if there are no training examples, but only a held-out file.

        Args:
            purpose: their purpose, for the message.
        """
        if not len(self.train):
            raise ConfigError(
                f"{purpose} learns from labelled texts, and task {self.name!r} has only a held-out "
                "file. Give --train FILE besides."
            )

    def with_unlabelled(self, examples: Sequence[Example]) -> Task:
        """Return the task with unlabelled examples after its training examples."""
        targets = tuple(map(self.problem.unlabelled, examples))
        added = to_learn(Split(tuple(examples), targets), self.name, self.problem)
        return replace(self, train=self.train + added)

    def check_problem(self, artifact: Artifact) -> None:
        """Raise ConfigError if a model's problem type is not the task's, or it reads more or fewer
        texts an example."""
        own = artifact.card.task.problem_type
        if own != self.problem_type:
            heads = ({each.name for each in kinds} for kinds in (ONE_OUTPUT, SEVERAL_OUTPUTS))
            alike = any({own, self.problem_type} <= names for names in heads)
            either = artifact.card.stage == IMPORT_STAGE and alike
            otherwise = (
                f" Or, as its head may be of either: bertender import {artifact.place} "
                f"--problem-type {self.problem_type} --out DIRECTORY, and give that."
            )
            raise ConfigError(
                f"{artifact.place} was made for {own!r}, and task {self.name!r} is one of "
                f"{self.problem_type!r}. Give a task of the model's problem type."
                f"{otherwise if either else ''}"
            )
        self.check_columns(artifact)

    def check_columns(self, artifact: Artifact) -> None:
        """Raise ConfigError if a model of the task's problem type reads more or fewer texts an
        example; vectors are of single texts, whatever the task's pairs."""
        own = artifact.card.task
        if own.problem_type == self.problem_type and not self.problem.gives_vectors:
            self.problem.check_columns(self.text_columns, own.text_count)

    def record(self) -> TaskRecord:
        """Return the record of the task for an artifact's card."""
        return TaskRecord(
            name=self.name,
            problem_type=self.problem_type,
            labels=self.labels,
            text_columns=self.text_columns,
            metric=self.metric,
            source=self.source,
            left_out=self.left_out,
            data=self.data,
        )

    def fingerprint(self) -> str:
        """Return a sha256 of the labels and all splits, texts included."""
        digest = hashlib.sha256(json.dumps([self.labels, self.metric]).encode())
        chosen = (self.selection,) if len(self.selection) else ()  # older fingerprints had two
        for split in (self.train, self.dev, *chosen):
            digest.update(_split_bytes(split))
        return digest.hexdigest()


def to_learn(split: Split, name: str, problem: Problem[Any]) -> Split:
    """Return a task's training examples, cut to the part that training uses; warn of cuts."""
    pairs = [problem.to_learn(*each) for each in zip(split.examples, split.label_ids, strict=True)]
    shorter = sum(
        len(own) < len(example) for (own, _), example in zip(pairs, split.examples, strict=True)
    )
    if not shorter:
        return split
    logger.warning(
        "task %s: %d of %d training queries have more passages than training reads: those of the "
        "highest relevance and others, drawn by a hash of the text, stay. All of them are scored "
        "and served",
        *(name, shorter, len(split)),
    )
    return Split(tuple(example for example, _ in pairs), tuple(target for _, target in pairs))


@functools.lru_cache(maxsize=64)
def _problem(problem_type: str, labels: tuple[str, ...]) -> Problem[Any]:
    return PROBLEMS[problem_type].of_labels(labels)


def default_of(setting: str) -> Any:
    """Return the default of a setting of TaskConfig."""
    return TaskConfig.model_fields[setting].default


def _split_bytes(split: Split) -> bytes:
    # some texts have lone surrogates, which UTF-8 cannot encode
    plain = json.dumps([split.examples, split.label_ids], ensure_ascii=False)
    return plain.encode(errors="surrogatepass")


@dataclass(frozen=True)
class Parted:
    """A training file split into two parts."""

    train: Split
    selection: Split
    share: float
    """Share of validation texts; 0 without any."""


def part(
    train: Split,
    share: float | None,
    name: str,
    problem: Problem[Any] = SINGLE_LABEL,
    kind: Kind = "training",
) -> Parted:
    """Split off validation texts: by default DEFAULT_SHARES of a file, or none if too few.

    Texts of a label all stay in `train` if none would remain otherwise.

    Args:
        train: the whole file.
        share: 0 for none, None for the default.
        name: name of the task, for messages.
        problem: kind of problem of the labels.
        kind: kind of file; validation texts come from the held-out file if it is the only one.

    Raises:
        ConfigError: an explicit share gives fewer than LEAST_TEXTS.
    """
    wanted = DEFAULT_SHARES[kind] if share is None else share
    selected = _drawn(train, wanted, problem, SALT)
    count = sum(selected)
    if wanted == 0 or (share is None and count < LEAST_TEXTS):
        if wanted:
            logger.warning(
                "task %s: %d of %d %s texts (select=%g) are too few validation texts, so that the "
                "held-out texts choose and score. %d are enough",
                *(name, count, len(train), kind, wanted, LEAST_TEXTS),
            )
        return Parted(train, Split((), ()), 0.0)
    if count < LEAST_TEXTS:
        raise ConfigError(
            f"task {name!r}, select={wanted:g}: {count} of {len(train)} {kind} texts are too few "
            f"validation texts: {LEAST_TEXTS} are needed. Give a larger share (0.5 at most), or "
            "select=0, and the held-out texts choose and score."
        )
    return Parted(train.where([not each for each in selected]), train.where(selected), wanted)


def held_out_of(
    whole: Split, name: str, problem: Problem[Any] = SINGLE_LABEL
) -> tuple[Split, Split]:
    """Return the training and the held-out texts of a single file.

    Equal texts are in the same split, and texts of a label are all training texts if none would
    remain otherwise.

    Raises:
        ConfigError: too few texts would be held out.
    """
    share = DEFAULT_SHARES["held-out"]
    chosen = _drawn(whole, share, problem, DEV_SALT)
    count = sum(chosen)
    if count < FEWEST_HELD_OUT:
        raise ConfigError(
            f"task {name!r}: no --dev is set, and a fifth of the {len(whole)} training texts is "
            f"{count}, too few to score by; {FEWEST_HELD_OUT} are needed. Give --dev FILE, or more "
            "texts."
        )
    logger.warning(
        "task %s: no --dev is set, so that %d of %d training texts are held out, by a hash of the "
        "text. Nothing learns from them; equal texts are on one side",
        *(name, count, len(whole)),
    )
    return whole.where([not each for each in chosen]), whole.where(chosen)


def _drawn(split: Split, share: float, problem: Problem[Any], salt: bytes) -> list[bool]:
    """Return which texts are drawn by their hash; none of a label that would have no others, and
    none of a file that would."""
    drawn = [is_selected(problem.told_apart_by(each), share, salt) for each in split.examples]
    if all(drawn):
        return [False] * len(drawn)
    labels = [problem.labels_of(target) for target in split.label_ids]
    left = {label for own, gone in zip(labels, drawn, strict=True) if not gone for label in own}
    return [gone and left.issuperset(own) for own, gone in zip(labels, drawn, strict=True)]


def is_selected(example: Example, share: float, salt: bytes = SALT) -> bool:
    """Return whether an example is drawn by the hash of all its columns."""
    text = json.dumps(example, ensure_ascii=False).encode(errors="surrogatepass")
    digest = hashlib.sha256(salt + text).digest()[:DIGEST_BYTES]
    return int.from_bytes(digest, "big") < share * HASHES


def with_model_labels(task: Task, labels: Sequence[str], label_map: str | None, model: str) -> Task:
    """Return a task whose targets index a model's labels.

    Labels are matched by `label_map`; else by equal names, then ignoring case, then by position if
    one side has no names (`LABEL_0`, or 0, 1, 2 in the data). The position of a label with a column
    of its own is that of the column in the setting. Matches of unequal names are logged.

    Args:
        task: task with the labels of its data.
        labels: labels of the model, in the order of its logits.
        label_map: `DATA=MODEL` pairs separated by commas, or a JSON object.
        model: name of the model in messages.

    Raises:
        ConfigError: the model lacks a label of the data.
    """
    if label_map is None and task.labels == tuple(labels):
        return task
    if not task.problem.names_labels:
        if label_map is not None:
            raise ConfigError(
                f"label_map={label_map}: task {task.name!r} is one of {task.problem_type!r}, which "
                "has no labels. Leave it out."
            )
        return replace(task, labels=tuple(labels))
    if task.problem.places_are_labels:
        if label_map is not None:
            raise ConfigError(f"label_map={label_map}: choices have only numbers. Leave it out.")
        return task
    own, problem = task.labels, task.problem
    if label_map is None:  # tags are paired, with O among plain ones: some may not occur
        splits = (task.train, task.dev, task.selection)
        targets = (target for split in splits for target in split.label_ids)
        occurring = {own[number] for target in targets for number in problem.labels_of(target)}
        if occurring <= set(labels):
            own = tuple(label for label in own if label in occurring)
    names = _matched(own, tuple(labels), _parsed(label_map), model, _columns_of_labels(task))
    numbers = {own: labels.index(theirs) for own, theirs in names.items()}

    of_model = problem.of_labels(labels)

    def renumbered(split: Split) -> Split:
        targets = (problem.by_names(each, task.labels) for each in split.label_ids)
        return replace(split, label_ids=tuple(of_model.number(each, numbers) for each in targets))

    other = {own: theirs for own, theirs in names.items() if own != theirs}
    return replace(
        task,
        labels=tuple(labels),
        train=renumbered(task.train),
        dev=renumbered(task.dev),
        selection=renumbered(task.selection),
        source={**task.source, **({"label_map": json.dumps(names)} if other else {})},
    )


def in_labels_of(task: Task, artifact: Artifact) -> Task:
    """Return a task whose targets index a model's labels; unchanged if the model lacks one."""
    own = artifact.card.task
    if task.problem_type != own.problem_type or not {*task.labels} <= {*own.labels}:
        return task
    return with_model_labels(task, own.labels, None, artifact.name)


def with_labels_of(task: Task, artifact: Artifact) -> Task:
    """Return a task with a model's labels, matched by name where they have names.

    Raises:
        ConfigError: the model is for another problem type, or predicts other labels.
    """
    task.check_problem(artifact)
    own, problem = artifact.card.task.labels, task.problem
    has_names = problem.names_labels and not problem.places_are_labels
    if has_names and not {*task.labels} <= {*own}:
        raise ConfigError(
            f"{artifact.place} predicts {listed(own)}, and the labels of task {task.name!r} are "
            f"{listed(task.labels)}. Give a task with the labels of the model."
        )
    return with_model_labels(task, own, None, artifact.name)


def same_labels(labels: Sequence[str], own: Sequence[str], problem: Problem[Any]) -> bool:
    """Return whether two models have the same labels, in any order if labels have names."""
    if tuple(labels) == tuple(own):
        return True
    by_name = problem.names_labels and len({*labels}) == len(labels)
    return by_name and sorted(labels) == sorted(own)


def _columns_of_labels(task: Task) -> tuple[str, ...]:
    """Return the columns of a task that each are a label, in the user's order; empty without."""
    if task.problem.name != MULTI_LABEL.name:
        return ()
    columns = task.problem.label_columns(task.source.get("label_column", ""))
    return columns if len(columns) > 1 else ()


def _matched(
    own: tuple[str, ...],
    labels: tuple[str, ...],
    label_map: Mapping[str, str],
    model: str,
    columns: tuple[str, ...] = (),
) -> dict[str, str]:
    """Return the model's label for each label of the data.

    Args:
        own: labels of the data, sorted. labels: labels of the model.
        label_map: model's label for each label of the data; empty for a guess.
        model: name of the model in messages.
        columns: columns that each are a label, also without a row; empty for labels in cells.
    """
    if label_map:
        return _mapped(own, labels, label_map, model)
    if (found := matched_labels(own, labels, columns)) is None:
        raise ConfigError(
            f"the data have the labels {listed(own)}, and {model} has {listed(labels)}. Say which "
            f"is which: --label-map {own[0]}={labels[0]},... (DATA=MODEL for each label of the "
            "data)."
        )
    how, names = found
    if how:
        logger.warning(
            "labels of the data are those of %s %s: %s. Another order: --label-map",
            model,
            how,
            ", ".join(f"{own}={theirs}" for own, theirs in names.items()),
        )
    return names


def matched_labels(
    own: Sequence[str], labels: Sequence[str], columns: Sequence[str] = ()
) -> tuple[str, dict[str, str]] | None:
    """Return how labels of data are matched with a model's, empty by equal names, and the model's
    label for each; None if they are others. `columns` are as in `_matched`."""
    if set(own) <= set(labels):
        return "", {label: label for label in own}
    by_case = {_folded(label): label for label in labels}
    folded = [*map(_folded, own)]
    if len(by_case) == len(labels) and set(folded) <= set(by_case):
        how, theirs = "by names without regard to case", [by_case[label] for label in folded]
    # 1, 2, 3 may count from 1, or come from a file without 0: only a 0 tells
    elif "0" in own and all(label.isdecimal() and int(label) < len(labels) for label in own):
        how, theirs = "by number", [labels[int(label)] for label in own]
    elif len(in_order := columns or own) == len(labels) and are_unnamed(labels):
        own = in_order
        how, theirs = "by position, as the model's labels have no names", [*labels]
    else:
        return None
    return how, dict(zip(own, theirs, strict=True))


def _folded(label: str) -> str:
    """Return a label without its case, and with each accent in its letter: files write it apart."""
    return unicodedata.normalize("NFC", label.casefold()).strip()


def _mapped(
    own: tuple[str, ...], labels: tuple[str, ...], label_map: Mapping[str, str], model: str
) -> dict[str, str]:
    """Return the model's label for each label of the data, by a label map.

    Labels missing from the map have the same name in both.
    """
    # a map may have more labels than a file
    unknown = [label for label in label_map if label not in own]
    if unknown and any(label not in label_map for label in own):
        raise ConfigError(
            f"label_map: {unknown[0]!r} is not a label of the data.{nearest_hint(unknown[0], own)} "
            f"The data have {listed(own)}."
        )
    found = {label: label_map.get(label, label) for label in own}
    for label, theirs in found.items():
        if theirs not in labels and label not in label_map:
            raise ConfigError(
                f"label_map: it lacks {label!r} of the data, and the model has no label of that "
                f"name. It has {listed(labels)}."
            )
        if theirs not in labels:
            raise ConfigError(
                f"label_map: {label}={theirs}: {theirs!r} is not a label of "
                f"{model}.{nearest_hint(theirs, labels)} It has {listed(labels)}."
            )
    return found


def listed(labels: Sequence[str]) -> str:
    """Return labels for a message, at most SHOWN_LABELS of them."""
    more = len(labels) - SHOWN_LABELS
    shown = ", ".join(map(repr, labels[:SHOWN_LABELS]))
    return f"{shown} and {more} more" if more > 0 else shown
