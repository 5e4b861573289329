"""CoNLL files: where columns end, what is no word, and which columns have words and tags."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from bertender.core.errors import DataError, RowError
from bertender.tasks.loading import load_task
from bertender.tasks.rows import Row, SkippedRows, stop
from bertender.tasks.task import TaskConfig
from bertender.tasks.word_rows import ConllFile, open_words

Sentence = tuple[str, str]
"""Its words and tags, with bars between them."""


def read(path: Path, columns: tuple[str, str] = ("words", "tags")) -> list[Sentence]:
    return [sentence(row, columns) for row in open_words(path).rows(columns)]


def sentence(row: Row, columns: tuple[str, str]) -> Sentence:
    words, tags = (row.values[column] for column in columns)
    assert isinstance(words, list) and isinstance(tags, list)
    return "|".join(words), "|".join(tags)


READ: dict[str, tuple[str, list[Sentence]]] = {
    "a no-break space": ("we O\nNew\xa0York B-x\n", [("we|New\xa0York", "O|B-x")]),
    "spaces in a file with tabs": (
        "we\tO\nNew York\tB-x\n10 000 \tO\n",
        [("we|New York|10 000", "O|B-x|O")],
    ),
    "characters that end no line": (
        "a\u2028b O\nc\x85d\x0ce O\nf\u3000g O\n",
        [("a\u2028b|c\x85d\x0ce|f\u3000g", "O|O|O")],
    ),
    "CR LF, blanks and a byte-order mark": (
        "\ufeffa  O \r\nb\t O\r\n \t\r\n\xa0\r\n\nc O",
        [("a|b", "O|O"), ("c", "O")],
    ),
    "columns between": ("EU NNP I-NP I-x\n. . O O\n", [("EU|.", "B-x|O")]),
    "empty columns between": ("EU\t\tB-x\n.\t.\tO\n", [("EU|.", "B-x|O")]),
    "documents": (
        "-DOCSTART- -X- O O\n\nEU NNP I-NP I-x\nand CC O O\n\n-DOCSTART- -X- -X- O\n\n. . O O\n",
        [("EU|and", "B-x|O"), (".", "O")],
    ),
    "a document and its words": ("-DOCSTART- O\nEU B-x\n", [("EU", "B-x")]),
    "comments": (
        "# id = 7\n# text = # a\n#\tO\na\tB-x\n\n# newdoc\n\n#nlp\tO\n# b\tO\n",
        [("#|a", "O|B-x"), ("#nlp|# b", "O|O")],
    ),
    "comments of two columns": (
        "#\thttp://x [2009]\na\tX\tO\tO\nb\tX\tB-x\tO\n",
        [("a|b", "O|O")],
    ),
    "comments of as many columns as words have": (
        "# id 7f-1\tdomain=en\na _ _ B-x\n\n# id 7f-2\tdomain=en\n# _ _ O\nb _ _ O\n",
        [("a", "B-x"), ("#|b", "O|O")],
    ),
    "signs at the start": (
        "# O\n1 O\n\n# B-tag\nnlp I-tag\n",
        [("#|1", "O|O"), ("#|nlp", "B-tag|I-tag")],
    ),
    "signs as parts of speech": ("# # B-NP\n1 CD I-NP\n", [("#|1", "B-NP|I-NP")]),
    "marks of CoNLL-2012 and GENIA": (
        "#begin document (x); part 0\na NN B-x\n\n#end document\n###MEDLINE:9\n\nb NN O\n",
        [("a", "B-x"), ("b", "O")],
    ),
    "several sources": ("a NN B-x\nb CC O\n\nc B-x\nd O\n", [("a|b", "B-x|O"), ("c|d", "B-x|O")]),
}


@pytest.mark.parametrize(("content", "expected"), READ.values(), ids=READ)
def test_conll(content: str, expected: list[Sentence], tmp_path: Path) -> None:
    (tmp_path / "f.conll").write_bytes(content.encode())
    assert read(tmp_path / "f.conll") == expected


NUMBERED = (
    "# text = vámonos ya\n1-2\tvámonos\t_\t_\n1\tvamos\tVERB\t_\n2\tnos\tPRON\t_\n"
    "2.1\tfuera\tADV\t_\n3\tya\tADV\t_\n\n1\tsí\tINTJ\t_\n"
)


def test_columns_by_number(tmp_path: Path) -> None:
    """Of CoNLL-U, with lines that are no words of their own."""
    path = tmp_path / "f.conllu"
    path.write_text(NUMBERED, encoding="utf-8")
    expected = [("vamos|nos|ya", "VERB|PRON|ADV"), ("sí", "INTJ")]
    assert read(path, ("2", "3")) == expected
    with pytest.raises(DataError, match=r"column 1 numbers the words.*--text-column 2"):
        read(path)
    with pytest.raises(DataError, match=r"no column '9'.*'words', 'tags', '1', '2', '3', '4'"):
        read(path, ("2", "9"))
    with pytest.raises(DataError, match="words and tags are both column 4"):
        read(path, ("4", "tags"))


def test_the_record_has_the_chosen_column(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Parts of speech are labels of their own, after O for what the model does not see."""
    for name in ("train", "dev"):
        (tmp_path / f"{name}.conll").write_text("EU NNP I-ORG\nrejects VBZ O\n\nLondon NNP I-LOC\n")
    files = {name: tmp_path / f"{name}.conll" for name in ("train", "dev")}
    with caplog.at_level(logging.WARNING):
        entities = load_task(TaskConfig(**files, select=0.0))
    assert entities.labels == ("O", "B-LOC", "I-LOC", "B-ORG", "I-ORG")
    assert "train.conll: IOB1 tags are read as BIO" in caplog.text
    task = load_task(TaskConfig(**files, label_column="2", select=0.0))
    assert task.labels == ("O", "NNP", "VBZ")
    assert task.train.label_ids == ((1, 2), (1,))
    assert load_task(TaskConfig.parse(task.source)) == task


BAD: dict[str, tuple[str, str]] = {
    "a space in a word": ("a O\nNew York B-x\nb O\n\nc O\n", r"line 2: 3 columns, and 2 in most"),
    "a space in the one word": ("a O\nb O\n\nNew York B-x\n", r"line 4: 3 columns, and 2 in most"),
    "no tab": ("a\tO\nb O\nc\tO\n", r"line 2: 'b O' has no tag.*tabs"),
    "no tag": ("a O\nb\nc O\n", r"line 2: 'b' has no tag"),
    "an empty tag": ("a\tX\tO\nb\tX\t\n\nc\tX\tO\n", r"line 2: 2 columns, and 3 in most"),
    "an empty word": ("a\tO\n\tO\n", r"line 2: a word or its tag is empty"),
    "a slip": ("a B-x\nb O\nc I-x\n\nd O\n", r"line 3, column 'tags': word 3: 'I-x' follows 'O'"),
}


@pytest.mark.parametrize(("content", "said"), BAD.values(), ids=BAD)
def test_a_bad_line_is_of_its_sentence(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "f.conll"
    path.write_text(content)
    with pytest.raises(RowError, match=said):
        read(path)
    skipped = SkippedRows()
    rows = [*open_words(path, skipped).rows(("words", "tags"))]
    assert skipped.count == 1
    assert len(rows) == content.count("\n\n")


def test_a_byte_that_is_not_utf8_is_of_its_sentence(tmp_path: Path) -> None:
    path = tmp_path / "f.conll"
    path.write_bytes(b"a O\n\ncaf\xe9 O\n\nb O\n")
    skipped = SkippedRows()
    rows = [*open_words(path, skipped).rows(("words", "tags"))]
    assert [row.place for row in rows] == ["line 1", "line 5"]
    assert [row.place for row in skipped.first] == ["line 3"]


def test_a_column_that_one_sentence_does_not_have(tmp_path: Path) -> None:
    (tmp_path / "f.conll").write_text("a NN O\nb NN O\nc NN O\n\nd O\ne O\n")
    with pytest.raises(RowError, match=r"line 5: 2 columns, and column 3 is to be read"):
        read(tmp_path / "f.conll", ("1", "3"))


def test_words_of_two_files_end_at_blanks_alone(tmp_path: Path) -> None:
    (tmp_path / "f.seq.in").write_bytes("New\xa0York\u2028  is big \r\n".encode())
    (tmp_path / "f.seq.out").write_bytes(b"B-x O O\n")
    assert read(tmp_path / "f.seq.in") == [("New\xa0York\u2028|is|big", "B-x|O|O")]


@pytest.mark.data
def test_real_files(data_directory: Path) -> None:
    """Counts of NCBI-disease's entities and sentences in its paper's files, and words with #."""
    rows = read(data_directory / "NCBI-disease" / "test.tsv")
    assert len(rows) == 940
    assert sum(tags.split("|").count("B-Disease") for _, tags in rows) == 960
    tweets = read(data_directory / "WNUT-17" / "wnut17train.conll")
    assert sum(word == "#NFL" for words, _ in tweets for word in words.split("|")) == 1


OFFICIAL = (
    "-DOCSTART- -X- -X- O\r\n\r\n"
    "EU NNP I-NP I-ORG\r\nGerman JJ I-NP I-MISC\r\nGreek JJ I-NP B-MISC\r\n. . O O\r\n\r\n"
    "# a comment\r\nPeter NNP I-NP I-PER\r\nBlackburn NNP I-NP I-PER"
)
BIO_TAGS = [("B-ORG", "B-MISC", "B-MISC", "O"), ("B-PER", "I-PER")]


def predicted(path: Path, tags: list[tuple[str, ...]]) -> str:
    """The file with these tags for its sentences."""
    file = ConllFile.read(path)
    lines = [row.lines for row in file.rows(stop, ["words"])]
    return file.with_tags([*zip(lines, tags, strict=True)])


def test_predictions_are_written_in_the_scheme_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "eng.testa"
    path.write_bytes(OFFICIAL.encode())
    written = predicted(path, BIO_TAGS)
    words = [line for line in OFFICIAL.split("\r\n") if line and line[0] != "#"]
    own = [line.split()[-1] for line in words]
    assert (
        written
        == OFFICIAL.replace(words[0], f"{words[0]} O")
        .replace("I-ORG", "I-ORG I-ORG")
        .replace("I-NP I-MISC", "I-NP I-MISC I-MISC")
        .replace("B-MISC", "B-MISC B-MISC")
        .replace("O O\r\n\r\n#", "O O O\r\n\r\n#")
        .replace("I-PER", "I-PER I-PER")
        + "\r\n"
    )
    path.write_bytes(written.encode())
    assert [line.split()[-1] for line in written.split("\r\n") if line and line[0] != "#"] == own
    assert [tags for _, tags in read(path)] == ["|".join(tags) for tags in BIO_TAGS]


@pytest.mark.parametrize(
    ("content", "tags", "expected"),
    [
        ("a\nb\n\nc\n", [("B-x", "I-x"), ("O",)], "a B-x\nb I-x\n\nc O\n"),
        ("a\tS-y\nb\tO\n", [("B-x", "I-x")], "a\tS-y\tB-x\nb\tO\tE-x\n"),
        ("New York\tO\nb\tO", [("B-x", "O")], "New York\tO\tB-x\nb\tO\tO\n"),
        ("a NN\nb VB\n", [("B-x", "O")], "a NN B-x\nb VB O\n"),
        ("a NN\nb VB\n", [("NN", "NN")], "a NN NN\nb VB NN\n"),
    ],
    ids=["words alone", "IOBES", "tabs", "other tags", "plain tags"],
)
def test_tags_of_other_files(
    content: str, tags: list[tuple[str, ...]], expected: str, tmp_path: Path
) -> None:
    (tmp_path / "f.conll").write_text(content)
    assert predicted(tmp_path / "f.conll", tags) == expected


NAMED: dict[str, tuple[str, tuple[str, str], Sentence]] = {
    "CoNLL-2003": ("EU NNP I-NP I-ORG\n", ("words", "pos"), ("EU", "NNP")),
    "CoNLL-2000": ("EU NNP B-NP\n", ("word", "chunk"), ("EU", "B-NP")),
    "CoNLL-U": (
        "1\tEU\tEU\tPROPN\tNNP\t_\t0\troot\t_\t_\n2\t.\t.\tPUNCT\t.\t_\t1\tp\t_\t_\n",
        ("form", "upos"),
        ("EU|.", "PROPN|PUNCT"),
    ),
    "CoNLL-U Plus": (
        "# global.columns = ID FORM X:NER\n1 EU B-x\n2 . O\n",
        ("form", "x:ner"),
        ("EU|.", "B-x|O"),
    ),
}


@pytest.mark.parametrize(("content", "columns", "expected"), NAMED.values(), ids=NAMED)
def test_columns_have_names(
    content: str, columns: tuple[str, str], expected: Sentence, tmp_path: Path
) -> None:
    (tmp_path / "f.conll").write_text(content)
    assert read(tmp_path / "f.conll", columns) == [expected]


def test_a_wrong_tag_is_named_by_its_own_line(tmp_path: Path) -> None:
    (tmp_path / "f.conll").write_text("a B-x\nb I-x\n\n# c\nc O\nd I-x\n")
    with pytest.raises(
        DataError, match=r"f.conll, line 6, column 'tags': word 2: 'I-x' follows 'O'"
    ):
        read(tmp_path / "f.conll")
