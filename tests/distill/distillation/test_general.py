"""Every row of GENERAL_METHODS on a toy corpus, from a tiny teacher to a student of a task."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, DataError, ModelError, UnknownNameError
from bertender.models.families import FAMILIES
from bertender.recipes.stage import Earlier
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Task
from bertender.text.tokenizer import load_tokenizer
from bertender.training.checkpoint import tensors_digest, weights_digest
from distill.distillation.config import DistillConfig, GeneralConfig
from distill.distillation.distiller import distill
from distill.distillation.general import (
    GeneralTeacher,
    OnCorpus,
    distill_general,
    distill_general_by_name,
)
from distill.methods import GENERAL_METHODS, METHODS
from distill.students import StudentShape
from distill.students.weights import masked_language_model
from distill.teachers.encoders import load_masked_language_model
from tests.distill.distillation.general_settings import (
    OF_METHOD,
    OWN_VOCABULARY,
    QUICK,
    settings_of,
)
from tests.listening import interrupted_at
from tests.quick import quick
from tests.toy_models import save_encoder, save_language_model, tiny_language_model
from tests.toys import passages


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a BERT that predicts words, whatever they are."""
    return save_language_model(tmp_path_factory.mktemp("teachers") / "teacher")


@pytest.fixture(
    scope="module",
    params=quick(GENERAL_METHODS, "small-vocab", "tinybert"),
)
def student(
    request: pytest.FixtureRequest,
    language_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Artifact:
    """A smaller encoder by each method."""
    folder = tmp_path_factory.mktemp("general")
    (folder / "corpus.txt").write_text("\n".join(passages()), encoding="utf-8")
    config = GeneralConfig(
        **settings_of(request.param, teacher=str(language_model), corpus=str(folder / "corpus.txt"))
    )
    return distill_general_by_name(config, folder / "student")


def test_every_general_method_has_a_task_stage() -> None:
    assert set(GENERAL_METHODS) < set(METHODS)


def test_the_held_out_loss_and_each_term_of_the_teacher_fall(student: Artifact) -> None:
    training = student.card.findings.training
    losses = [epoch["loss"] for epoch in training.epochs]
    assert losses[-1] < 0.95 * losses[0]
    *_, phase = GENERAL_METHODS[student.card.config["method"]].phases
    first, *_, last = training.losses
    assert set(first) == {term.name for term in phase.terms if term.weight}
    taught = [term.name for term in phase.terms if term.weight and term.name != "words"]
    assert taught and all(last[name] < 0.8 * first[name] for name in taught)


def test_rows_are_as_long_as_was_said_or_refused(language_model: Path, tmp_path: Path) -> None:
    """The toy has positions for 64 tokens; the default of 128 is for encoders of any."""
    config = AutoConfig.from_pretrained(language_model)
    assert config.max_position_embeddings == 64
    settings = settings_of("distilbert", teacher=str(language_model), epochs=1)
    teacher = GeneralTeacher.load(str(language_model), GENERAL_METHODS["distilbert"])
    beyond = GeneralConfig(**{**settings, "max_length": 65})
    with pytest.raises(ConfigError, match="max_length=65: the model has positions for 64 tokens"):
        distill_general(teacher, passages(), beyond, tmp_path / "out")
    with pytest.raises(ConfigError, match="max_length=65"):
        STAGES["distill-general"].model(beyond, Earlier())
    del settings["max_length"]
    whole = OnCorpus(teacher, passages(), GeneralConfig(**settings))
    whole.read(tmp_path / "whole")
    assert max(whole.training.lengths) == 64


def test_a_tokenizer_that_reads_less_than_its_model_is_lengthened(
    language_model: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(language_model, tmp_path / "teacher")
    tokenizer = AutoTokenizer.from_pretrained(folder, model_max_length=24)
    tokenizer.save_pretrained(folder)
    teacher = GeneralTeacher.load(str(folder), GENERAL_METHODS["distilbert"])
    settings = settings_of("distilbert", teacher=str(folder), epochs=1)
    made = distill_general(teacher, passages(), GeneralConfig(**settings), tmp_path / "out")
    assert load_tokenizer(made.path).model_max_length == settings["max_length"] == 32


def test_it_opens_in_transformers_as_what_it_is(student: Artifact) -> None:
    predicts_words = GENERAL_METHODS[student.card.config["method"]].predicts_words
    auto = AutoModelForMaskedLM if predicts_words else AutoModel
    model, found = auto.from_pretrained(student.path, output_loading_info=True)
    assert not found["missing_keys"] and not found["unexpected_keys"]
    assert model.config.num_hidden_layers == 2
    assert student.card.stage == "distill-general" and student.card.task.labels == ()


def test_it_is_a_start_for_the_task_stage(
    student: Artifact, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    method = student.card.config["method"]
    settings = {**QUICK, **OF_METHOD.get(method, {}), "method": method, "epochs": 2, "weights": {}}
    of_the_first = {"layers", *OWN_VOCABULARY}
    settings = {name: value for name, value in settings.items() if name not in of_the_first}
    settings["student"] = str(student.path)
    earlier = {"earlier_epochs": 1} if METHODS[method].has_phases else {}
    made = distill(trained_teacher, task, DistillConfig(**settings, **earlier), tmp_path / "out")
    assert made.card.config["student"] == str(student.path)
    assert made.card.family == student.card.family
    assert depth_of(made) == depth_of(student) == 2


def depth_of(artifact: Artifact) -> int:
    return int(AutoConfig.from_pretrained(artifact.path).num_hidden_layers)


@pytest.mark.slow
@pytest.mark.one_path
@pytest.mark.parametrize("method", GENERAL_METHODS)
def test_a_killed_run_goes_on_to_the_same_weights(
    method: str, language_model: Path, tmp_path: Path
) -> None:
    config = GeneralConfig(**settings_of(method, epochs=1, checkpoint_steps=2))
    torch.manual_seed(config.seed)  # the teacher has no pooler, and gets a random one
    teacher = GeneralTeacher.load(str(language_model), config.changed_method())
    corpus = passages(200)
    before = weights_digest(teacher.classifier)
    whole = distill_general(teacher, corpus, config, tmp_path / "whole")
    assert weights_digest(teacher.classifier) == before  # the teacher stays as it is
    with interrupted_at(4), pytest.raises(KeyboardInterrupt):
        distill_general(teacher, corpus, config, tmp_path / "killed")
    torch.manual_seed(config.seed)
    again = GeneralTeacher.load(str(language_model), config.changed_method())
    assert distill_general(again, corpus, config, tmp_path / "killed").digest == whole.digest


def test_a_killed_command_goes_on_although_the_teacher_has_no_pooler(
    language_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "corpus.txt").write_text("\n".join(passages(200)), encoding="utf-8")
    settings = {"teacher": str(language_model), "corpus": str(tmp_path / "corpus.txt")}
    config = GeneralConfig(**settings_of("tinybert", epochs=1, checkpoint_steps=2, **settings))
    whole = distill_general_by_name(config, tmp_path / "whole")
    with interrupted_at(4), pytest.raises(KeyboardInterrupt):
        distill_general_by_name(config, tmp_path / "killed")
    (work,) = (tmp_path / ".killed.work").glob("*/checkpoint-*/..")
    made_anew = distill_general_by_name(config, tmp_path / "killed")
    assert made_anew.digest == whole.digest and not work.exists()


def test_words_alone_can_be_learned_from_a_corpus(language_model: Path, tmp_path: Path) -> None:
    """The control of distillation on a corpus: masked words, without a teacher's answers."""
    weights = {"soft": 0.0, "cosine": 0.0}
    config = GeneralConfig(**{**settings_of("distilbert", epochs=1), "weights": weights})
    teacher = GeneralTeacher.load(str(language_model), config.changed_method())
    student = distill_general(teacher, passages(200), config, tmp_path / "student")
    assert set(student.card.findings.training.losses[0]) == {"words"}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_head_is_taken_over_whole(model_type: str) -> None:
    """The same encoder under its teacher's head predicts the same words."""
    teacher = tiny_language_model(model_type)
    again = masked_language_model(teacher, teacher).eval()
    ids = torch.tensor([[2, 7, 9, 3], [2, 11, 3, 0]])
    with torch.inference_mode():
        ours, theirs = (
            model(input_ids=ids, attention_mask=ids.ne(0)) for model in (again, teacher)
        )
    torch.testing.assert_close(ours.logits, theirs.logits)


def test_a_distilbert_of_full_depth_predicts_its_teachers_words(language_model: Path) -> None:
    teacher = GeneralTeacher.load(str(language_model), GENERAL_METHODS["distilbert"])
    student = teacher.student(GENERAL_METHODS["distilbert"], StudentShape(4)).eval()
    ids = torch.tensor([[2, 7, 9, 11, 3]])
    with torch.inference_mode():
        ours, theirs = student(ids).logits, teacher.model.eval()(ids).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


READS_WORDS = [name for name, row in GENERAL_METHODS.items() if row.reads_predicted_words]
LEARNS_WORDS = [
    name
    for name, row in GENERAL_METHODS.items()
    if row.predicts_words and not row.reads_predicted_words
]


@pytest.mark.parametrize("method", READS_WORDS)
def test_an_encoder_without_a_head_is_refused_where_words_are_read(
    method: str, tmp_path: Path
) -> None:
    folder = save_encoder("bert", tmp_path / "encoder")
    with pytest.raises(ModelError, match=rf"'{method}' reads which words.*no head.*tinybert"):
        GeneralTeacher.load(str(folder), GENERAL_METHODS[method])
    assert GeneralTeacher.load(str(folder), GENERAL_METHODS["tinybert"]).language_model is None
    with pytest.raises(ModelError, match="as a masked language model"):
        load_masked_language_model(str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("method", LEARNS_WORDS)
def test_a_head_that_no_loss_reads_may_start_from_noise(
    method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    teacher = save_encoder("bert", tmp_path / "encoder")
    (tmp_path / "corpus.txt").write_text("\n".join(passages()), encoding="utf-8")
    places = {"teacher": str(teacher), "corpus": str(tmp_path / "corpus.txt")}
    config = GeneralConfig(**settings_of(method, **places))
    students = [distill_general_by_name(config, tmp_path / name) for name in ("a", "b")]
    assert "predicts words starts from random numbers" in caplog.text
    weights = [load_file(student.path / "model.safetensors") for student in students]
    assert len({*map(tensors_digest, weights)}) == 1
    losses = [epoch["loss"] for epoch in students[0].card.findings.training.epochs]
    assert losses[-1] < 0.95 * losses[0]


def test_a_narrow_student_starts_anew_under_a_head_of_its_own_width(tmp_path: Path) -> None:
    teacher = save_encoder("bert", tmp_path / "encoder")
    settings = settings_of("tinybert", epochs=1, hidden_size=16, heads=4, feed_forward_size=24)
    config = GeneralConfig(**settings)
    method = config.changed_method()
    loaded = GeneralTeacher.load(str(teacher), method)
    student = distill_general(loaded, passages(120), config, tmp_path / "student")
    assert AutoModel.from_pretrained(student.path).config.hidden_size == 16


def test_what_cannot_be_had_is_refused_before_training(tmp_path: Path) -> None:
    teacher = GeneralTeacher.load(
        str(save_encoder("bert", tmp_path / "encoder")), GENERAL_METHODS["minilm"]
    )
    with pytest.raises(UnknownNameError, match=r"no distillation method 'pkd'.*Known"):
        GeneralConfig(method="pkd")
    with pytest.raises(ConfigError, match="no loss term 'hard'"):
        GeneralConfig.parse({"weights": {"hard": 1.0}})
    with pytest.raises(ModelError, match="has 2 heads and the teacher 4"):
        config = GeneralConfig(**settings_of("minilm", hidden_size=16, heads=2))
        distill_general(teacher, passages(), config, tmp_path / "out")
    with pytest.raises(DataError, match="9 passages are too few"):
        distill_general(
            teacher, passages(9), GeneralConfig(**settings_of("minilm")), tmp_path / "out"
        )
    assert [path.name for path in tmp_path.iterdir()] == ["encoder"]
