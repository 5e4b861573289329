"""A teacher's answers on whole texts: its own, computed once, made again where damaged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import XLNetConfig, XLNetForTokenClassification

from bertender.core import progress
from bertender.core.card import library_versions
from bertender.core.progress import show_progress
from bertender.tasks.task import Split, Task
from bertender.training import checkpoint as cached_tensors
from bertender.training.examples import TensorBatch, TokenDataset, token_dataset
from distill.losses.signals import Signals, Wanted
from distill.methods import METHODS
from distill.teachers import outputs
from distill.teachers import outputs as parts
from distill.teachers.outputs import (
    Column,
    Rows,
    cacheable,
    cached_in,
    joined_rows,
    rows_at,
    size_bytes,
    teacher_outputs,
    teacher_token_logits,
)
from tests.toy_models import tiny_classifier
from tests.toy_tagging import TASK as TAGGING
from tests.toys import tiny_tokenizer

WANTED: Wanted = {"logits": frozenset(), "sentence_states": frozenset({0, 3})}
COLUMNS = ["teacher_logits", "teacher_sentence_states_0", "teacher_sentence_states_3"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BERTENDER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[Wanted]:
    """What the teacher was run for, in the order of its runs."""
    runs: list[Wanted] = []
    read_signals = outputs.read_signals

    def counted(model: Any, inputs: TensorBatch, wanted: Wanted) -> Signals:
        runs.append(wanted)  # the toy task fits in one batch
        return read_signals(model, inputs, wanted)

    monkeypatch.setattr(outputs, "read_signals", counted)
    return runs


def examples(task: Task, longest: int = 64) -> TokenDataset:
    tokenizer = tiny_tokenizer()
    tokenizer.model_max_length = longest
    return token_dataset(task.train, tokenizer)


def test_answers_are_the_teachers_in_the_order_of_the_examples(task: Task, cache: Path) -> None:
    model, texts = tiny_classifier("bert"), examples(task)
    columns = teacher_outputs(model, "digest", texts, WANTED)
    assert sorted(columns) == COLUMNS
    for row in (0, 17, 95):
        ids = torch.tensor([texts.columns["input_ids"][row]])
        with torch.inference_mode():
            alone = model(ids, output_hidden_states=True)
        expected = (alone.logits[0], alone.hidden_states[0][0, 0], alone.hidden_states[3][0, 0])
        for name, values in zip(COLUMNS, expected, strict=True):
            torch.testing.assert_close(columns[name][row], values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("side", ["right", "left"])
def test_logits_of_tokens_are_not_those_of_padding(side: str, cache: Path) -> None:
    """XLNet's padding is in front."""
    tokenizer = tiny_tokenizer()
    tokenizer.padding_side = side
    shape = {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64, "num_labels": 3}
    torch.manual_seed(0)
    model = XLNetForTokenClassification(XLNetConfig(**shape, vocab_size=len(tokenizer))).eval()
    texts = token_dataset(TAGGING.train.first(8), tokenizer, TAGGING.problem_type)
    found = teacher_token_logits(model, side, texts)
    assert len({*map(len, found)}) > 1
    for ids, logits in zip(texts.columns["input_ids"], found, strict=True):
        with torch.inference_mode():
            alone = model(torch.tensor([ids])).logits[0]
        torch.testing.assert_close(logits, alone, rtol=1e-4, atol=1e-5)


def test_states_are_kept_in_the_precision_that_they_are_computed_in(
    task: Task, cache: Path
) -> None:
    model, texts = tiny_classifier("bert"), examples(task)
    exact, rounded = (
        teacher_outputs(model, "digest", texts, WANTED, bf16) for bf16 in (False, True)
    )
    assert {exact[name].dtype for name in COLUMNS} == {torch.float32}
    assert [rounded[name].dtype for name in COLUMNS] == [torch.float32, *[torch.bfloat16] * 2]
    for name in COLUMNS:
        torch.testing.assert_close(rounded[name].float(), exact[name], rtol=0.1, atol=0.1)
    for bf16, columns in ((False, exact), (True, rounded)):
        stored = sum(column.nbytes for column in columns.values())
        assert stored == size_bytes(model.config, WANTED, len(texts), bf16)


def test_only_what_is_not_there_yet_is_computed(
    task: Task, cache: Path, computed: list[Wanted]
) -> None:
    model, texts = tiny_classifier("bert"), examples(task)
    first = teacher_outputs(model, "one", texts, WANTED)
    again = teacher_outputs(model, "one", texts, WANTED)
    assert computed == [WANTED]
    assert all(torch.equal(first[name], again[name]) for name in COLUMNS)
    more = teacher_outputs(model, "one", texts, {"sentence_states": frozenset({3, 4})})
    assert computed[1:] == [{"sentence_states": frozenset({4})}]
    assert torch.equal(more[COLUMNS[-1]], first[COLUMNS[-1]])
    for digest, given, bf16 in (
        ("another", texts, False),
        ("one", token_dataset(task.dev, tiny_tokenizer()), False),
        ("one", examples(task, 8), False),
        ("one", texts, True),
    ):
        teacher_outputs(model, digest, given, WANTED, bf16)
    assert computed[2:] == [WANTED] * 4
    assert len(list(cache.rglob("*.safetensors"))) == 3 * 5 + 1


@pytest.mark.parametrize(("library", "again"), [("openvino", 0), ("torch", 1)])
def test_another_version_computes_again_where_it_computes(
    library: str,
    again: int,
    task: Task,
    cache: Path,
    computed: list[Wanted],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, texts = tiny_classifier("bert"), examples(task)
    teacher_outputs(model, "one", texts, WANTED)
    other = {**library_versions(), library: "0.0.1"}
    monkeypatch.setattr("bertender.training.checkpoint.library_versions", lambda: other)
    teacher_outputs(model, "one", texts, WANTED)
    assert computed == [WANTED] * (1 + again)


@pytest.mark.parametrize("damage", ["cut", "other rows", "other names"])
def test_a_damaged_file_is_made_again(
    damage: str, task: Task, cache: Path, computed: list[Wanted], caplog: pytest.LogCaptureFixture
) -> None:
    model, texts = tiny_classifier("bert"), examples(task)
    first = teacher_outputs(model, "one", texts, WANTED)
    expected = first[COLUMNS[1]].clone()
    (path,) = cache.rglob(f"*{COLUMNS[1]}.safetensors")
    (logits,) = cache.rglob("*logits.safetensors")
    damaged = {
        "cut": path.read_bytes()[:-10],
        "other rows": path.read_bytes(),
        "other names": logits.read_bytes().replace(b'"values"', b'"valves"'),
    }[damage]
    path.unlink()
    path.write_bytes(damaged)
    if damage == "other rows":
        few = token_dataset(task.dev, tiny_tokenizer())
        teacher_outputs(model, "one", few, WANTED)
        (other,) = {*cache.rglob(f"*{COLUMNS[1]}.safetensors")} - {path}
        path.write_bytes(other.read_bytes())
    computed.clear()
    again = teacher_outputs(model, "one", texts, WANTED)
    assert computed == [{"sentence_states": frozenset({0})}]
    assert torch.equal(again[COLUMNS[1]], expected)
    assert "made again" in caplog.text


def test_an_interrupted_computation_leaves_no_file(
    task: Task, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: object) -> torch.Tensor:
        raise KeyboardInterrupt

    monkeypatch.setattr(cached_tensors, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        teacher_outputs(tiny_classifier("bert"), "one", examples(task), WANTED)
    # but for the time that it took
    assert not [each for each in cache.rglob("*") if each.is_file() and ".stamps" not in each.parts]


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 8 to 16 texts, one of four of which may end one."""
    for name, value in {"LEAST_TEXTS": 8, "MOST_TEXTS": 16, "ONE_OF": 4}.items():
        monkeypatch.setattr(parts, name, value)


@contextmanager
def interrupted_at(call: int) -> Iterator[list[int]]:
    """Interrupt the teacher in a batch, as Ctrl-C does; list the texts of its batches."""
    batches: list[int] = []
    read_signals = outputs.read_signals

    def listed(model: Any, inputs: TensorBatch, wanted: Wanted) -> Signals:
        batches.append(len(inputs["input_ids"]))
        if len(batches) == call:
            raise KeyboardInterrupt
        return read_signals(model, inputs, wanted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outputs, "read_signals", listed)
        yield batches


def equal(ours: Mapping[str, Column], theirs: Mapping[str, Column]) -> bool:
    """Whether all columns are the same to the last bit."""
    pairs = [(ours[name], theirs[name]) for name in COLUMNS]
    return all(torch.equal(torch.stack(list(a)), torch.stack(list(b))) for a, b in pairs)


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("call", [1, 2, 5])
def test_a_killed_run_goes_on_where_it_stopped(
    call: int, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, texts = tiny_classifier("bert"), examples(task)
    monkeypatch.setenv("BERTENDER_CACHE", str(tmp_path / "whole"))
    with interrupted_at(0) as all_batches:
        whole = teacher_outputs(model, "one", texts, WANTED)
    assert sum(all_batches) == 96 and 7 <= len(all_batches) <= 12
    monkeypatch.setenv("BERTENDER_CACHE", str(tmp_path / "killed"))
    with interrupted_at(call) as batches, pytest.raises(KeyboardInterrupt):
        teacher_outputs(model, "one", texts, WANTED)
    with interrupted_at(0) as rest:
        resumed = teacher_outputs(model, "one", texts, WANTED)
    assert [*batches[:-1], *rest] == all_batches, "a part is one batch here, and none is done twice"
    assert equal(resumed, whole)


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize(
    ("chosen", "most"),
    [(range(96), 0), ([*range(40), *range(41, 96)], 32), ([5, *range(96)], 32)],
    ids=["more at the end", "one left out", "one in front"],
)
def test_only_the_parts_that_changed_are_computed(
    chosen: Sequence[int], most: int, task: Task, cache: Path
) -> None:
    """The first run has the first 64 texts, the second these and others."""
    model = tiny_classifier("bert")

    def of(rows: Iterable[int]) -> TokenDataset:
        split = Split(tuple(task.train.examples[row] for row in rows), (0,) * len([*rows]))
        return token_dataset(split, tiny_tokenizer())

    teacher_outputs(model, "one", of(range(64)), WANTED)
    with interrupted_at(0) as batches:
        again = teacher_outputs(model, "one", of(chosen), WANTED)
    unfinished = 16  # the last part of the first run may have ended with its texts
    assert 0 < sum(batches) <= 32 + unfinished + most < 96
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERTENDER_CACHE", str(cache.parent / "another"))
        assert equal(again, teacher_outputs(model, "one", of(chosen), WANTED))


def test_rows_of_several_parts() -> None:
    first, second = torch.arange(6).reshape(3, 2), torch.arange(6, 10).reshape(2, 2)
    rows = joined_rows([first, second])
    assert isinstance(rows, Rows) and joined_rows([first]) is first
    whole = torch.cat([first, second])
    assert len(rows) == 5 and torch.equal(torch.stack(list(rows)), whole)
    assert torch.equal(rows[-1], whole[-1])
    assert torch.equal(torch.stack(list(rows[1:4])), whole[1:4])
    for column in (rows, whole):
        assert torch.equal(torch.stack(list(rows_at(column, [4, 0]))), whole[[4, 0]])
    assert rows[0].data_ptr() == first.data_ptr(), "nothing is copied"
    with pytest.raises(IndexError):
        rows[5]


def test_a_log_has_texts_per_second(
    task: Task, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    monkeypatch.setattr(outputs, "TOKENS_PER_BATCH", 200)
    show_progress()
    teacher_outputs(tiny_classifier("bert"), "one", examples(task), WANTED)
    lines = capsys.readouterr().err.splitlines()
    assert re.search(r"teacher outputs  \d+/96  \S+  \S+ texts/s  \S+ left", lines[0])
    assert re.search(r"teacher outputs  96/96  \S+  \S+ texts/s$", lines[-1])


def test_a_batch_gives_back_what_is_kept() -> None:
    batch = {name: torch.full((2, 3), place) for place, name in enumerate(COLUMNS)}
    kept = cached_in({**batch, "input_ids": torch.ones(2, 3)}, WANTED)
    assert kept["logits"] is batch[COLUMNS[0]]
    assert kept["sentence_states"] == {0: batch[COLUMNS[1]], 3: batch[COLUMNS[2]]}
    assert cached_in({"input_ids": torch.ones(2, 3)}, WANTED) == {}
    del batch[COLUMNS[2]]
    assert set(cached_in(batch, WANTED)) == {"logits"}, "some layers are as good as none"


NEVER_RUN = {"bilstm", "hard", "pd", "pkd", "static", "theseus", "theseus-constant"}
"""Methods whose teacher is not run in any step."""


@pytest.mark.parametrize("name", METHODS)
def test_only_what_frees_a_phase_of_its_teacher_is_kept(name: str) -> None:
    reads = [phase.reads(2, 4) for phase in METHODS[name].at(2).phases]
    kept = cacheable(reads)
    for read in reads:
        alone = not read.keys() - {"logits", "sentence_states"}
        assert not alone or all(read[signal] <= kept[signal] for signal in read)
        assert alone or name not in NEVER_RUN


def test_a_phase_that_runs_the_teacher_takes_all_from_it() -> None:
    logits: Wanted = {"logits": frozenset()}
    online: Wanted = {"hidden_states": frozenset({4}), "sentence_states": frozenset({1})}
    assert cacheable([{**logits, **online}]) == {}
    states: Wanted = {"sentence_states": frozenset({2})}
    assert cacheable([{**logits, **online}, logits, states]) == {**logits, **states}
