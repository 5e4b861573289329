"""Every row of METHODS from end to end on a tiny teacher, and what distilling refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnxruntime.transformers.float16 import convert_float_to_float16
from transformers import AutoModelForSequenceClassification

from bertender.core.artifact import Artifact
from bertender.core.errors import ArtifactError, ConfigError, ModelError, UnknownNameError
from bertender.core.timing import TIMING_NAME, read_timing
from bertender.measure.accuracy import evaluate
from bertender.models.onnx_predictor import OnnxPredictor
from bertender.models.own_models import OWN_MODELS
from bertender.models.predictor import onnx_file, open_classifier
from bertender.tasks.task import Task
from bertender.text.batch import load_tokenizer
from bertender.training.loop import _PlannedTrainer
from distill.distillation import phases
from distill.distillation.cached_outputs import averaged
from distill.distillation.distiller import DistillConfig, distill
from distill.finetuning.baseline import BagOfWordsConfig, train_bag_of_words
from distill.losses.signals import Signals
from distill.methods import METHODS
from distill.teachers import outputs
from export.onnx_export import ExportConfig, export
from quantize.quantizer import QuantizeConfig, quantize
from tests.distill.toys import pair_task, save_artifact, save_encoder, tiny_classifier
from tests.served import ask_one_by_one, one_by_one, served

QUICK: dict[str, Any] = {
    "layers": 2,
    "epochs": 6,
    "batch_size": 8,
    "learning_rate": 2e-3,
    "precision": "fp32",
}
SHORT = {**QUICK, "epochs": 1}
OF_METHOD: dict[str, dict[str, Any]] = {
    "bilstm": {"layers": 1},
    "internal": {"earlier_epochs": 4},
    "internal-progressive": {"earlier_epochs": 4},
    "minilm": {"earlier_epochs": 6, "earlier_learning_rate": 2e-3},
    "minilm-v2": {
        "earlier_epochs": 6,
        "earlier_learning_rate": 2e-3,
        "relation_heads": 8,
    },
    "mobilebert": {"earlier_epochs": 6, "earlier_learning_rate": 5e-3, "learning_rate": 5e-3},
    "mobilebert-tiny": {"earlier_epochs": 6, "earlier_learning_rate": 5e-3, "learning_rate": 5e-3},
    "theseus-constant": {"earlier_epochs": 4},
    "tinybert": {"earlier_epochs": 6, "earlier_learning_rate": 2e-3},
}
BY_CHANCE = "replacing"
"""The phase whose loss depends on the modules that a step draws more than on learning."""
NEARLY_NOTHING = 0.2
"""About the teacher's own loss, below which a student with its frozen head does not come."""
OPENS_AS = {
    "distilbert": "DistilBertForSequenceClassification",
    "hard": "DistilBertForSequenceClassification",
    "albert": "AlbertForSequenceClassification",
    "mobilebert": "MobileBertForSequenceClassification",
    "mobilebert-tiny": "MobileBertForSequenceClassification",
}
"""The class of a method's students; the toy teacher's own where it is not here."""


@pytest.fixture(scope="module", params=METHODS)
def student(
    request: pytest.FixtureRequest,
    trained_teacher: Artifact,
    task: Task,
    tmp_path_factory: pytest.TempPathFactory,
) -> Artifact:
    """A student by each method."""
    settings = {**QUICK, **OF_METHOD.get(request.param, {})}
    if METHODS[request.param].wants_own_start:
        encoder = tmp_path_factory.mktemp("encoders") / "encoder"
        settings["student"] = str(save_encoder("bert", encoder))
    config = DistillConfig(method=request.param, **settings)
    return distill(trained_teacher, task, config, tmp_path_factory.mktemp("students") / "student")


def test_the_loss_of_each_phase_falls(student: Artifact) -> None:
    training = student.card.findings.training
    phases = METHODS[student.card.config["method"]].phases(2)
    every = (*(phase.losses for phase in training.earlier_phases), training.losses)
    assert [phase.name for phase in training.earlier_phases] == [each.name for each in phases[:-1]]
    for phase, losses in zip(phases, every, strict=True):
        assert set(losses[0]) == {term.name for term in phase.terms if term.weight}
        first, final = (sum(parts.values()) for parts in (losses[0], losses[-1]))
        assert final < max(first, NEARLY_NOTHING) or phase.name == BY_CHANCE, phase.name


def test_the_student_learns_the_task_and_is_saved_as_it_was_scored(
    student: Artifact, task: Task
) -> None:
    score, _ = evaluate(open_classifier(student), task.dev, task.metric)
    assert score.value > 0.9
    assert student.card.findings.training.epochs[-1] == {"accuracy": pytest.approx(score.value)}


def test_the_student_opens_in_transformers_with_the_same_answers(
    student: Artifact, task: Task
) -> None:
    if student.card.family in OWN_MODELS:
        pytest.skip("opens with bertender alone: see tests/models/test_own_models.py")
    model = AutoModelForSequenceClassification.from_pretrained(student.path).eval()
    tokens = load_tokenizer(student.path)(
        [text for (text,) in task.dev.examples], padding=True, return_tensors="pt"
    )
    opened = OPENS_AS.get(student.card.config["method"], "BertForSequenceClassification")
    assert type(model).__name__ == opened
    assert ("token_type_ids" in tokens) is not opened.startswith("Distil")
    with torch.inference_mode():
        logits = model(**tokens).logits.numpy()
    ours = open_classifier(student).logits(task.dev.examples)
    np.testing.assert_allclose(logits, ours, atol=1e-6)
    assert model.config.id2label == dict(enumerate(task.labels))


@pytest.fixture(scope="module")
def forms(
    student: Artifact, task: Task, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Artifact, Artifact]:
    """The student in ONNX: in float32, and in 8 bits."""
    folder = tmp_path_factory.mktemp("forms")
    exported = export(student, task, ExportConfig(), folder / "onnx")
    return exported, quantize(exported, task, QuantizeConfig(), folder / "int8")


def test_the_student_exports_quantizes_and_survives_float16(
    forms: tuple[Artifact, Artifact], task: Task, tmp_path: Path
) -> None:
    for artifact in forms:
        score, _ = evaluate(open_classifier(artifact), task.dev, task.metric)
        assert score.value > 0.9
    exported, _ = forms
    classifier = open_classifier(exported)
    batch = classifier.encode(task.dev.examples)
    logits = classifier.predictor.logits(batch)
    half = as_float16(exported, tmp_path / "half.onnx").logits(batch)
    np.testing.assert_allclose(half, logits, atol=0.02 * np.abs(logits).max())


@pytest.mark.server
@pytest.mark.slow
def test_the_student_in_8_bits_is_served(
    forms: tuple[Artifact, Artifact], task: Task, tmp_path: Path
) -> None:
    _, int8 = forms
    labels, logits = one_by_one(open_classifier(int8, threads=1), task.dev.examples)
    with served(int8, tmp_path) as server:
        answered, found = ask_one_by_one(server.http_url, task.dev.examples)
    assert answered == labels and len(set(labels)) > 1
    np.testing.assert_allclose(found, logits, atol=1e-6)


def as_float16(artifact: Artifact, file: Path) -> OnnxPredictor:
    """The graph of an onnx artifact with every number in float16."""
    graph = convert_float_to_float16(onnx.load(onnx_file(artifact)), keep_io_types=True)
    onnx.save(graph, file)
    return OnnxPredictor(file)


def test_the_card_says_where_the_student_comes_from(
    student: Artifact, trained_teacher: Artifact, task: Task
) -> None:
    card = student.card
    assert card.stage == "distill"
    assert card.family in ("albert", "bert", "bertender-bilstm", "distilbert", "mobilebert")
    assert card.config["layers"] == OF_METHOD.get(card.config["method"], {}).get("layers", 2)
    assert card.task == task.record()
    assert card.parent is not None and card.parent.digest == trained_teacher.digest
    assert card.findings.parameters == open_classifier(student).parameters


def test_the_teachers_artifact_does_not_change(
    student: Artifact, trained_teacher: Artifact
) -> None:
    again = Artifact.load(trained_teacher.path)  # reads every file and checks its digest
    assert again.card == trained_teacher.card


@pytest.mark.parametrize("setting", ["student", "more_teachers"])
def test_no_source_is_written_over(
    setting: str, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    other = save_artifact(tiny_classifier("bert"), task, tmp_path / "other")
    config = DistillConfig.parse(
        {"method": "pd", "student": str(other.path), setting: str(other.path)}
    )
    with pytest.raises(ArtifactError, match="is the artifact to start from"):
        distill(trained_teacher, task, config, other.path)
    assert Artifact.load(other.path).card == other.card
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_no_checkpoints_are_left_behind(student: Artifact) -> None:
    assert [path.name for path in student.path.parent.iterdir()] == [student.name]


@pytest.mark.parametrize(
    ("settings", "runs"),
    [
        ({}, 0),
        ({"weights": {"cosine": 0}}, 1),
        ({"method": "pkd"}, 1),
        ({"method": "internal"}, 1),
        ({"method": "hard"}, 0),
    ],
    ids=["the teacher runs anyway", "logits", "logits and states", "the last phase", "labels"],
)
def test_answers_are_kept_only_where_they_free_a_phase_of_the_teacher_and_once(
    settings: dict[str, Any],
    runs: int,
    trained_teacher: Artifact,
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BERTENDER_CACHE", str(tmp_path / "cache"))
    calls = []
    compute = outputs._compute
    monkeypatch.setattr(
        outputs, "_compute", lambda *given: calls.extend([1] * bool(given[2])) or compute(*given)
    )
    for seed in (0, 1):
        config = DistillConfig(**SHORT, **settings, seed=seed)
        distill(trained_teacher, task, config, tmp_path / f"student-{seed}")
    assert len(calls) == runs


def test_the_same_run_gives_the_same_student(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    first, second, other = (
        distill(trained_teacher, task, DistillConfig(**SHORT, seed=seed), tmp_path / name)
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert first.digest == second.digest != other.digest


@pytest.mark.parametrize("method", ["tinybert", "minilm-v2", "minibert"])
def test_a_narrow_student_learns_from_a_wide_teacher(
    method: str, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    heads = open_classifier(trained_teacher).predictor.model.config.num_attention_heads  # type: ignore[attr-defined]
    width = {"hidden_size": 16, "heads": heads, "feed_forward_size": 24}
    config = DistillConfig(method=method, **{**QUICK, **OF_METHOD.get(method, {}), **width})
    student = distill(trained_teacher, task, config, tmp_path / "student")
    model = AutoModelForSequenceClassification.from_pretrained(student.path)
    assert (model.config.hidden_size, model.config.num_hidden_layers) == (16, 2)
    assert not [name for name, _ in model.named_parameters() if "projection" in name]
    assert student.card.findings.training.epochs[-1]["accuracy"] > 0.8


PHASED = [name for name in METHODS if METHODS[name].has_phases]


@pytest.mark.parametrize("place", [0, -1], ids=["first phase", "last phase"])
@pytest.mark.parametrize("method", PHASED)
def test_a_killed_run_goes_on_in_its_phase_to_the_same_weights(
    method: str,
    place: int,
    trained_teacher: Artifact,
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {**SHORT, **OF_METHOD[method], "earlier_epochs": 1, "checkpoint_steps": 3}
    config = DistillConfig(method=method, **settings)
    whole = distill(trained_teacher, task, config, tmp_path / "whole")
    dying = METHODS[method].phases(2)[place].name
    called: list[str] = []
    compute = _PlannedTrainer.compute_loss

    def dies(trainer: Any, *given: Any, **named: Any) -> torch.Tensor:
        called.append(Path(trainer.args.output_dir).name.partition("-")[2])
        if called.count(dying) == 5:
            raise KeyboardInterrupt
        return compute(trainer, *given, **named)

    monkeypatch.setattr(_PlannedTrainer, "compute_loss", dies)
    with pytest.raises(KeyboardInterrupt):
        distill(trained_teacher, task, config, tmp_path / "killed")
    monkeypatch.setattr(_PlannedTrainer, "compute_loss", compute)
    resumed = distill(trained_teacher, task, config, tmp_path / "killed")
    assert resumed.digest == whole.digest
    assert resumed.card.findings == whole.card.findings


def test_phases_of_labels_alone_leave_out_texts_without_them(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    """The last phase of minilm takes as many steps as without the file, its first more."""
    (tmp_path / "texts.txt").write_text("\n".join(["saw hammer"] * 300))
    settings = {**SHORT, **OF_METHOD["minilm"], "earlier_epochs": 1, "method": "minilm"}
    plain, more = (
        distill(trained_teacher, task, DistillConfig(**settings, unlabelled=file), tmp_path / name)
        for name, file in (("plain", None), ("more", tmp_path / "texts.txt"))
    )
    assert more.card.findings.training.steps == plain.card.findings.training.steps
    assert plain.digest != more.digest


def other_vocabulary(folder: Path) -> Path:
    """A plain encoder whose tokens have other numbers than the teacher's."""
    encoder = save_encoder("bert", folder)
    pieces = (encoder / "vocab.txt").read_text().splitlines()
    (encoder / "vocab.txt").write_text("\n".join([*pieces[:5], *reversed(pieces[5:])]) + "\n")
    (encoder / "tokenizer.json").unlink()
    return encoder


@pytest.mark.parametrize(
    "settings", [{"method": "pkd"}, {"weights": {"cosine": 0}}], ids=["pkd", "logits"]
)
def test_kept_and_online_answers_teach_the_same(
    settings: dict[str, Any],
    trained_teacher: Artifact,
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain = {**SHORT, **settings}
    with monkeypatch.context() as patched:
        patched.setattr(phases, "read_signals", lambda *given: pytest.fail("the teacher was run"))
        kept = distill(trained_teacher, task, DistillConfig(**plain), tmp_path / "kept")
    assert "the teacher runs in each step" not in caplog.text
    config = DistillConfig(**plain, teacher_cache_mb=0)
    online = distill(trained_teacher, task, config, tmp_path / "online")
    assert "more than teacher_cache_mb=0: the teacher runs in each step" in caplog.text
    losses = [artifact.card.findings.training.losses for artifact in (kept, online)]
    assert len(losses[0]) == 2
    for ours, theirs in zip(*losses, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)


def test_a_roberta_teaches_a_student_with_berts_vocabulary_by_its_sentence_states(
    task: Task, tmp_path: Path
) -> None:
    teacher = save_artifact(tiny_classifier("roberta"), task, tmp_path / "teacher")
    encoder = other_vocabulary(tmp_path / "encoder")
    settings = {**QUICK, "method": "pkd", "weights": {"soft": 0, "hard": 0}}
    config = DistillConfig(**settings, student=str(encoder))
    student = distill(teacher, task, config, tmp_path / "student")
    first, *_, last = (parts["patience"] for parts in student.card.findings.training.losses)
    assert student.card.family == "bert" and last < 0.5 * first
    ours, theirs = (load_tokenizer(path).get_vocab() for path in (student.path, encoder))
    assert ours == theirs != load_tokenizer(teacher.path).get_vocab()


@pytest.mark.parametrize("reason", ["a vocabulary of its own", "several teachers"])
def test_what_must_be_kept_is_refused_where_it_is_too_large(
    reason: str, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "a vocabulary of its own": {"student": str(other_vocabulary(tmp_path / "encoder"))},
        "several teachers": {"more_teachers": (trained_teacher.path,)},
    }[reason]
    config = DistillConfig(method="pkd", **SHORT, **settings, teacher_cache_mb=0)
    said = rf"sentence states of 96 texts are 0\.0 MB.*{reason}.*teacher_cache_mb 1 or more"
    with pytest.raises(ConfigError, match=said):
        distill(trained_teacher, task, config, tmp_path / "student")


@pytest.mark.parametrize(
    ("settings", "teaches"),
    [({"method": "pkd"}, True), ({}, True), ({"method": "hard"}, False)],
    ids=["kept", "online", "no teacher"],
)
def test_what_a_run_took_lies_beside_the_card(
    settings: dict[str, Any],
    teaches: bool,
    trained_teacher: Artifact,
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BERTENDER_CACHE", str(tmp_path / "cache"))
    config = DistillConfig(**{**SHORT, "epochs": 2, **settings})
    student = distill(trained_teacher, task, config, tmp_path / "student")
    timing = read_timing(student)
    assert timing is not None and timing.samples == 2 * len(task.train)
    assert 0 < timing.training_s < timing.wall_s
    assert (timing.teacher_s > 0.01 * timing.wall_s) is teaches
    assert 0 <= timing.teacher_share < 1
    assert TIMING_NAME not in student.card.files


def test_a_student_may_start_from_another_encoder_with_its_own_vocabulary(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    encoder = other_vocabulary(tmp_path / "encoder")
    config = DistillConfig(**QUICK, student=str(encoder), weights={"cosine": 0, "hard": 0})
    student = distill(trained_teacher, task, config, tmp_path / "student")
    assert student.card.findings.training.epochs[-1]["accuracy"] > 0.9, (
        "it learned from answers alone"
    )
    ours, theirs = (load_tokenizer(path).get_vocab() for path in (student.path, encoder))
    assert ours == theirs != load_tokenizer(trained_teacher.path).get_vocab()


@pytest.mark.parametrize("method", [name for name in METHODS if METHODS[name].wants_teacher_tokens])
def test_methods_that_compare_tokens_want_the_same_ones(
    method: str, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    encoder = other_vocabulary(tmp_path / "encoder")
    config = DistillConfig(method=method, student=str(encoder), layers=2)
    own_layers = "replaces the teacher's own layers"
    same_tokens = "must read the same tokens.*Methods that.*hard.*pkd"
    said = own_layers if METHODS[method].uses_teacher_layers else same_tokens
    with pytest.raises(ModelError, match=said):
        distill(trained_teacher, task, config, tmp_path / "student")


@pytest.mark.parametrize("name", ["texts.txt", "texts.csv"])
def test_texts_without_labels_are_learned_from(
    name: str, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    few = replace(task, train=task.train.first(4))
    texts = "\n".join(text for (text,) in task.train.examples)
    (tmp_path / name).write_text(texts if name.endswith("txt") else f"text\n{texts}\n")
    settings = {**QUICK, "unlabelled": tmp_path / name}
    student = distill(trained_teacher, few, DistillConfig(**settings), tmp_path / "student")
    alone = distill(trained_teacher, few, DistillConfig(**QUICK), tmp_path / "alone")
    assert student.card.findings.training.steps > alone.card.findings.training.steps
    assert student.card.findings.training.epochs[-1]["accuracy"] > 0.9


def test_several_teachers_answer_together(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    """An untrained second teacher makes the first one's answers less sure."""
    other = save_artifact(tiny_classifier("bert"), task, tmp_path / "other")
    alone, both = (
        distill(trained_teacher, task, DistillConfig(**SHORT, more_teachers=more), tmp_path / name)
        for name, more in (("alone", ()), ("both", (other.path,)))
    )
    assert alone.digest != both.digest
    with pytest.raises(ConfigError, match="'hard' reads no logits"):
        config = DistillConfig(method="hard", more_teachers=(other.path,))
        distill(trained_teacher, task, config, tmp_path / "hard")
    kinds = replace(task, labels=("a", "b", "c"))
    save_artifact(tiny_classifier("bert", labels=3), kinds, tmp_path / "kinds")
    with pytest.raises(ConfigError, match=r"the teacher .* answers .*was fine-tuned on this task"):
        config = DistillConfig(more_teachers=(tmp_path / "kinds",))
        distill(trained_teacher, task, config, tmp_path / "student")


def test_logits_are_averaged_as_distributions() -> None:
    sure, unsure = torch.tensor([[2.0, -1.0]]), torch.tensor([[0.0, 0.0]])
    mean = (sure.softmax(-1) + unsure.softmax(-1)) / 2
    torch.testing.assert_close(averaged([sure, unsure]).softmax(-1), mean)
    assert averaged([sure]) is sure


def test_averaged_logits_lie_where_the_teachers_logits_lie() -> None:
    """A BiLSTM is brought to the logits themselves, not to what their softmax leaves of them."""
    logits = torch.tensor([[4.0, -1.0, 0.5], [-3.0, -3.5, 2.0], [0.0, 9.0, 30.0]])
    torch.testing.assert_close(averaged([logits, logits.clone()]), logits)
    (term,) = (term for term in METHODS["bilstm"].terms if term.name == "logits")
    target, other = averaged([logits] * 3), averaged([logits, logits.flip(0)])
    as_good = Signals(logits.clone())
    assert float(term(as_good, Signals(target), {})) == pytest.approx(0.0, abs=1e-9)
    torch.testing.assert_close(other.mean(-1), (logits + logits.flip(0)).mean(-1) / 2)


@pytest.mark.parametrize("given", [{"unlabelled": Path("texts.txt")}, {"unlabelled_texts": 5}])
def test_a_method_of_labels_alone_takes_no_texts_without_them(
    given: dict[str, Any], trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    DistillConfig(method="hard", unlabelled_texts=0).check_rules()
    config = DistillConfig(method="hard", **given)
    with pytest.raises(ConfigError, match="learns from labels alone"):
        distill(trained_teacher, task, config, tmp_path / "student")


def test_pairs_are_distilled_exported_and_quantized(tmp_path: Path) -> None:
    task = pair_task()
    teacher = save_artifact(tiny_classifier("bert"), task, tmp_path / "teacher")
    student = distill(teacher, task, DistillConfig(**SHORT), tmp_path / "student")
    onnx = export(student, task, ExportConfig(), tmp_path / "onnx")
    int8 = quantize(onnx, task, QuantizeConfig(), tmp_path / "int8")
    assert open_classifier(int8).logits(task.dev.examples).shape == (32, 2)
    assert student.card.task.text_columns == ("left", "right")


def test_a_bilstm_tells_the_texts_of_a_pair_apart(tmp_path: Path) -> None:
    """From labels alone, because nobody has trained this teacher."""
    task = pair_task()
    teacher = save_artifact(tiny_classifier("bert"), task, tmp_path / "teacher")
    labels = {"method": "bilstm", "layers": None, "weights": {"logits": 0, "hard": 1}}
    alone = {**QUICK, **labels, "hidden_size": 24}
    student = distill(teacher, task, DistillConfig(**alone), tmp_path / "student")
    onnx = export(student, task, ExportConfig(), tmp_path / "onnx")
    int8 = quantize(onnx, task, QuantizeConfig(), tmp_path / "int8")
    for artifact in (student, onnx, int8):
        score, _ = evaluate(open_classifier(artifact), task.dev, task.metric)
        assert score.value > 0.9, artifact.name
    again = DistillConfig(**{**alone, "student": str(student.path), "hidden_size": 8, "epochs": 1})
    narrow = distill(student, task, again, tmp_path / "again")
    assert narrow.card.findings.parameters < student.card.findings.parameters


def test_the_command_lines_forms_of_settings() -> None:
    config = DistillConfig.parse({"weights": "soft=0.7, hard=0.3", "teacher_layers": "1,3,5"})
    assert config.weights == {"soft": 0.7, "hard": 0.3}
    assert config.teacher_layers == (1, 3, 5)
    assert DistillConfig.model_validate_json(config.model_dump_json()) == config


BAD_SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "negative weight": ({"weights": "soft=-1"}, r"weights\.soft=.*greater than or equal to 0"),
    "no number": ({"weights": "soft"}, r"weights\.soft=''.*valid number"),
    "temperature": ({"temperature": 0}, "temperature=0: .*greater than 0"),
    "layers": ({"layers": 0}, "layers=0: .*greater than or equal to 1"),
    "teacher layers": ({"teacher_layers": "1,x"}, r"teacher_layers\.1='x'"),
    "unknown key": ({"temprature": 2}, "unknown key 'temprature'. Did you mean 'temperature'"),
}


@pytest.mark.parametrize("case", BAD_SETTINGS)
def test_bad_settings_are_refused(case: str) -> None:
    settings, message = BAD_SETTINGS[case]
    with pytest.raises(ConfigError, match=message):
        DistillConfig.parse(settings)


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "method": ({"method": "distillbert"}, UnknownNameError, "Did you mean 'distilbert'"),
    "term": ({"weights": {"sofd": 1}}, ConfigError, r"no loss term 'sofd'\. Did you mean 'soft'"),
    "no term of hard": (
        {"method": "hard", "weights": {"soft": 1}},
        ConfigError,
        r"'hard' has no loss term 'soft'.*Its terms: hard",
    ),
    "nothing left": (
        {"weights": {"soft": 0, "hard": 0, "cosine": 0}},
        ConfigError,
        "every term of 'distilbert' that the student learns from has weight 0",
    ),
    "no temperature": (
        {"method": "hard", "temperature": 3.0},
        ConfigError,
        r"'hard' has no term with temperature.*Leave it out",
    ),
    "too deep": ({"layers": 9}, ModelError, "layers=9: the teacher has only 4"),
    "layer map": (
        {"method": "pkd", "layer_map": "skipp"},
        UnknownNameError,
        "no layer map 'skipp'. Did you mean 'skip'",
    ),
    "no student": ({"method": "pd"}, ConfigError, "'pd' wants a small pre-trained student"),
    "no layers to map": (
        {"method": "hard", "layer_map": "skip"},
        ConfigError,
        "layer_map=skip: method 'hard' has no term with layers to change",
    ),
    "nothing to match": (
        {"method": "pkd", "layers": 1},
        ModelError,
        r"term 'patience' has no layers \(student, teacher\) to match in a student of 1",
    ),
    "embeddings of attention": (
        {"method": "tinybert", "layer_map": "with-embeddings"},
        ModelError,
        r"term 'attention' has no layers \(0, 0\) \(student, teacher\)",
    ),
    "deeper than the teacher": (
        {"method": "tinybert", "layers": 6, "hidden_size": 16},
        ModelError,
        r"'attention' has no layers \(1, 0\).*in a student of 6 and a teacher of 4",
    ),
    "layers of another width": (
        {"method": "tinybert", "hidden_size": 16, "teacher_layers": (0, 1)},
        ModelError,
        r"teacher_layers=\(0, 1\): a student of another width.* starts from random",
    ),
    "a list of methods": ({"method": ["pkd"]}, ConfigError, "method="),
    "no earlier phase": (
        {"method": "pkd", "earlier_epochs": 2},
        ConfigError,
        "earlier_epochs=2: method 'pkd' has one phase only",
    ),
    "relation heads": (
        {"method": "minilm-v2", "relation_heads": 5},
        ModelError,
        r"relation_heads=5 must divide the widths of both models, \d+ and \d+; \d+ and its",
    ),
    "other heads": (
        {"method": "tinybert", "hidden_size": 24, "heads": 1},
        ModelError,
        "term 'attention' compares attention scores: .*num_attention_heads=1",
    ),
    "two layers of a BiLSTM": (
        {"method": "bilstm"},
        ModelError,
        "layers=2: a BiLSTM student has one layer, in each direction",
    ),
    "heads of a BiLSTM": (
        {"method": "bilstm", "layers": None, "heads": 4},
        ModelError,
        "heads=4: a BiLSTM student takes no attention heads",
    ),
    "layers for a BiLSTM": (
        {"method": "bilstm", "layers": None, "teacher_layers": (0,)},
        ModelError,
        r"teacher_layers=\(0,\): a BiLSTM student takes no",
    ),
    "a map for a BiLSTM": (
        {"method": "bilstm", "layers": None, "layer_map": "skip"},
        ConfigError,
        r"'bilstm' has no term with layers to change \(its terms: logits\)",
    ),
    "softened logits": (
        {"method": "bilstm", "layers": None, "temperature": 2.0},
        ConfigError,
        r"temperature=2.0: method 'bilstm' has no term with temperature to change",
    ),
    "another width": (
        {"method": "pkd", "hidden_size": 24},
        ModelError,
        "hidden_size=24: a shorter copy of the teacher.*tinybert",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_method_cannot_do_is_refused_before_anything_is_written(
    case: str, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    settings, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        config = DistillConfig.parse({**SHORT, **settings})
        distill(trained_teacher, task, config, tmp_path / "out")
    assert not any(tmp_path.iterdir())


def test_a_teacher_of_other_labels_is_refused(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    for labels in (("tool", "fruit"), ("a", "b", "c")):
        with pytest.raises(ConfigError, match="Give one that was fine-tuned on this task"):
            distill(
                trained_teacher, replace(task, labels=labels), DistillConfig(), tmp_path / "out"
            )


def test_only_a_torch_classifier_is_a_teacher(task: Task, tmp_path: Path) -> None:
    words = train_bag_of_words(task, BagOfWordsConfig(), tmp_path / "words")
    with pytest.raises(ModelError, match=r"kind bag-of-words.*no classifier to learn from"):
        distill(words, task, DistillConfig(), tmp_path / "out")
