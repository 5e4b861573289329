"""TASKS: what can be named by `--task`, and the official files that each is read from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertender.core.errors import DataError, HubUnreachableError
from bertender.core.machine import DATA_VARIABLE, data_directory
from bertender.problems import PROBLEMS
from bertender.problems.multi_label_classification import MULTI_LABEL
from bertender.problems.multiple_choice import MULTIPLE_CHOICE
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
from bertender.tasks.labelled import read_labelled, read_texts
from bertender.tasks.rows import open_table, read_delimited
from bertender.tasks.task import Split
from bertender.tasks.word_rows import open_words
from bertender.text.batch import Example

HUB_REPOSITORY = "nyu-mll/glue"
HUB_PLACE = f"api/datasets/{HUB_REPOSITORY}"
LONE_SHARE = 0.3
"""Of an official file that has no other beside it."""


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
