"""The comparison of systems at equal processor time: its rows, its trainings, its table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.common.budget import Amount, Probe
from benchmarks.compression import __main__ as benchmark
from benchmarks.compression import graphs, training
from benchmarks.compression.__main__ import run
from benchmarks.compression.graphs import GATE_TEXTS, graphs_of
from benchmarks.compression.records import CompressionBenchmark
from benchmarks.compression.systems import CONTROLS, SYSTEMS
from benchmarks.compression.table import compression_block
from benchmarks.compression.training import Extent, Sources, Trainer, config_of, extent_of
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ParityError
from bertender.measure.compare import compare
from bertender.measure.gate_config import PARITY_TEXTS
from bertender.tasks.task import Task
from distill.methods import METHODS
from quantize.quantizer import QuantizeConfig, quantize

ENCODERS = {name: f"start-of-{name}" for name, row in SYSTEMS.items() if row.of_encoder}
SOURCES = Sources(Path("teacher"), {"learning_rate": 5e-5, "batch_size": 32}, ENCODERS)


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_has_settings_that_its_stage_allows(name: str) -> None:
    in_epochs = SYSTEMS[name].in_epochs
    extent = Extent(5, epochs=7) if in_epochs else Extent(5, unlabelled_texts=7)
    config = config_of(name, extent, 2, SOURCES)
    config.check_rules()
    values = config.model_dump()
    assert (values["seed"], values["epochs" if in_epochs else "unlabelled_texts"]) == (2, 7)
    assert values.get("student") == ENCODERS.get(name)


@pytest.mark.parametrize(
    "name", [name for name, row in SYSTEMS.items() if row.paper and "method" in row.settings]
)
def test_a_system_cites_the_paper_of_its_method(name: str) -> None:
    row = SYSTEMS[name]
    assert METHODS[row.settings["method"]].paper.startswith(row.paper)


@pytest.mark.parametrize(
    ("in_epochs", "texts", "extent"),
    [
        (True, 3000, Extent(1000, epochs=3)),
        (True, 1000, Extent(1000)),
        (True, 300, Extent(300)),  # not once over all of them
        (False, 2600, Extent(1000, unlabelled_texts=1600)),
        (False, 1000, Extent(1000)),
        (False, 300, Extent(300)),
    ],
)
def test_a_time_holds_texts_of_both_kinds_or_epochs(
    in_epochs: bool, texts: int, extent: Extent
) -> None:
    assert extent_of(texts, 1000, in_epochs=in_epochs) == extent
    assert extent.texts == texts


@pytest.mark.parametrize(("texts", "epochs"), [(1400, 1), (2600, 3)])
def test_epochs_are_whole(texts: int, epochs: int) -> None:
    assert extent_of(texts, 1000, in_epochs=True) == Extent(1000, epochs)


def test_a_file_takes_the_place_of_the_texts_of_the_task() -> None:
    sources = replace(SOURCES, unlabelled=Path("texts.txt"))
    more = Extent(5, unlabelled_texts=7)
    values = config_of("distilbert-6", more, 0, sources).model_dump()
    assert (values["unlabelled"], values["max_unlabelled"]) == (Path("texts.txt"), 7)
    assert values["unlabelled_texts"] == 0
    assert config_of("distilbert-6", Extent(5), 0, sources).model_dump()["unlabelled"] is None


def test_phases_are_as_long_as_the_last() -> None:
    values = config_of("tinybert-6", Extent(5, epochs=3), 0, SOURCES).model_dump()
    assert (values["earlier_epochs"], values["epochs"]) == (3, 3)


@pytest.mark.parametrize(
    ("systems", "students", "message"),
    [
        ("none-such", "", "no system 'none-such'"),
        (" , ", "", "names none"),
        ("pd", "", "give its encoder, --students pd=ENCODER"),
        ("pd", "none-such=an-encoder", "no system 'none-such'"),
        ("pd", "pd", "--students 'pd': give SYSTEM=ENCODER"),
        ("pd", "pd=an-encoder,hard-6=an-encoder", "'hard-6=an-encoder': give SYSTEM=ENCODER"),
        ("pd", "pd=an-encoder,pd=another", "two encoders"),
        ("hard-6", "pd=an-encoder", "--students pd: not one of --systems"),
    ],
)
def test_systems_that_are_not_there_are_refused(
    systems: str, students: str, message: str, trained: Artifact, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(trained.path, tmp_path, None, systems, students=students)


def test_an_encoder_has_the_name_that_it_was_given(
    trained: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a package lies in a folder of another name."""
    monkeypatch.setattr(training, "find_encoder", lambda name, setting: str(tmp_path))
    assert training.pretrained_by("a-packaged-one") == "a-packaged-one"
    monkeypatch.undo()
    assert training.pretrained_by(str(trained.path)).startswith(f"{trained.name} (finetune")


def test_what_costs_more_than_its_time_before_it_learns_is_refused(
    trained: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(trained, task, 60.0, SOURCES, tmp_path)
    probes = (Probe(amount=100, processor_s=109.0), Probe(amount=400, processor_s=114.0))
    known = Amount(amount=1, budget_s=60.0, identity="", probes=probes)
    monkeypatch.setattr(training, "amount_in", lambda *args: known)
    with pytest.raises(
        ConfigError, match=r"100 texts alone take 109 s .* it has 60 s. Give more --minutes"
    ):
        trainer.extent("hard-6")


def test_without_unlabelled_texts_labelled_ones_are_seen_more_often(
    trained: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(trained, task, 60.0, SOURCES, tmp_path)
    texts = 3 * len(task.train)
    probes = (Probe(amount=texts, processor_s=1.0),)
    known = Amount(amount=texts, budget_s=60.0, identity="", probes=probes)
    monkeypatch.setattr(training, "amount_in", lambda *args: known)
    assert trainer.unlabelled_texts == 0
    assert trainer.extent("distilbert-6") == Extent(len(task.train), epochs=3)


def test_an_encoder_of_another_width_is_refused(
    trained: Artifact, task: Task, tmp_path: Path
) -> None:
    sources = replace(SOURCES, encoders={"small-vocab-48": str(trained.path)})
    trainer = Trainer(trained, task, 1.0, sources, tmp_path)
    with pytest.raises(
        ConfigError, match=r"32 wide, of method None.*--method small-vocab --hidden-size 48"
    ):
        trainer.check(["small-vocab-48"])


def test_a_graph_that_few_texts_refuse_is_judged_by_as_many_as_usual(
    trained: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refuses_few(source: Artifact, task: Task, config: QuantizeConfig, out: Path) -> Artifact:
        asked.append(config.parity_texts)
        if config.parity_texts == GATE_TEXTS:
            raise ParityError("by chance")
        return quantize(source, task, config, out)

    monkeypatch.setattr(graphs, "quantize", refuses_few)
    for _ in range(2):
        made = graphs_of(trained, task, tmp_path)
        assert made.refused is None and made.names["int8"] == f"{trained.name}-int8-of-256-texts"
    assert asked == [GATE_TEXTS, PARITY_TEXTS], "once"


def test_a_graph_that_is_refused_twice_is_named(
    trained: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(source: Artifact, task: Task, config: QuantizeConfig, out: Path) -> Artifact:
        raise ParityError(f"of {config.parity_texts} texts")

    monkeypatch.setattr(graphs, "quantize", refuses)
    made = graphs_of(trained, task, tmp_path)
    assert [*made.names] == ["float32"] and made.refused == f"of {PARITY_TEXTS} texts"


@pytest.mark.parametrize("out, untimed", [(None, False), (Path("untimed.json"), True)])
def test_settings_of_a_timing_are_refused_where_nothing_is_timed(
    out: Path | None, untimed: bool, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="--noisy, --processes: nothing is timed"):
        run(tmp_path, tmp_path, out, untimed=untimed, noisy=True, processes=2)


@pytest.mark.slow
def test_systems_are_trained_scored_and_timed_once(
    trained: Artifact,
    task: Task,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    apart = replace(task, selection=task.train.first(24))
    monkeypatch.setattr(benchmark, "recorded_task", lambda artifact, changes: apart)
    monkeypatch.setattr(training, "MOST_EPOCHS", 1)
    quick = {"processes": 1, "rounds": 2, "single_texts": 2, "batch_size": 2}
    monkeypatch.setattr(
        benchmark,
        "compare",
        lambda timed, task, config: compare(timed, task, config.model_copy(update=quick)),
    )
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"{fruit} saw {n}\n" for fruit in ("apple", "plum") for n in range(9)))
    work, out = tmp_path / "work", tmp_path / "compression.json"
    settings = {"minutes": 2.0, "seeds": 2, "unlabelled": texts}
    control, absent, shorter, *_ = CONTROLS
    shallow = replace(SYSTEMS[control], settings={"method": "hard", "layers": 2})
    monkeypatch.setitem(SYSTEMS, control, shallow)
    monkeypatch.setitem(SYSTEMS, shorter, replace(shallow, share=0.5))
    asked = f"{control},{absent},{shorter},static,heads,q8bert"
    run(trained.path, work, None, asked, **settings)
    students = {path: path.stat().st_mtime_ns for path in work.glob("*/artifact.json")}
    assert len(students) >= 2
    run(trained.path, work, out, asked, **settings, noisy=True)
    result = CompressionBenchmark.model_validate_json(out.read_text())
    assert [each.name for each in result.systems] == [
        *(control, shorter, "static", "heads", "q8bert")
    ]
    assert result.systems[1].graphs == {}  # those of the longer training are as fast
    # the teacher has no six layers
    assert [*result.absent] == [absent] and "6" in result.absent[absent]
    assert "left out" in capsys.readouterr().out
    static = result.systems[2]
    assert len(static.processor_s) == 2 and static.unlabelled_texts == 18  # of the file
    assert {each.labelled_texts for each in result.systems} == {len(task.train)}
    assert static.graphs.keys() == {"float32", "int8"} or static.refused
    assert students == {path: path.stat().st_mtime_ns for path in students}
    text = compression_block("compression.json", out)
    assert "| the teacher | - |" in text and "| Weighted vectors of tokens (`static`) |" in text
    assert f"- {absent}: " in text and "Raw: `compression.json`" in text
    rows = {line.split(" | ")[0]: line.split(" | ") for line in text.splitlines() if "|" in line}
    over = rows["| Weighted vectors of tokens (`static`)"][4]
    assert over[0] in "+-" and over.endswith("]")  # points over the control
    assert rows[f"| {shallow.title} (`{control}`)"][4] == "-"
    published = rows["| Q8BERT (`q8bert`, Zafrir et al. 2019, arXiv 1910.06188)"][-3:]
    assert published == ["99.9% of BERT-base, SST-2", "4x", "- |"]
    assert f"best on the texts to choose by: {control}." in text
    assert f"Against labels alone (`{control}`), by the intervals: above " in text
    run(trained.path, work, tmp_path / "untimed.json", asked, **settings, untimed=True)
    assert students == {path: path.stat().st_mtime_ns for path in students}
    without = compression_block("untimed.json", tmp_path / "untimed.json")
    columns = [line.count(" | ") for line in (text.splitlines()[0], without.splitlines()[0])]
    assert columns[0] - columns[1] == 5 and "Faster" not in without.split("Published")[0]
    assert (
        "quantized (dynamic)" not in without
        and f"best on the texts to choose by: {control}" in without
    )
