"""TASKS: the tasks of `--task`, and their official files."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertender.core.errors import DataError, HubUnreachableError
from bertender.core.machine import DATA_VARIABLE, data_directory
from bertender.problems import PROBLEMS
from bertender.problems.multi_label_classification import MULTI_LABEL
from bertender.problems.multiple_choice import MULTIPLE_CHOICE
from bertender.problems.question_answering import QUESTION_ANSWERING
from bertender.problems.ranking import RANKING
from bertender.problems.regression import REGRESSION
from bertender.problems.sentence_embedding import SENTENCE_EMBEDDING
from bertender.problems.several_heads import BETWEEN
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from bertender.tasks.choice_files import (
    Question,
    commonsense_qa,
    copa,
    hellaswag,
    questions_of,
    race,
    squad_passages,
)
from bertender.tasks.docs import draw, load_docs, load_further
from bertender.tasks.docstrings import SECTIONS
from bertender.tasks.labelled import read_labelled, read_texts
from bertender.tasks.rows import Row, Table, open_table, read_delimited
from bertender.tasks.task import Split
from bertender.tasks.word_rows import LABEL, TAGS, open_words
from bertender.text.batch import Example

logger = logging.getLogger(__name__)

HUB_REPOSITORY = "nyu-mll/glue"
LONE_SHARE = 0.3
"""Held-out share, if there is one official file."""


@dataclass(frozen=True)
class NamedTask(ABC):
    """A row of TASKS: its question, and the sources of its splits."""

    description: str
    labels: tuple[str, ...]
    metric: str
    text_columns: tuple[str, ...]
    problem_type: str = field(default=SINGLE_LABEL.name, kw_only=True)
    scored_too: tuple[str, ...] = field(default=(), kw_only=True)
    """Tasks whose held-out texts also score a model of this one."""

    @abstractmethod
    def load(self) -> tuple[Split, Split]:
        """Return the training and the held-out split."""

    def load_held_out(self) -> Split:
        """Return only the held-out split; errors are those of `load`."""
        return self.load()[1]

    def load_choices(self) -> Split:
        """Return the examples of a validation file; empty without one, when validation texts are a
        share of the training texts."""
        return Split((), ())

    @property
    def has_unlabelled(self) -> bool:
        """Whether texts without labels may come with the task."""
        return False

    def unlabelled(self) -> tuple[Example, ...]:
        """Return the texts without labels that come with the task."""
        return ()


def local(place: str) -> Path | None:
    """Return a path in the folder of local data sets, or that with `.xz`; None if neither is
    there."""
    root = data_directory()
    paths = [root / f"{place}{end}" for end in ("", ".xz")] if root else []
    return next((path for path in paths if path.exists()), None)


class DocsTask(NamedTask):
    """Sentences of the documentation of installed packages."""

    has_unlabelled = True

    def load(self) -> tuple[Split, Split]:
        return load_docs()

    def unlabelled(self) -> tuple[Example, ...]:
        return load_further()


@dataclass(frozen=True)
class TextFile:
    """A local file of labelled texts, and its columns: comma-separated in a `.csv`, else
    tab-separated without quotes.
    """

    place: str
    """Path in the folder of local data sets; the file may also end in `.xz`."""
    texts: tuple[str, ...]
    label: str = "label"
    names: tuple[str, ...] = ()
    """Label names in the file, in the task's order; the task's own by default."""
    columns: tuple[str, ...] = ()
    """Names of the columns, for files without a header."""
    only: tuple[str, str] | None = None
    """A column and its value in the task's rows, if the file has several tasks."""
    is_sample: bool = False
    """Whether it has only some of the official rows, which is logged when reading."""

    def read(self, path: Path, row: NamedTask) -> Split:
        """Return the examples; several columns become one text if the task has one column.

        Raises:
            DataError: the file is wrong.
        """
        is_csv = self.place.endswith(".csv")
        delimiter = "," if is_csv else "\t"
        table = read_delimited(path, delimiter=delimiter, quoted=is_csv, columns=self.columns)
        if self.only is not None:
            table = _only(table, *self.only)
        problem = PROBLEMS[row.problem_type]
        labelled = read_labelled(table, self.texts, self.label, problem)
        split = labelled.split(self.names or row.labels, f"the files of {self.place}")
        if self.is_sample:
            logger.warning(
                "%s has only some of the official rows (%d): its scores are not those of the whole "
                "set",
                *(path, len(split)),
            )
        if len(row.text_columns) == 1:
            return replace(split, examples=tuple((" ".join(each),) for each in split.examples))
        return split


def _only(table: Table, column: str, value: str) -> Table:
    """Return a table with only the rows that have a value in a column."""

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        return (row for row in table.rows((*columns, column)) if row.values[column] == value)

    return replace(table, read=rows)


@dataclass(frozen=True)
class HubSplit:
    """A split of a data set on the hub, with the task's column names, and `label`."""

    config: str | None
    split: str
    repository: str = HUB_REPOSITORY

    def read(self, row: NamedTask, repository: str | None = None) -> Split:
        """Read the split with `datasets` from the hub, its cache, or a local copy.

        Raises:
            HubUnreachableError: it is in none of these places, which shows within seconds.
        """
        # takes seconds, which local files do not need
        from huggingface_hub import constants

        from bertender.core.hub import PROBE_SECONDS, hub_knows

        repository = repository or self.repository
        is_here = constants.HF_HUB_OFFLINE or Path(repository).is_dir()
        if not (is_here or hub_knows(f"api/datasets/{repository}")):
            raise HubUnreachableError(
                f"{constants.ENDPOINT} did not respond in {PROBE_SECONDS:.0f} s"
            )
        import datasets

        try:
            rows = datasets.load_dataset(repository, self.config, split=self.split)
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            raise HubUnreachableError(str(error)) from None
        columns = ([text.strip() for text in rows[column]] for column in row.text_columns)
        target = int if row.problem_type == SINGLE_LABEL.name else float
        return Split(tuple(zip(*columns, strict=True)), tuple(map(target, rows["label"])))


@dataclass(frozen=True, kw_only=True)
class TextsTask(NamedTask):
    """Labelled texts, in local files or on a hub."""

    files: tuple[tuple[TextFile, ...], tuple[TextFile, ...]]
    """Candidates for each split, the training split first: the first existing file is read."""
    hub: tuple[HubSplit, HubSplit | None]
    """Source of a split without a local file; None if the hub's split has no labels."""
    choice_files: tuple[TextFile, ...] = ()
    """Candidates for a validation file, whose texts are unlike the training texts."""
    unlabelled_file: str = ""
    """Path in the folder of local data sets."""

    @property
    def has_unlabelled(self) -> bool:
        return bool(self.unlabelled_file)

    def load(self) -> tuple[Split, Split]:
        """Return both splits, each from a local file or the hub.

        Raises:
            DataError: a local file is wrong.
            HubUnreachableError: there is no local file, and no hub responds.
        """
        train, dev = (self._split(*pair) for pair in zip(self.files, self.hub, strict=True))
        return train, dev

    def load_held_out(self) -> Split:
        return self._split(self.files[1], self.hub[1])

    def load_choices(self) -> Split:
        found = ((path, file) for file in self.choice_files if (path := local(file.place)))
        return next((file.read(path, self) for path, file in found), Split((), ()))

    def _split(self, files: Sequence[TextFile], hub: HubSplit | None) -> Split:
        for file in files:
            if path := local(file.place):
                return file.read(path, self)
        official = files[0].place
        advice = (
            f"Set {DATA_VARIABLE} to a folder that holds {{}}. Files of your own: --train and "
            "--dev."
        )
        if hub is None:
            raise DataError(
                f"{official} is not on this machine, and no hub has its labels. "
                f"{advice.format(official)}"
            )
        try:
            return hub.read(self)
        except HubUnreachableError as error:
            both = " and ".join(own[0].place for own in self.files)
            raise HubUnreachableError(
                f"{official} is not on this machine, and the hub cannot be used: {error}. "
                f"{advice.format(both)} Or go online (and unset HF_HUB_OFFLINE)."
            ) from None

    def unlabelled(self) -> tuple[Example, ...]:
        """Return the distinct texts of the file; empty without the file.

        They are ordered by hash, so that the first ones come from all sources and do not change
        when the file grows.

        Raises:
            DataError: the file is wrong.
        """
        path = local(self.unlabelled_file) if self.unlabelled_file else None
        if path is None:
            return ()
        columns = PROBLEMS[self.problem_type].asked_columns(self.text_columns)
        texts = dict.fromkeys(read_texts(path, columns))
        return tuple(sorted(texts, key=lambda text: draw(*text)))


@dataclass(frozen=True, kw_only=True)
class FilesTask(NamedTask):
    """A task of official files, which must be on this machine."""

    label_column: str = "label"
    folder: str
    files: tuple[tuple[str, str], ...]
    """Possible names of the training and held-out files, without `.xz`; the second is empty for a
    single file."""

    def load(self) -> tuple[Split, Split]:
        """Return both splits.

        Raises:
            DataError: a file is missing or wrong.
        """
        for names in self.files:
            paths = [local(f"{self.folder}/{name}") for name in names if name]
            if all(paths):
                return self._splits([path for path in paths if path])
        wanted = "; or ".join(
            " and ".join(f"{self.folder}/{name}" for name in names if name) for names in self.files
        )
        raise DataError(
            f"the files of {self.folder} are not on this machine. Set {DATA_VARIABLE} to a folder "
            f"that holds {wanted}. Files of your own: --train and --dev."
        )

    def _splits(self, paths: Sequence[Path]) -> tuple[Split, Split]:
        train, dev = map(self._split, paths)
        return train, dev

    def _split(self, path: Path) -> Split:
        """Return the examples of a file."""
        problem = PROBLEMS[self.problem_type].of_labels(self.labels)
        labelled = read_labelled(self._table(path), self.text_columns, self.label_column, problem)
        return labelled.split(self.labels, self.folder)

    def _table(self, path: Path) -> Table:
        return open_words(path)


@dataclass(frozen=True, kw_only=True)
class WordsTask(FilesTask):
    """Sentences of labelled words."""

    problem_type: str = TOKEN_CLASSIFICATION.name
    label_column: str = TAGS


@dataclass(frozen=True, kw_only=True)
class LabelColumnsTask(FilesTask):
    """Texts with a column of 0 and 1 for each label, tab-separated."""

    problem_type: str = MULTI_LABEL.name

    def _table(self, path: Path) -> Table:
        return read_delimited(path, delimiter="\t", quoted=False)


@dataclass(frozen=True, kw_only=True)
class QuestionsTask(FilesTask):
    """Questions in SQuAD's JSON."""

    labels: tuple[str, ...] = QUESTION_ANSWERING.label_names(())
    metric: str = QUESTION_ANSWERING.metrics[0]
    text_columns: tuple[str, ...] = QUESTION_ANSWERING.columns.texts
    problem_type: str = QUESTION_ANSWERING.name
    label_column: str = QUESTION_ANSWERING.columns.label

    def _table(self, path: Path) -> Table:
        return open_table(path)


@dataclass(frozen=True, kw_only=True)
class GroupsTask(FilesTask):
    """Questions in groups. From a single file, a share of the groups is held out."""

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
    return Split(
        tuple(each.example for each in questions), tuple(each.target for each in questions)
    )


def _choices(count: int) -> dict[str, Any]:
    """Return the common fields of tasks with this number of choices."""
    numbers = tuple(map(str, range(count)))
    columns = ("question", *(f"choice_{number}" for number in numbers))
    return {"labels": numbers, "metric": "accuracy", "text_columns": columns}


def _tags(*types: str) -> tuple[str, ...]:
    """Return the labels for taggers of these entity types."""
    return TOKEN_CLASSIFICATION.label_names([[f"B-{each}" for each in types]])


PAIR = ("sentence1", "sentence2")
INFERENCE = ("premise", "hypothesis")
BINARY = ("0", "1")
FILM_SENTENCES = "movie-sentences/movie-sentences.txt.xz"
AG_NEWS = "fancyzhx/ag_news"
XNLI_LANGUAGES = {"de": "German", "en": "other English", "fr": "French", "zh": "Chinese"}


def _glue(
    folder: str,
    config: str,
    texts: tuple[str, ...] = ("sentence",),
    label: str = "label",
    names: tuple[str, ...] = (),
    columns: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return the sources of a GLUE task: files of its download script, or the hub.

    Wang et al. 2018, "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language
    Understanding", arXiv:1804.07461. The labels have the order of the hub's copy.
    """
    train, dev = (
        (TextFile(f"{folder}/{name}.tsv", texts, label, names, columns),)
        for name in ("train", "dev")
    )
    hub = HubSplit(config, "train"), HubSplit(config, "validation")
    return {"files": (train, dev), "hub": hub}


MNLI_TRAIN = (
    TextFile("MNLI/train.tsv", PAIR, "gold_label"),
    TextFile("MNLI/train.sample40k.tsv", PAIR, "gold_label", is_sample=True),
)


def _inference(
    description: str,
    held_out: tuple[TextFile, ...],
    hub: HubSplit | None,
    metric: str = "accuracy",
    scored_too: tuple[str, ...] = (),
    choice_files: tuple[TextFile, ...] = (),
) -> TextsTask:
    """Return a task that trains on MNLI (Williams et al. 2018, arXiv:1704.05426).

    XNLI: Conneau et al. 2018, arXiv:1809.05053.
    """
    return TextsTask(
        *(description, ("entailment", "neutral", "contradiction"), metric, INFERENCE),
        files=(MNLI_TRAIN, held_out),
        hub=(HubSplit("mnli", "train"), hub),
        scored_too=scored_too,
        choice_files=choice_files,
    )


def _xnli(language: str, official: str, name: str) -> tuple[TextFile, ...]:
    """Return files of XNLI: the official file with all languages, or a file per language."""
    return (
        TextFile(f"XNLI/xnli.{official}.tsv", PAIR, "gold_label", only=("language", language)),
        TextFile(f"XNLI/xnli.{name}.{language}.tsv", INFERENCE, names=("0", "1", "2")),
    )


def _news(official: str, other: str, *, is_sample: bool = False) -> tuple[TextFile, ...]:
    """Return files of AG News (Zhang et al. 2015, arXiv:1509.01626), which have no header.

    The text of an official row is its title and description, as in the hub's copy.
    """
    return (
        TextFile(
            official,
            ("title", "description"),
            names=("1", "2", "3", "4"),
            columns=("label", "title", "description"),
        ),
        TextFile(other, ("text",), columns=("text", "label"), is_sample=is_sample),
    )


SNIPS_SLOTS = (
    *("album", "artist", "best_rating", "city", "condition_description", "condition_temperature"),
    *("country", "cuisine", "current_location", "entity_name", "facility", "genre"),
    *("geographic_poi", "location_name", "movie_name", "movie_type", "music_item"),
    *("object_location_type", "object_name", "object_part_of_series_type", "object_select"),
    *("object_type", "party_size_description", "party_size_number", "playlist", "playlist_owner"),
    *("poi", "rating_unit", "rating_value", "restaurant_name", "restaurant_type", "served_dish"),
    *("service", "sort", "spatial_relation", "state", "timeRange", "track", "year"),
)
SNIPS_INTENTS = (
    *("AddToPlaylist", "BookRestaurant", "GetWeather", "PlayMusic", "RateBook"),
    *("SearchCreativeWork", "SearchScreeningEvent"),
)
EMOTIONS = (
    *("anger", "anticipation", "disgust", "fear", "joy", "love", "optimism"),
    *("pessimism", "sadness", "surprise", "trust"),
)
CHUNKS = ("ADJP", "ADVP", "CONJP", "INTJ", "LST", "NP", "PP", "PRT", "SBAR", "UCP", "VP")

TASKS: Mapping[str, NamedTask] = {
    "docs": DocsTask(
        "Which section of a docstring does this sentence stand in? (always available)",
        SECTIONS,
        "accuracy",
        ("text",),
    ),
    "sst2": TextsTask(
        "Does this piece of a film review praise or not? (GLUE)",
        ("negative", "positive"),
        "accuracy",
        ("sentence",),
        **_glue("SST-2", "sst2", names=BINARY),
        unlabelled_file=FILM_SENTENCES,
    ),
    "cola": TextsTask(
        "Is this sentence grammatical English? (GLUE)",
        ("unacceptable", "acceptable"),
        "matthews",
        ("sentence",),
        **_glue("CoLA", "cola", names=BINARY, columns=("source", "label", "mark", "sentence")),
    ),
    "mrpc": TextsTask(
        "Do these two sentences say the same? (GLUE)",
        ("not_equivalent", "equivalent"),
        "f1",
        PAIR,
        **_glue("MRPC", "mrpc", ("#1 String", "#2 String"), "Quality", BINARY),
    ),
    "rte": TextsTask(
        "Does the second sentence follow from the first? (GLUE)",
        ("entailment", "not_entailment"),
        "accuracy",
        PAIR,
        **_glue("RTE", "rte", PAIR),
    ),
    "qnli": TextsTask(
        "Does the sentence answer the question? (GLUE)",
        ("entailment", "not_entailment"),
        "accuracy",
        ("question", "sentence"),
        **_glue("QNLI", "qnli", ("question", "sentence")),
    ),
    "qqp": TextsTask(
        "Do these two questions ask the same? (GLUE)",
        ("not_duplicate", "duplicate"),
        "f1",
        ("question1", "question2"),
        **_glue("QQP", "qqp", ("question1", "question2"), "is_duplicate", BINARY),
    ),
    "mnli": _inference(
        "Does the second sentence follow from the first, or deny it? (GLUE, matched)",
        (
            TextFile("MNLI/dev_matched.tsv", PAIR, "gold_label"),
            TextFile("MNLI/dev_matched.premise-hypothesis.tsv", INFERENCE, "gold_label"),
        ),
        HubSplit("mnli", "validation_matched"),
        scored_too=("mnli-mismatched",),
    ),
    "mnli-mismatched": _inference(
        "The same, of sources that no training text is from (GLUE, mismatched)",
        (
            TextFile("MNLI/dev_mismatched.tsv", PAIR, "gold_label"),
            TextFile(
                "MNLI/dev_mismatched.sample1000.tsv",
                INFERENCE,
                columns=("label", *INFERENCE),
                is_sample=True,
            ),
        ),
        HubSplit("mnli", "validation_mismatched"),
    ),
    "ax": _inference(
        "The same, of sentences made to test what a model knows (GLUE's diagnostics)",
        (TextFile("AX/diagnostic-full.tsv", ("Premise", "Hypothesis"), "Label"),),
        None,
        metric="matthews",
    ),
    **{
        f"xnli-{language}": _inference(
            f"The same in {name}; it learns from MNLI's English (XNLI)",
            _xnli(language, "test", "test"),
            HubSplit(language, "test", "facebook/xnli"),
            choice_files=_xnli(language, "dev", "validation"),
        )
        for language, name in XNLI_LANGUAGES.items()
    },
    "wnli": TextsTask(
        "Does the second sentence, without its pronoun, follow from the first? (GLUE)",
        ("not_entailment", "entailment"),
        "accuracy",
        PAIR,
        **_glue("WNLI", "wnli", PAIR, names=BINARY),
    ),
    "stsb-embedding": TextsTask(
        "Are the vectors of similar sentences near each other? (GLUE)",
        ("embedding",),
        "cosine_spearman",
        PAIR,
        problem_type=SENTENCE_EMBEDDING.name,
        **_glue("STS-B", "stsb", PAIR, "score"),
        unlabelled_file=FILM_SENTENCES,
    ),
    "stsb": TextsTask(
        "How similar are these two sentences, from 0 to 5? (GLUE)",
        ("number",),
        "pearson",
        PAIR,
        problem_type=REGRESSION.name,
        **_glue("STS-B", "stsb", PAIR, "score"),
    ),
    "ag_news": TextsTask(
        "Which of four topics is this piece of news about? (AG News)",
        ("World", "Sports", "Business", "Sci/Tech"),
        "accuracy",
        ("text",),
        files=(
            _news("AG_News/train.csv", "AG_News-10k/train_10k.tsv", is_sample=True),
            _news("AG_News/test.csv", "AG_News-10k/test.tsv"),
        ),
        hub=(HubSplit(None, "train", AG_NEWS), HubSplit(None, "test", AG_NEWS)),
    ),
    "semeval2018-ec": LabelColumnsTask(
        "Which of eleven emotions does this tweet show? (SemEval-2018, task 1, E-c, English)",
        EMOTIONS,
        "jaccard",
        ("Tweet",),
        label_column=",".join(EMOTIONS),
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
    "snips-joint": FilesTask(
        "What does this request want, and which words are its particulars? (SNIPS)",
        (
            *(f"intent:{name}" for name in SNIPS_INTENTS),
            *(f"slots:{tag}" for tag in _tags(*SNIPS_SLOTS)),
        ),
        "intent:accuracy+slots:entity_f1",
        ("words",),
        folder="SNIPS-slots",
        files=(("train.seq.in", "valid.seq.in"),),
        problem_type="intent:single_label_classification,slots:token_classification",
        label_column=f"{LABEL}{BETWEEN}{TAGS}",
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
    "squad-ranking": GroupsTask(
        "Which paragraph of a document does this question stand under? (SQuAD)",
        RANKING.label_names(()),
        RANKING.metrics[0],
        RANKING.columns.texts,
        problem_type=RANKING.name,
        folder="SQuAD-2.0",
        read=squad_passages,
        files=(("dev-v2.0.json", ""), ("dev-without-xquad.json", "")),
    ),
    "copa": GroupsTask(
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
    "commonsenseqa": GroupsTask(
        "Which of five answers does common sense give?",
        **_choices(5),
        folder="CommonsenseQA",
        read=commonsense_qa,
        files=(
            ("train_rand_split.jsonl", "dev_rand_split.jsonl"),
            ("dev_rand_split.jsonl", ""),
        ),
    ),
    "hellaswag": GroupsTask(
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
    "race": GroupsTask(
        "Which of four answers does this article give?",
        **_choices(4),
        folder="RACE",
        read=race,
        files=(("train", "dev"),),
    ),
}
