"""Token columns, and tokenizers that fit their model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from bertender.models.classifier import TorchPredictor, model_inputs
from bertender.tasks.task import Split, Task
from bertender.text.batch import Batch
from bertender.text.tokenizer import load_tokenizer
from bertender.training.examples import token_dataset
from distill.distillation.config import DistillConfig
from distill.distillation.distiller import distill
from distill.tokenizers import fitting_tokenizer
from tests.toy_models import LONGEST, save_encoder, tiny_classifier
from tests.toys import tiny_tokenizer, write_model


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Path:
    """A tokenizer that gives segments and states no length, as many on hubs do."""
    tokenizer = tiny_tokenizer()
    tokenizer.model_max_length = 10**30
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("model_type", "names"),
    {
        "bert": ["input_ids", "attention_mask", "token_type_ids"],
        "distilbert": ["input_ids", "attention_mask"],
        "mpnet": ["input_ids", "attention_mask"],
    }.items(),
)
def test_a_fitting_tokenizer_gives_what_the_model_takes(
    tokenizer_folder: Path, model_type: str, names: list[str]
) -> None:
    tokenizer = fitting_tokenizer(str(tokenizer_folder), tiny_classifier(model_type))
    tokenizer.save_pretrained(tokenizer_folder)
    saved = AutoTokenizer.from_pretrained(tokenizer_folder)
    assert sorted(saved("apple")) == sorted(names)
    assert saved.model_max_length == LONGEST


def test_texts_are_cut_where_the_tokenizer_says() -> None:
    split, tokenizer = Split((("apple " * 100,),), (0,)), tiny_tokenizer()
    assert token_dataset(split, tokenizer).lengths == [LONGEST]
    tokenizer.model_max_length = 10
    assert token_dataset(split, tokenizer).lengths == [10]


def test_pairs_become_one_sequence_with_two_segments() -> None:
    columns = token_dataset(Split((("apple", "saw drill"),), (1,)), tiny_tokenizer()).columns
    assert columns["token_type_ids"] == [[0, 0, 0, 1, 1, 1]]
    assert columns["labels"] == (1,)


def test_a_model_of_one_segment_is_given_none() -> None:
    """Whatever the tokenizer calls the second text of a pair."""
    batch = dict(tiny_tokenizer()("apple", "saw drill", return_tensors="pt"))
    model = tiny_classifier("roberta", type_vocab_size=1, pad_token_id=0)
    assert batch["token_type_ids"].max() == 1
    assert model(**model_inputs(model, batch)).logits.shape == (1, 2)
    arrays = {name: tensor.numpy() for name, tensor in batch.items()}
    assert TorchPredictor(model).logits(Batch((("apple", "saw drill"),), arrays)).shape == (1, 2)


FRAMED = {
    "bert": (
        ["[CLS]", "saw", "[SEP]"],
        ["[CLS]", "saw", "[SEP]", "plum", "[SEP]"],
        [0, 0, 0, 1, 1],
    ),
    "roberta": (
        ["[CLS]", "saw", "[SEP]"],
        ["[CLS]", "saw", "[SEP]", "[SEP]", "plum", "[SEP]"],
        [0, 0, 0, 0, 0, 0],
    ),
}


def without_post_processor(folder: Path, **tokens: str) -> Path:
    """A tokenizer.json that lost what puts special tokens around texts, as conversions do."""
    tiny_tokenizer().save_pretrained(folder)
    written = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**written, "post_processor": None}))
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **names, **tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    for name in ("vocab.txt", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)
    return folder


@pytest.mark.parametrize("model_type", FRAMED)
def test_special_tokens_that_a_tokenizer_names_are_put_around_texts(
    model_type: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = str(without_post_processor(tmp_path))
    assert AutoTokenizer.from_pretrained(source)("saw")["input_ids"] == [
        tiny_tokenizer().convert_tokens_to_ids("saw")
    ]
    model = tiny_classifier(model_type, type_vocab_size=2)
    tokenizer = fitting_tokenizer(source, model)
    single, pair, types = FRAMED[model_type]
    assert tokenizer("saw").tokens() == single
    both = tokenizer("saw", "plum", return_token_type_ids=True)
    assert both.tokens() == pair and both["token_type_ids"] == types
    assert "puts no [CLS] and [SEP] around texts" in caplog.text
    tokenizer.save_pretrained(tmp_path)
    caplog.clear()
    again = fitting_tokenizer(source, model)
    assert again("saw").tokens() == single and not caplog.text


def test_the_texts_of_a_finished_classifier_stay_as_they_were(tmp_path: Path) -> None:
    source, model = str(without_post_processor(tmp_path)), tiny_classifier("bert")
    assert fitting_tokenizer(source, model, finished=True)("saw").tokens() == ["saw"]


def test_a_student_reads_texts_as_its_teacher_was_trained_to(task: Task, tmp_path: Path) -> None:
    """Also one that came without [CLS] and [SEP]; another start of its own has them."""
    plain = AutoTokenizer.from_pretrained(without_post_processor(tmp_path / "tokenizer"))
    teacher = write_model(tiny_classifier("bert"), plain, task, tmp_path / "teacher")
    settings = {"epochs": 1, "precision": "fp32", "layers": 2}
    student = distill(teacher, task, DistillConfig(**settings), tmp_path / "student")
    assert load_tokenizer(student.path)("saw").tokens() == ["saw"]
    encoder = save_encoder("bert", tmp_path / "encoder")
    without_post_processor(encoder)
    config = DistillConfig(student=str(encoder), **settings)
    other = distill(teacher, task, config, tmp_path / "other")
    assert load_tokenizer(other.path)("saw").tokens() == ["[CLS]", "saw", "[SEP]"]
