"""A compression from beginning to end: planned, trained, chosen, and what an operator then has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest
from transformers import AutoConfig, AutoModel

from bertender.comparison.records import Comparison
from bertender.compression.candidates import Candidate, Start, starts_of
from bertender.compression.compress import REPORT, TABLE, Compression, Finishing
from bertender.compression.config import CompressConfig
from bertender.compression.plan import NEAR
from bertender.compression.report import MODEL, CompressionReport, sentence, serve_command
from bertender.compression.training import probe_steps, student_steps
from bertender.core.artifact import Artifact, copy_artifact, lineage
from bertender.core.errors import ArtifactError, BertenderError, ConfigError, RefusedError
from bertender.models.classifier import open_classifier
from bertender.tasks.task import Task
from bertender.text.tokenizer import load_tokenizer
from distill.pretraining.vocabulary_cutting import needed_tokens
from tests.compression.brief import brief_probes
from tests.compression.toy_costs import shown
from tests.runtimes import needs
from tests.toy_models import VOCABULARY, save_encoder
from tests.toy_tagging import TASK as TAGGING
from tests.toys import tiny_tokenizer

__all__ = ["brief_probes"]

pytestmark = pytest.mark.usefixtures("brief_probes")

SMALL = {
    "students": (),
    "layers": (1, 2),
    "heads": (0.0, 0.5),
    "ffn": (0.0, 0.5),
    "schemes": ("dynamic",),
    "epochs": 2,
    "recovery_epochs": 1,
    "learning_rate": 3e-3,
    "batch_size": 16,
    "noisy": True,
    "threads": 1,
    "processes": 1,
}


def _compression(
    trained: Artifact, task: Task, out: Path, said: list[str] | None = None, **settings: object
) -> Compression:
    config = CompressConfig.parse({**SMALL, **settings})
    return Compression(trained, task, config, out, (said if said is not None else []).append)


ONE_SHAPE = {"layers": (1,), "heads": (0.0,), "ffn": (0.0,)}


@pytest.fixture(scope="module")
def done(
    brief_probes: None, trained: Artifact, task: Task, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, CompressionReport]:
    out = tmp_path_factory.mktemp("compressed")
    return out, _compression(trained, task, out, candidates=2).run()


def test_the_model_is_an_artifact_that_classifies(
    done: tuple[Path, CompressionReport], task: Task
) -> None:
    out, report = done
    model = Artifact.load(out / MODEL)
    assert model.card.precision == "int8"
    assert open_classifier(model).logits(task.dev.examples[:3]).shape == (3, 2)
    assert report.verdict == "met"
    whole = [*lineage(model)]
    assert all(isinstance(each, Artifact) for each in whole)
    assert len(whole) > 2


def test_the_report_has_every_candidate(done: tuple[Path, CompressionReport]) -> None:
    out, report = done
    assert CompressionReport.model_validate_json((out / REPORT).read_text()) == report
    assert len(report.candidates) == len({each.candidate for each in report.candidates}) == 16
    trained = [each for each in report.candidates if each.rounds]
    assert len(trained) == 2
    chosen = report.candidates[0]
    assert chosen.candidate.name == report.chosen
    assert (chosen.measured, chosen.score) != (None, None)
    assert all(each.left_out for each in report.candidates[1:])
    assert report.agreement.models == 1


def test_the_table_has_the_chain(done: tuple[Path, CompressionReport]) -> None:
    out, report = done
    table = Comparison.model_validate_json((out / TABLE).read_text())
    assert table.rows[0].digest
    assert table.rows[-1].score == report.candidates[0].score


def test_the_report_says_what_to_deploy(done: tuple[Path, CompressionReport]) -> None:
    _, report = done
    assert report.chosen is not None
    assert sentence(report).startswith(f"Deploy {report.chosen}: accuracy")
    assert f"{report.chosen} (chosen)" in shown(report)


def test_a_second_run_makes_nothing_again(
    done: tuple[Path, CompressionReport], trained: Artifact, task: Task
) -> None:
    out, report = done
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
    again = _compression(trained, task, out, candidates=2).run()
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")} == before
    assert (again.chosen, again.minutes) == (report.chosen, report.minutes)
    assert report.minutes > 0


def test_no_model_of_other_limits_stays_where_none_is_within_these(
    done: tuple[Path, CompressionReport],
    trained: Artifact,
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = copytree(done[0], tmp_path / "again")
    monkeypatch.setattr(Finishing, "first_that_holds", lambda self, ranked: ([*ranked], None))
    said: list[str] = []
    with pytest.raises(RefusedError):
        _compression(trained, task, out, said, candidates=2).run()
    assert f"remove {out / MODEL}" in said[-1]
    report = CompressionReport.model_validate_json((out / REPORT).read_text())
    assert report.verdict == "none holds"
    assert not (out / MODEL).exists() and not (out / TABLE).exists()


@pytest.mark.slow
def test_the_whole_teacher_is_a_candidate(trained: Artifact, task: Task, tmp_path: Path) -> None:
    """Nothing is trained where nothing is cut: it is exported and quantized."""
    report = _compression(
        trained, task, tmp_path, **{**ONE_SHAPE, "layers": (4,)}, candidates=1
    ).run()
    assert report.chosen == "teacher-4-dynamic"
    assert (report.verdict, report.minutes) == ("met", 0.0)


def test_the_vocabulary_is_predicted_from_all_texts(
    trained: Artifact, task: Task, tmp_path: Path
) -> None:
    """Those without labels are counted too, as the winner's are, up to the most entries."""
    few, texts = replace(task, train=task.train.first(8)), tmp_path / "more.txt"
    texts.write_text("\n".join(text for (text,) in task.train.after(8).examples))
    settings = {**ONE_SHAPE, "vocab_floor": 1}
    added: dict[str, dict[str, object]] = {
        "labelled": {},
        "all": {"unlabelled": texts},
        "most": {"unlabelled": texts, "vocab_size": 70},
    }
    sizes = {}
    for name, each in added.items():
        compression = _compression(trained, few, tmp_path / name, **settings, **each)
        report = compression.plan()
        (cut,) = [row for row in report.candidates if row.candidate.vocab]
        sizes[name] = cut.predicted.model_mb
    assert sizes["labelled"] < sizes["all"]
    assert sizes["most"] < sizes["all"]


def test_a_vocabulary_of_many_characters_is_cut_by_default(trained: Artifact, task: Task) -> None:
    """Chinese has more of them than the default size: they stay, and the start has candidates."""
    small = {"students": ("static",), "layers": (1,), "schemes": ("dynamic",)}
    config = CompressConfig.parse(small)
    own, static = starts_of(trained, task, config)
    least = own.least_entries
    assert static.least_entries == least > 3
    with pytest.raises(ConfigError, match=rf"Give {least} or more"):
        needed_tokens(load_tokenizer(trained.path), ["plum"], size=least - 1)
    assert vocabulary_size(own, config) == config.vocab_size
    of_chinese = own.model_copy(update={"least_entries": 15_000})
    assert vocabulary_size(of_chinese, config) == 30_000
    explicit = CompressConfig.parse({**small, "vocab_size": 20_000})
    assert vocabulary_size(of_chinese, explicit) == 20_000


def vocabulary_size(start: Start, config: CompressConfig) -> int:
    shape = {"layers": 1, "heads": 0.0, "ffn": 0.0, "vocab": True, "scheme": "dynamic"}
    *_, step = student_steps(Candidate(start=start, **shape), config, 0)
    return int(step.settings["vocab_size"])


@pytest.mark.parametrize(
    ("start", "cut_in"),
    [
        (Start(name="small", layers=4, encoder="small"), "student"),
        (Start(name="teacher", layers=4, method="hard"), "student"),
        (Start(name="teacher", layers=4, method="pkd"), "pruned"),
        (Start(name="teacher", layers=4, method="tinybert"), "pruned"),
        (Start(name="static", layers=0, method="static"), "student"),
    ],
)
def test_a_smaller_vocabulary_is_learned_with_where_the_method_allows_it(
    start: Start, cut_in: str
) -> None:
    """A probe learns from few texts, and is cut afterwards by the tokens of all."""
    config = CompressConfig()
    shape = {"layers": min(start.layers, 2), "heads": 0.0, "ffn": 0.0, "vocab": True}
    cut = Candidate(start=start, **shape, scheme="dynamic")
    sizes = {step.name: step.settings["vocab_size"] for step in student_steps(cut, config, 0)}
    pruned = {} if cut_in == "student" else {"student": "all"}
    assert sizes == {**pruned, cut_in: config.vocab_size}
    (student,), (cutting,) = probe_steps(cut, config)
    assert (student.settings["vocab_size"], cutting.settings["vocab"]) == ("all", "task")


@pytest.mark.slow
def test_a_candidate_near_a_limit_is_measured_before_it_is_trained(
    trained: Artifact, task: Task, tmp_path: Path
) -> None:
    shape = {"layers": (1, 2, 4), "heads": (0.0,), "ffn": (0.0, 0.5), "candidates": 1}
    plan = _compression(trained, task, tmp_path, **shape).plan()
    measured = {each.candidate for each in plan.probes}
    assert {each.candidate for each in plan.candidates if each.probe} == measured
    one = next(each for each in plan.candidates if not each.probe and each.candidate.layers == 4)
    limit = one.predicted.model_mb
    near = _compression(trained, task, tmp_path, **shape, max_mb=limit).plan()
    (after,) = [each for each in near.candidates if each.candidate == one.candidate]
    assert after.probe is not None and after.cost == after.probe
    assert after.fits == (after.cost.model_mb <= limit)
    place = tmp_path / "near-limits" / f"{one.candidate.name}.json"
    before = place.stat().st_mtime_ns
    _compression(trained, task, tmp_path, **shape, max_mb=limit * 1.001).plan()
    assert place.stat().st_mtime_ns == before, "with another limit it is as it was"


@pytest.mark.parametrize(("name", "value"), [("batch_size", 7), ("no_dropout", True)])
def test_students_and_their_recovery_learn_as_was_set(name: str, value: int) -> None:
    start = Start(name="small", layers=4, encoder="small")
    shape = {"layers": 2, "heads": 0.5, "ffn": 0.0, "vocab": False, "scheme": "dynamic"}
    steps = student_steps(Candidate(start=start, **shape), CompressConfig.parse({name: value}), 0)
    assert [(step.stage, step.settings[name]) for step in steps] == [
        ("distill", value),
        ("prune", value),
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": (20,)}, r"layers=20: no start has a depth among these.*teacher 4"),
        ({"layers": (0,)}, "layers=.*one layer at least"),
        ({"method": "tinybrt"}, "tinybrt.*Did you mean 'tinybert'"),
        ({"method": "static"}, "static"),
        ({"method": "pd"}, "method 'pd' needs a small pre-trained student of its own"),
        ({"schemes": ("auto",)}, "auto tries several"),
        ({"schemes": ("qat",)}, "schemes=qat: it trains"),
        ({"unlabelled": "missing.txt"}, "missing.txt"),
        ({"unlabelled": "a.txt", "unlabelled_texts": 3}, "not mixed"),
    ],
)
def test_wrong_settings_are_refused_before_a_probe_is_made(
    settings: dict[str, object], message: str, trained: Artifact, task: Task, tmp_path: Path
) -> None:
    with pytest.raises(BertenderError, match=message):
        _compression(trained, task, tmp_path / "out", **settings).plan()
    assert not (tmp_path / "out").exists()


def test_what_is_no_model_is_not_written_over(
    trained: Artifact, task: Task, tmp_path: Path
) -> None:
    (tmp_path / MODEL).mkdir()
    (tmp_path / MODEL / "notes.txt").write_text("mine")
    with pytest.raises(BertenderError, match=r"artifact"):
        _compression(trained, task, tmp_path).plan()


def test_a_model_of_another_command_is_not_written_over(
    trained: Artifact, task: Task, tmp_path: Path
) -> None:
    copy_artifact(trained, tmp_path / MODEL)
    (tmp_path / REPORT).write_text('{"of": "another command"}')
    with pytest.raises(ArtifactError, match=r"a finished artifact.*--force"):
        _compression(trained, task, tmp_path).plan()


def test_encoders_of_one_name_are_told_apart(trained: Artifact, task: Task, tmp_path: Path) -> None:
    names = [str(save_encoder("bert", tmp_path / folder / "teacher")) for folder in "ab"]
    config = CompressConfig.parse({**SMALL, "students": tuple(names)})
    assert [start.name for start in starts_of(trained, task, config)] == [
        "teacher",
        "teacher-2",
        "teacher-3",
    ]


def test_a_start_that_no_student_has_is_left_out(
    trained: Artifact, task: Task, tmp_path: Path
) -> None:
    """A decoder has logits alone to give."""
    config = AutoConfig.for_model("gpt2", n_layer=4, n_embd=32, n_head=4, vocab_size=VOCABULARY)
    AutoModel.from_config(config).save_pretrained(tmp_path / "decoder")
    tiny_tokenizer().save_pretrained(tmp_path / "decoder")
    settings = {**ONE_SHAPE, "students": (str(tmp_path / "decoder"),)}
    plan = _compression(trained, task, tmp_path / "out", **settings).plan()
    starts = {each.candidate.start.name for each in plan.candidates}
    assert starts == {"teacher"} and [*plan.obstacles] == ["decoder as dynamic"]


def test_a_student_without_layers_is_trained_and_chosen(
    trained: Artifact, task: Task, tmp_path: Path
) -> None:
    """The limit lets nothing else pass: one of size, which no other work on the machine changes."""
    out, settings = tmp_path / "out", {**ONE_SHAPE, "students": ("static",)}
    plan = _compression(trained, task, out, **settings).plan()
    sizes = {each.candidate.name: each.predicted.model_mb for each in plan.candidates}
    others = [size for name, size in sizes.items() if not name.startswith("static")]
    limit_mb = (1 - 2 * NEAR) * min(others)  # as wide as it can be
    assert sizes["static-dynamic"] < limit_mb
    report = _compression(trained, task, out, **settings, max_mb=limit_mb, candidates=1).run()
    assert report.chosen is not None and report.chosen.startswith("static")
    model = Artifact.load(out / MODEL)
    assert open_classifier(model).logits(task.dev.examples[:3]).shape == (3, 2)


@pytest.mark.slow
@needs("openvino")
def test_a_model_for_another_runtime_is_timed_scored_and_served_in_it(
    trained: Artifact, task: Task, tmp_path: Path
) -> None:
    settings = {**ONE_SHAPE, "candidates": 1}
    form = {"schemes": ("static",), "runtimes": ("openvino",)}
    report = _compression(trained, task, tmp_path, **settings, **form).run()
    assert report.chosen == "teacher-1-static-openvino"
    table = Comparison.model_validate_json((tmp_path / TABLE).read_text())
    assert table.rows[-1].runtime == "openvino"
    findings = Artifact.load(tmp_path / MODEL).card.findings.quantization
    assert findings is not None and findings.runtime == "openvino"
    assert "for a text in OpenVINO (" in sentence(report)
    assert serve_command(report, tmp_path).endswith("--runtime openvino")


@pytest.mark.slow
def test_attention_as_one_operator_is_tried_beside_the_plain_one(
    trained: Artifact, task: Task, tmp_path: Path
) -> None:
    """A BERT has it; its student by the default method, a DistilBERT, has not."""
    settings = {**ONE_SHAPE, "layers": (1, 4), "fused_attention": True}
    plan = _compression(trained, task, tmp_path, **settings).plan()
    made = {(each.candidate.layers, each.candidate.variant_name) for each in plan.candidates}
    assert made == {(1, "dynamic"), (4, "dynamic"), (4, "dynamic-fused-attention")}
    assert [*plan.obstacles] == ["students of teacher as dynamic-fused-attention"]


def test_each_method_is_a_start(trained: Artifact, task: Task) -> None:
    config = CompressConfig.parse({**SMALL, "layers": (1, 4), "method": "tinybert,minilm"})
    found = {start.name: start.method for start in starts_of(trained, task, config)}
    assert found == {"teacher": None, "teacher-tinybert": "tinybert", "teacher-minilm": "minilm"}


@pytest.mark.slow
def test_several_methods_are_starts_of_the_teachers_layers(
    trained: Artifact, task: Task, tmp_path: Path
) -> None:
    """The whole teacher, which no method trains, is a candidate once."""
    settings = {**ONE_SHAPE, "layers": (1, 4)}
    compression = _compression(trained, task, tmp_path, **settings, method="tinybert,minilm")
    plan = compression.plan()
    methods = {
        each.candidate.shape_name: [
            step.settings["method"] for step in student_steps(each.candidate, plan.config, 0)
        ]
        for each in plan.candidates
        if not each.candidate.vocab
    }
    assert methods == {
        "teacher-4": [],
        "teacher-tinybert-1": ["tinybert"],
        "teacher-minilm-1": ["minilm"],
    }
    entering = {each.candidate.start.name for each in plan.candidates if each.enters}
    assert entering == {"teacher", "teacher-tinybert", "teacher-minilm"}


@pytest.mark.parametrize("explicit", [True, False])
def test_a_method_of_other_tasks_is_no_start(explicit: bool, trained: Artifact) -> None:
    """A static student cannot tag words: named it is an error, by default it is left out."""
    config = CompressConfig.parse({"students": ("static",)} if explicit else {})
    if explicit:
        with pytest.raises(ConfigError, match="static"):
            starts_of(trained, TAGGING, config)
    else:
        names = [start.name for start in starts_of(trained, TAGGING, config)]
        assert "teacher" in names and "static" not in names


def test_a_plan_trains_nothing_but_probes(
    done: tuple[Path, CompressionReport], trained: Artifact, task: Task
) -> None:
    out, _ = done
    said: list[str] = []
    plan = _compression(trained, task, out, said, candidates=2).plan()
    assert plan.verdict == "planned"
    assert plan.chosen is None
    assert not said
    assert all(not each.rounds for each in plan.candidates)
    entering = {each.candidate.name for each in plan.candidates if each.enters}
    assert len(entering) == 2
    assert all(f"{name} (to train)" in shown(plan) for name in entering)
    assert "Nothing was trained" in sentence(plan)


def test_what_nothing_can_hold_is_refused_before_training(
    done: tuple[Path, CompressionReport], trained: Artifact, task: Task
) -> None:
    out, _ = done
    with pytest.raises(ConfigError, match="The nearest is teacher-1"):
        _compression(trained, task, out, max_mb=0.001).run()


def test_a_score_that_is_missed_is_said(done: tuple[Path, CompressionReport]) -> None:
    _, report = done
    asked = report.config.model_copy(update={"min_score": 0.99})
    missed = report.model_copy(update={"config": asked, "verdict": "score not met"})
    assert sentence(missed).startswith(
        f"min_score=0.99 is not reached. The best is {report.chosen}"
    )
