"""Teachers of every architecture: each text has its own answer, saved, and taught to a BERT."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.models.classifier import TorchPredictor, open_classifier
from bertender.tasks.task import Split, Task
from bertender.text.batch import Example
from bertender.text.tokenizer import load_tokenizer
from bertender.training.examples import token_dataset
from distill.distillation.config import DistillConfig
from distill.distillation.distiller import distill
from distill.finetuning.config import FinetuneConfig
from distill.finetuning.finetune import finetune, finetune_by_name
from distill.losses.signals import Wanted
from distill.methods import METHODS
from distill.teachers.encoders import load_classifier
from distill.teachers.outputs import LOGITS, teacher_outputs
from export.config import ExportConfig
from export.exporter import export
from tests.distill.architectures import ARCHITECTURES, save_teacher
from tests.listening import interrupted_at
from tests.quick import quick
from tests.toy_models import LONGEST, save_encoder
from tests.toys import pair_task, write_model

QUICK: dict[str, Any] = {
    "epochs": 5,
    "batch_size": 16,
    "learning_rate": 3e-3,
    "precision": "fp32",
}
SLOW_LEARNERS: dict[str, dict[str, Any]] = {
    "mobilebert": {"learning_rate": 1e-2},
    "xlnet": {"learning_rate": 1e-2},
}
"""Small random weights give these next to no signal at first."""
NOISE = 2e-5
"""What float32 makes of another order of additions."""

AWKWARD: tuple[Example, ...] = (
    ("saw",),
    ("hammer " * 100,),
    ("</s> saw </s>",),
    ("<|endoftext|> drill <|endoftext|>",),
    ("pear [SEP] <sep> <cls> [CLS] <pad> plum [PAD]",),
)
"""Texts that are cut, or that spell what tokenizers have a special token for."""


@dataclass(frozen=True)
class Trained:
    """A teacher as it came out of training, and as it was written."""

    model: PreTrainedModel
    artifact: Artifact


@pytest.fixture(
    scope="module",
    params=quick(ARCHITECTURES, "albert", "deberta-v2", "gpt2", "modernbert", "t5"),
)
def trained(
    request: pytest.FixtureRequest, task: Task, tmp_path_factory: pytest.TempPathFactory
) -> Trained:
    folder = tmp_path_factory.mktemp("teachers")
    torch.manual_seed(0)
    source = save_teacher(request.param, folder / "encoder")
    model, tokenizer = load_classifier(str(source), task.labels)
    config = FinetuneConfig(**{**QUICK, **SLOW_LEARNERS.get(request.param, {})})
    artifact = finetune(model, tokenizer, task, config, folder / "teacher")
    return Trained(model.eval(), artifact)


def test_the_teacher_learns_the_task(trained: Trained) -> None:
    assert trained.artifact.card.findings.training.epochs[-1]["accuracy"] > 0.9


def test_an_answer_does_not_depend_on_its_neighbours(trained: Trained, task: Task) -> None:
    classifier = open_classifier(trained.artifact, max_length=LONGEST)
    examples = (*task.dev.examples, *AWKWARD)
    alone = np.concatenate([classifier.logits([example]) for example in examples])
    assert np.ptp(alone, axis=0).min() > 0.3, "answers differ from text to text"
    np.testing.assert_allclose(classifier.logits(examples), alone, atol=NOISE)


def test_answers_that_are_kept_for_students_are_those_of_each_text_alone(
    trained: Trained, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTENDER_CACHE", str(tmp_path))
    classifier = open_classifier(trained.artifact)
    examples = (*task.dev.examples, *AWKWARD)
    split = Split(examples, (0,) * len(examples))
    tokens = token_dataset(split, load_tokenizer(trained.artifact.path))
    wanted: Wanted = {"logits": frozenset()}
    answers = teacher_outputs(trained.model, trained.artifact.digest, tokens, wanted)
    kept = answers[LOGITS].numpy()
    alone = [classifier.logits([example]) for example in examples]
    np.testing.assert_allclose(kept, np.concatenate(alone), atol=NOISE)


def test_transformers_reads_the_artifact_to_the_same_answers(trained: Trained, task: Task) -> None:
    path = trained.artifact.path
    model = AutoModelForSequenceClassification.from_pretrained(path).eval()
    texts = [text for (text,) in (*task.dev.examples, *AWKWARD)]
    tokens = AutoTokenizer.from_pretrained(path)(
        texts, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt"
    )
    with torch.inference_mode():
        logits = model(**tokens).logits.numpy()
    encode = open_classifier(trained.artifact, max_length=LONGEST).encode
    before = TorchPredictor(trained.model).logits(encode([(text,) for text in texts]))
    np.testing.assert_allclose(logits, before, atol=NOISE)


@pytest.mark.one_path
def test_it_teaches_a_student_that_reads_word_pieces(
    trained: Trained, task: Task, tmp_path: Path
) -> None:
    encoder = save_encoder("bert", tmp_path / "encoder")
    config = DistillConfig(method="pd", student=str(encoder), layers=2, **{**QUICK, "epochs": 8})
    student = open_classifier(distill(trained.artifact, task, config, tmp_path / "student"))
    theirs = open_classifier(trained.artifact).logits(task.dev.examples).argmax(-1)
    agreement = (student.logits(task.dev.examples).argmax(-1) == theirs).mean()
    assert agreement > 0.9


NOT_EXPORTED = ("t5",)
"""Architectures with a decoder beside the encoder."""


@pytest.mark.one_path
def test_it_is_exported_or_refused_with_the_way_on(
    trained: Trained, task: Task, tmp_path: Path
) -> None:
    family = trained.artifact.card.family
    if family in NOT_EXPORTED:
        said = f"a '{family}' model cannot be exported: .*distill this one into a student"
        with pytest.raises(ModelError, match=said):
            export(trained.artifact, task, ExportConfig(), tmp_path / "onnx")
        assert not any(tmp_path.iterdir())
        return
    onnx = open_classifier(export(trained.artifact, task, ExportConfig(), tmp_path / "onnx"))
    theirs = open_classifier(trained.artifact).logits(task.dev.examples)
    np.testing.assert_allclose(onnx.logits(task.dev.examples), theirs, atol=1e-4)


@pytest.fixture(params=ARCHITECTURES)
def untrained(request: pytest.FixtureRequest, tmp_path: Path) -> Artifact:
    """A teacher of pairs with random weights, large enough that its answers differ."""
    task = pair_task()
    source = save_teacher(request.param, tmp_path / "encoder")
    model, tokenizer = load_classifier(str(source), task.labels)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        if request.param == "mobilebert":  # each token reads its neighbours, padding among them
            model.get_input_embeddings().weight[model.config.pad_token_id] = 0
    return write_model(model, tokenizer, task, tmp_path / "teacher")


def test_pairs_are_parted_and_answered_each_for_itself(untrained: Artifact) -> None:
    classifier = open_classifier(untrained, max_length=LONGEST)
    for one, other in (
        (("saw drill", "plum"), ("saw", "drill plum")),
        (("mh", "c"), ("m", "hc")),  # letters that no tokenizer has joined
    ):
        tokens = [classifier.encode([pair]).arrays["input_ids"].tolist() for pair in (one, other)]
        assert tokens[0] != tokens[1]
    awkward = [(text, "plum") for (text,) in AWKWARD] + [("plum", text) for (text,) in AWKWARD]
    examples = (*pair_task().dev.examples, *awkward)
    alone = np.concatenate([classifier.logits([example]) for example in examples])
    assert np.ptp(alone, axis=0).min() > 0.01
    np.testing.assert_allclose(classifier.logits(examples), alone, atol=NOISE)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gpt2", AutoModelForCausalLM),
        ("t5", AutoModelForSeq2SeqLM),
        ("xlnet", AutoModelForCausalLM),
    ],
)
def test_a_language_model_is_a_start_too(name: str, kind: Any, tmp_path: Path) -> None:
    """Hubs have these with the head that they were pre-trained with."""
    source = save_teacher(name, tmp_path / "language-model", kind)
    model, _ = load_classifier(str(source), ("a", "b"))
    plain = AutoModel.from_pretrained(source)
    assert plain.state_dict().keys() == model.base_model.state_dict().keys()
    for key, tensor in plain.state_dict().items():
        assert torch.equal(tensor, model.base_model.state_dict()[key]), key


def test_a_killed_run_of_tied_weights_goes_on_to_the_same_ones(task: Task, tmp_path: Path) -> None:
    """T5 has one table of words in three places; a checkpoint holds it once."""
    source = save_teacher("t5", tmp_path / "encoder")
    short = {**QUICK, "epochs": 1, "batch_size": 8, "checkpoint_steps": 3}
    config = FinetuneConfig(teacher=str(source), **short)
    whole = finetune_by_name(task, config, tmp_path / "whole")
    with interrupted_at(5) as steps:
        with pytest.raises(KeyboardInterrupt):
            finetune_by_name(task, config, tmp_path / "killed")
        resumed = finetune_by_name(task, config, tmp_path / "killed")
    assert len(steps) == 5 + whole.card.findings.training.steps - 3, (
        "it went on from the checkpoint"
    )
    assert resumed.digest == whole.digest


@pytest.fixture(scope="module", params=["gpt2", "t5", "xlnet"])
def closed(
    request: pytest.FixtureRequest, task: Task, tmp_path_factory: pytest.TempPathFactory
) -> Artifact:
    """A teacher whose layers no student can read, with random weights."""
    folder = tmp_path_factory.mktemp("closed")
    source = save_teacher(request.param, folder / "encoder")
    model, tokenizer = load_classifier(str(source), task.labels)
    return write_model(model, tokenizer, task, folder / "teacher")


DISTILBERT = "distilbert with weights cosine=0"
NEAREST = {
    "distilbert": ("hidden states", DISTILBERT),
    "internal": ("attention scores and sentence states", DISTILBERT),
    "internal-all": (
        "attention scores and sentence states",
        "internal-all with weights attention=0,sentence=0",
    ),
    "internal-progressive": ("attention scores and sentence states", DISTILBERT),
    "minilm": ("attention scores and values", DISTILBERT),
    "pkd": ("sentence states", "pkd with weights patience=0"),
    "theseus": ("its layers", DISTILBERT),
    "tinybert": ("attention scores and hidden states", DISTILBERT),
    "hard": ("a student that starts from them", "hard"),
}
"""Of some methods: what is wanted of the teacher, and what is said to work."""


@pytest.mark.parametrize(
    "method", [row for row in METHODS if not METHODS[row].student.wants_own_start]
)
def test_what_an_architecture_does_not_give_is_refused_with_what_works(
    method: str, closed: Artifact, task: Task, tmp_path: Path
) -> None:
    wanted, works = NEAREST.get(method, ("", ""))
    said = (
        f"of a '{closed.card.family}' teacher only the logits can be learned from.*"
        f"method '{method}' needs {wanted}.*The nearest that works: {works}"
    )
    row = METHODS[method]
    students = [None]
    if row.wants_teacher_tokens and not row.uses_teacher_layers:
        students += [str(closed.path)]  # it reads the teacher's own tokens
    for student in students:
        with pytest.raises(ModelError, match=said):
            config = DistillConfig(method=method, student=student)
            distill(closed, task, config, tmp_path / "student")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("works", quick(sorted({works for _, works in NEAREST.values()}), "hard"))
def test_what_is_said_to_work_does(
    works: str, closed: Artifact, task: Task, tmp_path: Path
) -> None:
    name, _, weights = works.partition(" with weights ")
    encoder = save_encoder("bert", tmp_path / "encoder")
    settings = {**QUICK, "epochs": 1, "weights": weights} if weights else {**QUICK, "epochs": 1}
    config = DistillConfig.parse({"method": name, "student": str(encoder), **settings})
    student = distill(closed, task, config, tmp_path / "student")
    assert open_classifier(student).logits(task.dev.examples[:2]).shape == (2, 2)


def test_a_tokenizer_that_cannot_pad_is_refused(tmp_path: Path) -> None:
    source = save_teacher("gpt2", tmp_path)
    tokenizer = load_tokenizer(source)
    tokenizer.eos_token = None
    tokenizer.save_pretrained(source)
    with pytest.raises(ModelError, match="neither a pad token nor an end of text to pad with"):
        load_classifier(str(source), ("a", "b"))


def test_fitting_a_tokenizer_again_changes_nothing(trained: Trained) -> None:
    """An artifact is a start for other labels."""
    saved = load_tokenizer(trained.artifact.path)
    _, again = load_classifier(str(trained.artifact.path), ("a", "b", "c"))
    assert isinstance(saved, PreTrainedTokenizerFast) and isinstance(again, PreTrainedTokenizerFast)
    assert again.backend_tokenizer.to_str() == saved.backend_tokenizer.to_str()
    assert again.init_kwargs["padding_side"] == saved.padding_side
