"""From a TaskConfig to a Task: by its name in TASKS, or from files of the user's own.

Whatever is wrong in a user's files is a DataError that names the file, the row and the column. With
`skip_bad_rows`, rows that are wrong are left out instead; a file that is wrong still stops.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertender.core.errors import ConfigError, DataError, HubUnreachableError, UnknownNameError
from bertender.core.machine import DATA_VARIABLE, data_directory
from bertender.problems import PROBLEMS
from bertender.problems.multi_label_classification import MULTI_LABEL
from bertender.problems.multiple_choice import MULTIPLE_CHOICE
from bertender.problems.problem import Columns, Problem
from bertender.problems.question_answering import QUESTION_ANSWERING
from bertender.problems.regression import REGRESSION
from bertender.problems.sentence_embedding import SENTENCE_EMBEDDING
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from bertender.tasks.choice_files import (
    Question,
    commonsense_qa,
    copa,
    hellaswag,
    questions_of,
    race,
)
from bertender.tasks.docs import draw, load_docs, load_further
from bertender.tasks.docstrings import SECTIONS
from bertender.tasks.labelled import check_classes, label_names, read_labelled, read_texts
from bertender.tasks.rows import SkippedRows, open_table, read_delimited, stop
from bertender.tasks.task import (
    Split,
    Task,
    TaskConfig,
    check_metric,
    default_of,
    held_out_of,
    part,
)
from bertender.tasks.word_rows import WORD_SUFFIXES, open_words
from bertender.text.batch import Example

logger = logging.getLogger(__name__)

HUB_REPOSITORY = "nyu-mll/glue"
HUB_PLACE = f"api/datasets/{HUB_REPOSITORY}"
SHARED_SHARE = 0.01
"""Of the held-out texts: short ones recur by chance."""
LONE_SHARE = 0.3
"""Of an official file that has no other beside it."""
SAMPLE_SEED = 0


@dataclass(frozen=True)
class NamedTask(ABC):
    """A row of TASKS: what the task asks, and where its two splits come from."""

    description: str
    labels: tuple[str, ...]
    metric: str
    text_columns: tuple[str, ...]
    problem_type: str = field(default=SINGLE_LABEL.name, kw_only=True)

    @abstractmethod
    def load(self) -> tuple[Split, Split]:
        """Return the training and the held-out split."""

    @property
    def has_unlabelled(self) -> bool:
        """Whether texts without labels may come with the task."""
        return False

    def unlabelled(self) -> tuple[Example, ...]:
        """Return the texts without labels that come with the task."""
        return ()


class DocsTask(NamedTask):
    """Sentences of the documentation of installed packages."""

    has_unlabelled = True

    def load(self) -> tuple[Split, Split]:
        return load_docs()

    def unlabelled(self) -> tuple[Example, ...]:
        return load_further()


@dataclass(frozen=True, kw_only=True)
class GlueTask(NamedTask):
    """A set of GLUE, and how local files and the hub's copy write it.

    Wang et al. 2018, "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language
    Understanding", arXiv:1804.07461. The labels have the order of the hub's copy.
    """

    folder: str
    hub_name: str
    file_text_columns: tuple[str, ...]
    file_label_column: str = "label"
    file_labels: tuple[str, ...] = ("0", "1")
    file_columns: tuple[str, ...] = ()
    """For files without a header."""
    held_out: tuple[str, str] = ("dev.tsv", "validation")
    """The local file, and the hub's split."""
    unlabelled_file: str = ""
    """In the folder of local data sets."""

    @property
    def has_unlabelled(self) -> bool:
        return bool(self.unlabelled_file)

    def load(self) -> tuple[Split, Split]:
        """Return both splits, from local files where there are some, else from the hub.

        Raises:
            DataError: a local file is wrong.
            HubUnreachableError: there are no local files, and no hub responds.
        """
        root = data_directory()
        if root is None or not (root / self.folder / "train.tsv").is_file():
            return self.read_hub()
        splits = []
        problem = PROBLEMS[self.problem_type]
        for name in ("train.tsv", self.held_out[0]):  # as GLUE's own download script makes them
            path = root / self.folder / name
            table = read_delimited(path, delimiter="\t", quoted=False, columns=self.file_columns)
            labelled = read_labelled(table, self.file_text_columns, self.file_label_column, problem)
            splits.append(labelled.split(self.file_labels, f"GLUE's {self.folder}"))
        train, dev = splits
        return train, dev

    def read_hub(self, repository: str = HUB_REPOSITORY) -> tuple[Split, Split]:
        """Read both splits with `datasets` from the hub, its cache, or a local copy of it.

        Raises:
            HubUnreachableError: the data are in none of these places; known within seconds.
        """
        # seconds of imports that local files do without
        from huggingface_hub import constants

        from bertender.core.hub import PROBE_SECONDS, hub_knows

        if not (constants.HF_HUB_OFFLINE or Path(repository).is_dir() or hub_knows(HUB_PLACE)):
            raise self._unreachable(
                f"{constants.ENDPOINT} did not respond in {PROBE_SECONDS:.0f} s"
            )
        import datasets

        try:
            data = datasets.load_dataset(repository, self.hub_name)
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            raise self._unreachable(str(error)) from None
        return self._hub_split(data["train"]), self._hub_split(data[self.held_out[1]])

    def _hub_split(self, rows: Mapping[str, list[str]]) -> Split:
        columns = ([text.strip() for text in rows[column]] for column in self.text_columns)
        target = int if self.problem_type == SINGLE_LABEL.name else float
        return Split(tuple(zip(*columns, strict=True)), tuple(map(target, rows["label"])))

    def _unreachable(self, reason: str) -> HubUnreachableError:
        files = " and ".join(f"{self.folder}/{name}" for name in ("train.tsv", self.held_out[0]))
        return HubUnreachableError(
            f"the GLUE set {self.folder} is not on this machine, and the hub cannot be used: "
            f"{reason}. Either set {DATA_VARIABLE} to a folder that holds {files}, or go online "
            "(and unset HF_HUB_OFFLINE). Files of your own: --train and --dev."
        )

    def unlabelled(self) -> tuple[Example, ...]:
        """Return the distinct texts of the file; none where it is not there.

        Their order follows from hashes of them, so that the first are not of one source, and are
        nearly the same ones in a file with some more.

        Raises:
            DataError: the file is wrong.
        """
        root = data_directory()
        if not self.unlabelled_file or root is None or not (root / self.unlabelled_file).is_file():
            return ()
        columns = PROBLEMS[self.problem_type].asked_columns(self.text_columns)
        texts = dict.fromkeys(read_texts(root / self.unlabelled_file, columns))
        return tuple(sorted(texts, key=lambda text: draw(*text)))


@dataclass(frozen=True, kw_only=True)
class FilesTask(NamedTask):
    """A task in its official files, which are on this machine alone."""

    folder: str
    files: tuple[tuple[str, str], ...]
    """Names that the training and the held-out file may have, without `.xz`; the second is empty
    where the first is the only one."""

    def load(self) -> tuple[Split, Split]:
        """Return both splits.

        Raises:
            DataError: the files are not there, or one is wrong.
        """
        for names in self.files:
            paths = [self._path(name) for name in names if name]
            if all(paths):
                return self._splits([path for path in paths if path])
        wanted = "; or ".join(
            " and ".join(f"{self.folder}/{name}" for name in names if name) for names in self.files
        )
        raise DataError(
            f"the files of {self.folder} are not on this machine. Set {DATA_VARIABLE} to a folder "
            f"that holds {wanted}. Files of your own: --train and --dev."
        )

    def _path(self, name: str) -> Path | None:
        root = data_directory()
        if root is None:
            return None
        paths = (root / self.folder / each for each in (name, f"{name}.xz"))
        return next((path for path in paths if path.exists()), None)

    def _splits(self, paths: Sequence[Path]) -> tuple[Split, Split]:
        train, dev = map(self._split, paths)
        return train, dev

    @abstractmethod
    def _split(self, path: Path) -> Split:
        """Return the examples of a file."""


@dataclass(frozen=True, kw_only=True)
class LabelColumnsTask(FilesTask):
    """Texts with a column of 0 and 1 for each label, between tabs."""

    problem_type: str = MULTI_LABEL.name

    def _split(self, path: Path) -> Split:
        table = read_delimited(path, delimiter="\t", quoted=False)
        labelled = read_labelled(table, self.text_columns, ",".join(self.labels), MULTI_LABEL)
        return labelled.split(self.labels, self.folder)


@dataclass(frozen=True, kw_only=True)
class WordsTask(FilesTask):
    """Sentences of labelled words."""

    problem_type: str = TOKEN_CLASSIFICATION.name

    def _split(self, path: Path) -> Split:
        columns = TOKEN_CLASSIFICATION.columns
        labelled = read_labelled(open_words(path), *columns, TOKEN_CLASSIFICATION)
        return labelled.split(self.labels, self.folder)


@dataclass(frozen=True, kw_only=True)
class QuestionsTask(FilesTask):
    """Questions in SQuAD's JSON."""

    labels: tuple[str, ...] = QUESTION_ANSWERING.label_names(())
    metric: str = QUESTION_ANSWERING.metrics[0]
    text_columns: tuple[str, ...] = QUESTION_ANSWERING.columns.texts
    problem_type: str = QUESTION_ANSWERING.name

    def _split(self, path: Path) -> Split:
        labelled = read_labelled(open_table(path), *QUESTION_ANSWERING.columns, QUESTION_ANSWERING)
        return labelled.split(self.labels, self.folder)


@dataclass(frozen=True, kw_only=True)
class ChoiceTask(FilesTask):
    """Questions with choices. Of a file that has no other beside it, a share is held out."""

    read: Callable[[Path], Iterator[Question]]
    problem_type: str = MULTIPLE_CHOICE.name

    def _split(self, path: Path) -> Split:
        return _questions(questions_of(path, self.read))

    def _splits(self, paths: Sequence[Path]) -> tuple[Split, Split]:
        if len(paths) > 1:
            return super()._splits(paths)
        questions = questions_of(paths[0], self.read)
        held_out = [draw(each.group) < LONE_SHARE for each in questions]
        whole = _questions(questions)
        return whole.where([not each for each in held_out]), whole.where(held_out)


def _questions(questions: Sequence[Question]) -> Split:
    return Split(tuple(each.example for each in questions), tuple(each.right for each in questions))


def _choices(count: int) -> dict[str, Any]:
    """Return what tasks of so many choices have in common."""
    numbers = tuple(map(str, range(count)))
    columns = ("question", *(f"choice_{number}" for number in numbers))
    return {"labels": numbers, "metric": "accuracy", "text_columns": columns}


def _tags(*types: str) -> tuple[str, ...]:
    """Return the labels of taggers of these types of entities."""
    return TOKEN_CLASSIFICATION.label_names([[f"B-{each}" for each in types]])


SNIPS_SLOTS = (
    *("album", "artist", "best_rating", "city", "condition_description", "condition_temperature"),
    *("country", "cuisine", "current_location", "entity_name", "facility", "genre"),
    *("geographic_poi", "location_name", "movie_name", "movie_type", "music_item"),
    *("object_location_type", "object_name", "object_part_of_series_type", "object_select"),
    *("object_type", "party_size_description", "party_size_number", "playlist", "playlist_owner"),
    *("poi", "rating_unit", "rating_value", "restaurant_name", "restaurant_type", "served_dish"),
    *("service", "sort", "spatial_relation", "state", "timeRange", "track", "year"),
)
CHUNKS = ("ADJP", "ADVP", "CONJP", "INTJ", "LST", "NP", "PP", "PRT", "SBAR", "UCP", "VP")

TASKS: Mapping[str, NamedTask] = {
    "docs": DocsTask(
        "Which section of a docstring does this sentence stand in? (always available)",
        SECTIONS,
        "accuracy",
        ("text",),
    ),
    "sst2": GlueTask(
        "Does this piece of a film review praise or not? (GLUE)",
        ("negative", "positive"),
        "accuracy",
        ("sentence",),
        folder="SST-2",
        hub_name="sst2",
        file_text_columns=("sentence",),
        unlabelled_file="movie-sentences/movie-sentences.txt.xz",
    ),
    "cola": GlueTask(
        "Is this sentence grammatical English? (GLUE)",
        ("unacceptable", "acceptable"),
        "matthews",
        ("sentence",),
        folder="CoLA",
        hub_name="cola",
        file_text_columns=("sentence",),
        file_columns=("source", "label", "mark", "sentence"),
    ),
    "mrpc": GlueTask(
        "Do these two sentences say the same? (GLUE)",
        ("not_equivalent", "equivalent"),
        "f1",
        ("sentence1", "sentence2"),
        folder="MRPC",
        hub_name="mrpc",
        file_text_columns=("#1 String", "#2 String"),
        file_label_column="Quality",
    ),
    "rte": GlueTask(
        "Does the second sentence follow from the first? (GLUE)",
        ("entailment", "not_entailment"),
        "accuracy",
        ("sentence1", "sentence2"),
        folder="RTE",
        hub_name="rte",
        file_text_columns=("sentence1", "sentence2"),
        file_labels=("entailment", "not_entailment"),
    ),
    "qnli": GlueTask(
        "Does the sentence answer the question? (GLUE)",
        ("entailment", "not_entailment"),
        "accuracy",
        ("question", "sentence"),
        folder="QNLI",
        hub_name="qnli",
        file_text_columns=("question", "sentence"),
        file_labels=("entailment", "not_entailment"),
    ),
    "qqp": GlueTask(
        "Do these two questions ask the same? (GLUE)",
        ("not_duplicate", "duplicate"),
        "f1",
        ("question1", "question2"),
        folder="QQP",
        hub_name="qqp",
        file_text_columns=("question1", "question2"),
        file_label_column="is_duplicate",
    ),
    "mnli": GlueTask(
        "Does the second sentence follow from the first, or deny it? (GLUE, matched)",
        ("entailment", "neutral", "contradiction"),
        "accuracy",
        ("premise", "hypothesis"),
        folder="MNLI",
        hub_name="mnli",
        file_text_columns=("sentence1", "sentence2"),
        file_label_column="gold_label",
        file_labels=("entailment", "neutral", "contradiction"),
        held_out=("dev_matched.tsv", "validation_matched"),
    ),
    "wnli": GlueTask(
        "Does the second sentence, without its pronoun, follow from the first? (GLUE)",
        ("not_entailment", "entailment"),
        "accuracy",
        ("sentence1", "sentence2"),
        folder="WNLI",
        hub_name="wnli",
        file_text_columns=("sentence1", "sentence2"),
    ),
    "stsb-embedding": GlueTask(
        "Are the vectors of similar sentences near each other? (GLUE)",
        ("embedding",),
        "cosine_spearman",
        ("sentence1", "sentence2"),
        problem_type=SENTENCE_EMBEDDING.name,
        folder="STS-B",
        hub_name="stsb",
        file_text_columns=("sentence1", "sentence2"),
        file_label_column="score",
        file_labels=("embedding",),
        unlabelled_file="movie-sentences/movie-sentences.txt.xz",
    ),
    "stsb": GlueTask(
        "How similar are these two sentences, from 0 to 5? (GLUE)",
        ("number",),
        "pearson",
        ("sentence1", "sentence2"),
        problem_type=REGRESSION.name,
        folder="STS-B",
        hub_name="stsb",
        file_text_columns=("sentence1", "sentence2"),
        file_label_column="score",
        file_labels=("number",),
    ),
    "semeval2018-ec": LabelColumnsTask(
        "Which of eleven emotions does this tweet show? (SemEval-2018, task 1, E-c, English)",
        (
            *("anger", "anticipation", "disgust", "fear", "joy", "love", "optimism"),
            *("pessimism", "sadness", "surprise", "trust"),
        ),
        "jaccard",
        ("Tweet",),
        folder="SemEval2018-Ec",
        files=tuple(
            (f"{start}E-c-En-train.txt{end}", f"{start}E-c-En-dev.txt{end}")
            for start in ("2018-", "")
            for end in ("", ".xz")
        ),
    ),
    "conll2003": WordsTask(
        "Which words of news name people, places, firms, others? (CoNLL-2003)",
        _tags("LOC", "MISC", "ORG", "PER"),
        "entity_f1",
        ("words",),
        folder="CoNLL-2003",
        files=(("eng.train", "eng.testa"), ("train.txt", "valid.txt"), ("train.txt", "dev.txt")),
    ),
    "conll2000": WordsTask(
        "Which words of news make a phrase together? (CoNLL-2000)",
        _tags(*CHUNKS),
        "entity_f1",
        ("words",),
        folder="CoNLL-2000",
        files=(("train.txt", "test.txt"),),
    ),
    "wnut17": WordsTask(
        "Which words of posts name people, places, works, others? (WNUT-17)",
        _tags("corporation", "creative-work", "group", "location", "person", "product"),
        "entity_f1",
        ("words",),
        folder="WNUT-17",
        files=(("wnut17train.conll", "emerging.dev.conll"),),
    ),
    "ncbi": WordsTask(
        "Which words of an abstract name a disease? (NCBI-disease)",
        _tags("Disease"),
        "entity_f1",
        ("words",),
        folder="NCBI-disease",
        files=(("train.tsv", "devel.tsv"),),
    ),
    "snips": WordsTask(
        "Which words of a request are its particulars, and which? (SNIPS)",
        _tags(*SNIPS_SLOTS),
        "entity_f1",
        ("words",),
        folder="SNIPS-slots",
        files=(("train.seq.in", "valid.seq.in"),),
    ),
    "squad": QuestionsTask(
        "Which part of a paragraph answers the question? (SQuAD 1.1)",
        folder="SQuAD-1.1",
        files=(("train-v1.1.json", "dev-v1.1.json"),),
    ),
    "squad2": QuestionsTask(
        "Which part of a paragraph answers the question, or does none? (SQuAD 2.0)",
        folder="SQuAD-2.0",
        files=(("train-v2.0.json", "dev-v2.0.json"),),
    ),
    "tydiqa": QuestionsTask(
        "Which part of a paragraph answers the question? (TyDiQA-GoldP, English)",
        folder="TyDiQA-GoldP-en",
        files=(("tydiqa-goldp-en-train.json", "tydiqa-goldp-en-dev.json"),),
    ),
    "copa": ChoiceTask(
        "Which of two sentences is the cause, or the effect?",
        **_choices(2),
        folder="COPA",
        read=copa,
        files=(
            ("balacopa-dev-all.xml", "copa-test.xml"),
            ("copa-dev.xml", "copa-test.xml"),
            ("balacopa-dev-all.xml", ""),
        ),
    ),
    "commonsenseqa": ChoiceTask(
        "Which of five answers does common sense give?",
        **_choices(5),
        folder="CommonsenseQA",
        read=commonsense_qa,
        files=(
            ("train_rand_split.jsonl", "dev_rand_split.jsonl"),
            ("dev_rand_split.jsonl", ""),
        ),
    ),
    "hellaswag": ChoiceTask(
        "Which of four endings goes on from here?",
        **_choices(4),
        folder="HellaSwag",
        read=hellaswag,
        files=(
            ("hellaswag_train.jsonl", "hellaswag_val.jsonl"),
            ("hellaswag_val.jsonl", ""),
            ("hellaswag_val_full.txt.bz2", ""),
        ),
    ),
    "race": ChoiceTask(
        "Which of four answers does this article give?",
        **_choices(4),
        folder="RACE",
        read=race,
        files=(("train", "dev"),),
    ),
}


def _targets(task: Task) -> Sequence[Any]:
    """Return the targets of the training examples, or of a held-out file alone."""
    return (task.train if len(task.train) else task.dev).label_ids


def load_task(config: TaskConfig, *, has_model: bool = False) -> Task:
    """Load the task that a config names, or the one that its files hold.

    Args:
        config: see TaskConfig.
        has_model: the task is for a finished model. A held-out file will do then, a share of which
            is set apart to choose on.

    Raises:
        UnknownNameError: no such task, and no files.
        ConfigError: no file to learn from, or a share to choose or score by of too few texts.
        DataError: a data file is wrong.
        HubUnreachableError: the data are not on this machine and no hub responds.
    """
    _check_sources(config)
    if config.train or config.dev:
        task = load_files(config, has_model=has_model)
    else:
        row = TASKS[config.task]
        task = Task(
            *(config.task, row.labels, row.metric, row.text_columns, *row.load()),
            problem_type=row.problem_type,
        )
    if config.metric is not None:
        task = replace(task, metric=check_metric(config.metric, task.problem, _targets(task)))
    splits = {"train": task.train, "dev": task.dev}
    data = {name: split.digest() for name, split in splits.items() if len(split)}
    # first, so that a text is on the same side whatever max_train is
    if len(task.train):
        parts = part(task.train, config.select, task.name, task.problem)
        task = replace(task, train=parts.train)
    else:
        parts = part(task.dev, config.select, task.name, task.problem, "held-out")
        task = replace(task, dev=parts.train)
        if count := len(parts.selection):
            logger.warning(
                "task %s: of %d held-out texts, %d are set apart to choose and calibrate on, and "
                "%d score. With --train FILE, the former come from there",
                task.name,
                count + len(task.dev),
                count,
                len(task.dev),
            )
    dev = sample(task.dev, config.max_dev, task.problem)
    selection = sample(parts.selection, config.max_select, task.problem)
    whole = (*task.dev.examples, *parts.selection.examples)
    sampled = {*dev.examples, *selection.examples}
    return replace(
        task,
        train=sample(task.train, config.max_train, task.problem),
        dev=dev,
        selection=selection,
        reserved=tuple(each for each in whole if each not in sampled),
        source=_source(config, task, parts.share),
        data=data,
    )


def sample(split: Split, count: int | None, problem: Problem[Any] = SINGLE_LABEL) -> Split:
    """Return `count` examples drawn with a fixed seed, or the split itself when it has no more.

    One example of every class comes first, so that no class is lost while there is room for all.
    """
    if count is None or count >= len(split):
        return split
    order = np.random.default_rng(SAMPLE_SEED).permutation(len(split))
    seen, firsts = set[int](), []
    for place, row in enumerate(order):
        labels = problem.labels_of(split.label_ids[row])
        if not seen.issuperset(labels):
            firsts.append(place)
            seen.update(labels)
    chosen = np.concatenate([order[firsts], np.delete(order, firsts)])[:count].tolist()
    return Split(
        tuple(split.examples[row] for row in chosen), tuple(split.label_ids[row] for row in chosen)
    )


def _check_sources(config: TaskConfig) -> None:
    """Raise ConfigError for settings that would be ignored: those of files, or both kinds."""
    own = bool(config.train or config.dev)
    of_files = ("text_column", "pair_column", "label_column", "problem_type", "skip_bad_rows")
    changed = [name for name in of_files if getattr(config, name) != default_of(name)]
    if changed and not own:
        raise ConfigError(
            f"{', '.join(sorted(changed))}: for files of your own, and task {config.task!r} has "
            f"its own columns and no bad rows. Give --train and --dev as well, or leave them out."
        )
    if own and config.task in TASKS and config.is_explicit("task"):
        raise ConfigError(
            f"task={config.task!r} is a task by name, and train and dev are files of your own: "
            "give one or the other, or another name for your task."
        )
    if not own and config.task not in TASKS:
        known = (*TASKS, "your own files with --train and --dev")
        raise UnknownNameError("task", config.task, known, setting="task")


def _source(config: TaskConfig, task: Task, share: float) -> dict[str, object]:
    """Return the config in plain values that find the same data from any working directory."""
    files = {"train": config.train, "dev": config.dev}
    absolute = {name: path and path.absolute() for name, path in files.items()}
    found = {"task": task.name, **absolute, "select": share}
    plain = config.model_copy(update=found).model_dump(mode="json")
    # cards without it are of single labels, those of earlier versions included
    is_named = not (config.train or config.dev)
    is_usual = is_named or (task.problem is SINGLE_LABEL and config.problem_type is None)
    recorded = {} if is_usual else {"problem_type": task.problem_type}
    left_out = {"problem_type", "label_map", *(() if config.metric else ("metric",))}
    settings = {name: plain[name] for name in plain if name not in left_out}
    return {**settings, **task.source, **recorded}


def unlabelled_texts(task: Task) -> tuple[Example, ...]:
    """Return the unlabelled texts that come with a task; most have none, and files never do."""
    row = None if task.source.get("train") else TASKS.get(task.source.get("task", ""))
    texts = row.unlabelled() if row else ()
    if not texts:
        logger.warning(
            "task %s comes with no unlabelled texts: unlabelled_texts adds none. Give a file of "
            "some by --unlabelled",
            task.name,
        )
    return texts


def load_files(config: TaskConfig, *, has_model: bool = False) -> Task:
    """Load the task that `config.train` and `config.dev` hold; labels are sorted.

    Args:
        config: names the files and their columns.
        has_model: the task is for a finished model, so that a held-out file alone will do; there is
            nothing to learn from then.

    Raises:
        ConfigError: there is nothing to learn from, or to score by; or two columns are the same.
        DataError: a file is wrong.
    """
    if config.train is None and not has_model:
        raise ConfigError(
            f"--dev {config.dev} is set without --train. A task of your own needs a file to learn "
            "from."
        )
    problem = PROBLEMS[problem_type_of(config)]
    skipped = SkippedRows()
    bad = skipped if config.skip_bad_rows else stop
    open_file = open_words if problem.labels_words else open_table
    tables = [open_file(path, bad) for path in (config.train, config.dev) if path]
    text_columns, label_column = _distinct_columns(config, problem, tables[0].columns)
    first = read_labelled(tables[0], text_columns, label_column, problem)
    beside = first.examples[0]
    more = [read_labelled(each, text_columns, label_column, problem, beside) for each in tables[1:]]
    labels = label_names(first, several=not has_model)
    if problem is SINGLE_LABEL and config.problem_type is None and not has_model:
        check_classes(first)
    splits = [each.split(labels, str(first.path), bad) for each in (first, *more)]
    name = _name(config, config.train or config.dev or first.path)
    if config.dev is None:
        train, dev = held_out_of(splits[0], name, problem)
    else:
        train, dev = splits if config.train else (Split((), ()), *splits)
    learned = {*train.examples}
    shared = sum(example in learned for example in dev.examples)
    if shared > SHARED_SHARE * len(dev.examples):
        logger.warning(
            "%d of %d held-out texts are in %s too: what is learned by heart scores as well. Leave "
            "them out of one of the files.",
            shared,
            len(dev.examples),
            first.path,
        )
    return Task(
        name=name,
        labels=labels,
        metric=problem.usual_metric(labels, (train if len(train) else dev).label_ids),
        text_columns=problem.text_names(Columns(text_columns, label_column), beside),
        train=train,
        dev=dev,
        source={"text_column": text_columns[0], "label_column": label_column},
        left_out=skipped.report(),
        problem_type=problem.name,
    )


def problem_type_of(config: TaskConfig) -> str:
    """Return the problem type of a task of files: as set, or by the suffix of the file."""
    first = config.train or config.dev
    suffix = "" if first is None else first.suffix.lower()
    guessed = {
        **dict.fromkeys(WORD_SUFFIXES, TOKEN_CLASSIFICATION.name),
        ".json": QUESTION_ANSWERING.name,
    }
    return config.problem_type or guessed.get(suffix, SINGLE_LABEL.name)


def _distinct_columns(config: TaskConfig, problem: Problem[Any], there: Sequence[str]) -> Columns:
    """Return which of a file's columns to read, after a check that no column has two roles."""
    usual, pair_column = problem.usual_columns(there), config.pair_column
    is_usual = usual.texts[1:] and (usual.texts[1] in there or not problem.reads_pairs)
    if pair_column is None and is_usual:
        pair_column = usual.texts[1]
    if problem.reads_pairs and pair_column is None:
        raise ConfigError(
            f"{problem.name} learns from pairs of texts, and no column of the second text is "
            f"named. Give --text-column and --pair-column; the file has {', '.join(there)}."
        )
    pair = problem.more_columns(pair_column, there)
    if pair and not problem.takes_pairs:
        raise ConfigError(
            f"--pair-column {config.pair_column}: an example of {problem.name!r} has no second "
            "text. Leave it out."
        )
    first = _column(config, "text_column", usual.texts[0], there)
    label = _column(config, "label_column", usual.label, there)
    if problem.reads_pairs and label not in there and not config.is_explicit("label_column"):
        label = ""
    columns = Columns((first, *pair), label)
    labels = problem.label_columns(label)
    if len({*columns.texts, *labels}) < len(columns.texts) + len(labels):
        paired = f"--pair-column {pair[0]}, " if pair else ""
        raise ConfigError(
            f"{paired}--text-column {first} and --label-column {label} must be different columns, "
            "and each must be there once."
        )
    return columns


def _column(config: TaskConfig, setting: str, usual: str, there: Sequence[str]) -> str:
    """Return the column that a setting names, or the one that is usual for the problem type.

    A setting at its default may be either, and is the one that the file has.
    """
    value = str(getattr(config, setting))
    if value != default_of(setting):
        return value
    candidates = (value, usual) if config.is_explicit(setting) else (usual, value)
    # several are named by commas
    found = (each for each in candidates if each in there or {*each.split(",")} <= {*there})
    return next(found, candidates[0])


def _name(config: TaskConfig, first: Path) -> str:
    """Return the name the user gave, else the file's, or its folder's for one called train."""
    if config.task != default_of("task"):
        return config.task
    if first.stem in ("train", "train.seq", "dev", "test"):
        return first.absolute().parent.name or first.stem
    return first.stem
