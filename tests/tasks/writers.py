"""Small data for tests, written as bertender finds it: rows, GLUE files, documented source."""

from __future__ import annotations

import csv
import json
import lzma
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from bertender.problems.several_heads import BETWEEN
from bertender.tasks.named import (
    TASKS,
    FilesTask,
    GroupsTask,
    LabelColumnsTask,
    QuestionsTask,
)

__all__ = [
    "WRITERS",
    "make_sectioned_trees",
    "make_trees",
    "write_film_sentences",
    "write_sentences",
    "write_texts",
]

Rows = Sequence[Mapping[str, Any]]


def _both(folder: str, header: str, *lines: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {f"{folder}/{name}.tsv": (header, lines) for name in ("train", "dev")}


INFERENCE = (
    "index\tsentence1\tsentence2\tlabel1\tgold_label\n",
    (
        "0\tIt rains.\tIt is wet.\tentailment\tentailment\n",
        "1\tIt rains.\tIt is cold.\tneutral\tneutral\n",
        "2\tIt rains.\tIt is dry.\tcontradiction\tcontradiction\n",
    ),
)
OFFICIAL: Mapping[str, tuple[str, tuple[str, ...]]] = {
    **_both("SST-2", "sentence\tlabel\n", "a fine film \t1\n", "a dull film \t0\n"),
    **_both("CoLA", "", "gj04\t1\t\tThe sailors rode.\n", "gj04\t0\t*\tSailors the rode.\n"),
    **_both(
        "MRPC",
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n",
        '1\t7\t8\tHe said "yes.\t"Yes, he said.\n',
        "0\t7\t9\tHe said no.\tShe left.\n",
    ),
    **_both(
        "RTE",
        "index\tsentence1\tsentence2\tlabel\n",
        "0\tIt rains.\tIt is wet.\tentailment\n",
        "1\tIt rains.\tIt is dry.\tnot_entailment\n",
    ),
    **_both(
        "QNLI",
        "index\tquestion\tsentence\tlabel\n",
        "0\tWho came?\tAnn came.\tentailment\n",
        "1\tWho came?\tIt rains.\tnot_entailment\n",
    ),
    **_both(
        "QQP",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n",
        "5\t11\t12\tWho is it?\tWho was that?\t1\n",
        "6\t13\t14\tWho is it?\tWhat is it?\t0\n",
    ),
    **_both(
        "WNLI",
        "index\tsentence1\tsentence2\tlabel\n",
        "5\tAnn ran. She won.\tAnn won.\t1\n",
        "6\tAnn ran. She won.\tEve won.\t0\n",
    ),
    **_both(
        "STS-B",
        "index\tgenre\tfilename\tsentence1\tsentence2\tscore\n",
        "0\tnews\tA\tA plane lands.\tAn air plane lands.\t4.750\n",
        "1\tnews\tA\tA plane lands.\tA man eats.\t0.000\n",
    ),
    "MNLI/train.tsv": INFERENCE,
    "MNLI/dev_matched.tsv": INFERENCE,
    "MNLI/dev_mismatched.tsv": (INFERENCE[0], INFERENCE[1][::-1]),
    "AX/diagnostic-full.tsv": (
        "Lexical Semantics\tLogic\tKnowledge\tDomain\tPremise\tHypothesis\tLabel\n",
        (
            '\tNegation\t\tNews\tThe "cat sat.\tThe cat did not sit.\tcontradiction\n',
            "\t\t\tNews\tA cat sat.\tAn animal sat.\tentailment\n",
            "\t\t\tNews\tA cat sat.\tA grey cat sat.\tneutral\n",
        ),
    ),
    "XNLI/xnli.test.tsv": (
        "language\tgold_label\tsentence1\tsentence2\tpairID\n",
        tuple(
            f"{language}\t{label}\tEs regnet.\t{language} {label}.\t1\n"
            for language in ("ar", "de", "en", "fr", "zh")
            for label in ("neutral", "contradiction", "entailment")
        ),
    ),
    "XNLI/xnli.dev.tsv": (
        "language\tgold_label\tsentence1\tsentence2\tpairID\n",
        tuple(
            f"{language}\t{label}\tEs schneit.\t{language} {label}.\t1\n"
            for language in ("ar", "de", "en", "fr", "zh")
            for label in ("contradiction", "entailment")
        ),
    ),
    **{
        f"AG_News/{name}.csv": (
            "",
            tuple(
                f'"{label}","Title {label}, or ""so"" (AP)","AP - A \\second text."\n'
                for label in (3, 1, 2, 4)
            ),
        )
        for name in ("train", "test")
    },
}
"""The header and some rows of each file, as its makers write them."""


def _delimited(path: Path, rows: Rows, delimiter: str) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


def _jsonl(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _parquet(path: Path, rows: Rows) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path


WRITERS: Mapping[str, Callable[[Path, Rows], Path]] = {
    ".csv": partial(_delimited, delimiter=","),
    ".tsv": partial(_delimited, delimiter="\t"),
    ".jsonl": _jsonl,
    ".parquet": _parquet,
}


def write_texts(root: Path, copies: int = 3) -> Path:
    """Write every file of OFFICIAL below `root`: its lines, `copies` times to train on."""
    for place, (header, lines) in OFFICIAL.items():
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        count = copies if path.stem == "train" else 1
        path.write_text(header + "".join(lines) * count, encoding="utf-8")
    return root


def write_sentences(root: Path) -> Path:
    """Write every set of official files below `root`, with all labels that its row has."""
    for row in TASKS.values():
        if isinstance(row, FilesTask):
            (root / row.folder).mkdir(parents=True, exist_ok=True)  # two may share their files
            for name in filter(None, row.files[0]):
                words = [f"w{number}" for number in range(len(row.labels))]
                path = root / row.folder / name
                if isinstance(row, GroupsTask) and row.folder in OF_CHOICES:
                    OF_CHOICES[row.folder](path, len(row.labels))
                elif isinstance(row, LabelColumnsTask):
                    header = "\t".join(("ID", *row.text_columns, *row.labels))
                    every, none = ("\t".join(value * len(row.labels)) for value in "10")
                    lines = f'{header}\n1\tIt "is so.\t{every}\n2\tNo.\t{none}\n'
                    path.write_text(lines, encoding="utf-8")
                elif isinstance(row, QuestionsTask | GroupsTask):
                    path.write_text(SQUAD, encoding="utf-8")
                elif BETWEEN in row.problem_type:
                    _write_heads(path, row.labels)
                elif path.suffix == ".in":
                    path.write_text(" ".join(words) + "\n", encoding="utf-8")
                    path.with_suffix(".out").write_text(" ".join(row.labels), encoding="utf-8")
                else:
                    lines = map("\t".join, zip(words, row.labels, strict=True))
                    path.write_text("\n".join(lines), encoding="utf-8")
    return root


def _write_heads(path: Path, labels: Sequence[str]) -> None:
    """Write a sentence with all tags for each label of sentences."""
    heads: dict[str, list[str]] = {}
    for label in labels:
        head, _, own = label.partition(":")
        heads.setdefault(head, []).append(own)
    of_sentences, tags = heads.values()
    words = " ".join(f"w{number}" for number in range(len(tags)))
    for suffix, lines in (
        (".in", [words] * len(of_sentences)),
        (".out", [" ".join(tags)] * len(of_sentences)),
    ):
        path.with_suffix(suffix).write_text("\n".join(lines), encoding="utf-8")
    path.with_suffix("").with_suffix(".label").write_text("\n".join(of_sentences))


def _of_musician(name: str) -> dict[str, object]:
    """An article of SQuAD, of two paragraphs."""
    answer = {"text": name, "answer_start": 0}
    who = {"id": f"{name} 1", "question": f"Who plays {name}?", "answers": [answer]}
    where = {"id": f"{name} 2", "question": "Where?", "answers": [], "is_impossible": True}
    contexts = {f"{name} plays.": [who, where], f"{name} rests.": []}
    paragraphs = [{"context": text, "qas": asked} for text, asked in contexts.items()]
    return {"title": name, "paragraphs": paragraphs}


SQUAD = json.dumps({"data": [*map(_of_musician, ("Miles", "Bill", "Art", "Chet", "Clark"))]})


def _write_copa(path: Path, count: int) -> None:
    items = "".join(
        f'<item id="{right}" asks-for="cause" most-plausible-alternative="{right + 1}">'
        f"<p>{path.stem} {right}.</p><a1>It rained.</a1><a2>It was dry {right}.</a2></item>"
        for right in range(count)
    )
    path.write_text(f'<?xml version="1.0"?>\n<copa-corpus>{items}</copa-corpus>')


def _write_jsonl(row: Callable[[str, list[str], int], object]) -> Callable[[Path, int], None]:
    def write(path: Path, count: int) -> None:
        choices = [f"choice {number}" for number in range(count)]
        rows = (row(f"{path.stem} {right}", choices, right) for right in range(count))
        path.write_text("\n".join(map(json.dumps, rows)))

    return write


def _write_race(folder: Path, count: int) -> None:
    (folder / "high").mkdir(parents=True)
    options = [[f"choice {number}" for number in range(count)]] * count
    row = {
        "article": f"An article\nof {folder.name}.",
        "questions": [f"Question {number}?" for number in range(count)],
        "options": options,
        "answers": ["ABCD"[right] for right in range(count)],
    }
    (folder / "high" / "1.txt").write_text(json.dumps(row))


OF_CHOICES: dict[str, Callable[[Path, int], None]] = {
    "COPA": _write_copa,
    "CommonsenseQA": _write_jsonl(
        lambda text, choices, right: {
            "question": {"stem": text, "choices": [{"text": each} for each in choices]},
            "answerKey": "ABCDE"[right],
        }
    ),
    "HellaSwag": _write_jsonl(
        lambda text, choices, right: {
            "activity_label": "Rowing",
            "ctx": text,
            "endings": choices,
            "label": right,
        }
    ),
    "RACE": _write_race,
}


def write_film_sentences(root: Path, sentences: Sequence[str]) -> Path:
    """Write the texts without labels of the task `sst2` below `root`."""
    path = root / "movie-sentences" / "movie-sentences.txt.xz"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(lzma.compress("\n".join(sentences).encode()))
    return path


def make_trees(folder: Path, labels: tuple[str, ...], files: int = 30) -> dict[str, Path]:
    """A tree of documented source for each label: 30 files of two passages."""
    roots = {}
    for number, label in enumerate(labels):
        roots[label] = folder / f"tree{number}"
        roots[label].mkdir(parents=True)
        for file in range(files):
            text = " ".join(f"{label}{file} speaks of its matter" for _ in range(9))
            (roots[label] / f"f{file}.py").write_text(f'"""{text}"""\n')
    return roots


NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def make_sectioned_trees(folder: Path, names: tuple[str, ...], files: int = 30) -> dict[str, Path]:
    """A tree for each name: 30 files with a sentence of each section, no two of them alike."""
    roots = {}
    for library, name in enumerate(names):
        roots[name] = folder / f"sectioned{library}"
        roots[name].mkdir(parents=True)
        for file in range(files):
            words = " ".join(NUMBERS[int(digit)] for digit in f"{library:02}{file:02}")
            text = (
                f"Pour beer {words}.\n\nArgs:\n    x: Glass of beer {words}.\n\n"
                f"Returns:\n    Some foam on {words}.\n\nRaises:\n    ValueError: If broken is "
                f"{words}.\n\nNote:\n    It is cold {words}.\n"
            )
            (roots[name] / f"f{file}.py").write_text(f'"""{text}"""\n')
    return roots
