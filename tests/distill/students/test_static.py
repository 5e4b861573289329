"""The static student: its vectors and weights at the start."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from bertender.core.files import CACHE_VARIABLE
from distill.methods.static import RARE, StaticStudent
from distill.students import StudentShape
from distill.tokenizers import TokenUse, token_use
from tests.toy_models import VOCABULARY, tiny_classifier
from tests.toys import tiny_tokenizer

USE = TokenUse(torch.tensor([90, 0, 4, 4, *[0] * 20]), (0, 2, 3), before=(2,), after=(3,))


def test_a_static_student_starts_from_what_its_teacher_makes_of_each_token() -> None:
    """In all directions, vectors are only turned, moved and scaled: distances stay alike."""
    teacher = tiny_classifier("bert", labels=3).train()
    student = StaticStudent().build(teacher, StudentShape(1, tokens=USE, texts=2))
    assert teacher.training and (student.config.hidden_size, student.config.texts) == (32, 2)
    assert (student.config.num_labels, student.config.feed_forward_size) == (3, 256)
    words, tokens = student.get_input_embeddings().weight.detach(), [5, 9, 40]
    teacher.eval()
    with torch.inference_mode():
        texts = torch.tensor([[2, token, 3] for token in tokens])
        means = teacher.base_model(texts).last_hidden_state.mean(1)
    wanted, found = torch.cdist(means, means), torch.cdist(words[tokens], words[tokens])
    torch.testing.assert_close(found / found.max(), wanted / wanted.max(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(words.std(), torch.ones(()))
    torch.testing.assert_close(words.mean(0), torch.zeros(32), rtol=0, atol=1e-5)


def test_a_static_student_weighs_tokens_by_how_rare_they_are() -> None:
    student = StaticStudent().build(
        tiny_classifier("bert"), StudentShape(1, hidden_size=8, tokens=USE)
    )
    weights = student.encoder.word_weights.detach().sigmoid()
    assert not weights[[0, 2, 3]].any(), "special tokens have no part"
    counts = torch.ones(VOCABULARY)
    counts[:24] += USE.counts
    share = counts / counts.sum()
    torch.testing.assert_close(weights[4:], (RARE / (RARE + share))[4:])
    assert weights[1] == weights[5] and student.config.hidden_size == 8


def test_the_vectors_are_computed_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A large teacher takes minutes for them, and a compression makes several static students."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    teacher = tiny_classifier("bert")
    tables, runs = [], []
    for model, width in ((teacher, 32), (teacher, 32), (teacher, 8), (other(teacher), 32)):
        with counted_runs(model) as count:
            student = StaticStudent().build(model, StudentShape(1, tokens=USE, hidden_size=width))
        runs.append(bool(count))
        tables.append(student.get_input_embeddings().weight.detach())
    assert runs == [True, False, True, True]
    assert torch.equal(tables[0], tables[1]) and not torch.equal(tables[0], tables[3])


OTHER_SETTINGS = {"hidden_act": "relu", "num_attention_heads": 1, "layer_norm_eps": 0.1}


@pytest.mark.parametrize("setting", OTHER_SETTINGS)
def test_vectors_of_the_same_weights_with_another_setting_are_their_own(
    setting: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Weights do not tell how they are used: the encoder computes something else."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    teacher = tiny_classifier("bert")
    changed = copy.deepcopy(teacher.config)
    setattr(changed, setting, OTHER_SETTINGS[setting])
    assert getattr(changed, setting) != getattr(teacher.config, setting)
    twin = type(teacher)(changed)
    twin.load_state_dict(teacher.state_dict())
    first, second = (vectors_of(model) for model in (teacher, twin))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "empty"))
    assert torch.equal(second, vectors_of(twin)) and not torch.allclose(first, second)


def test_names_of_labels_and_folders_compute_nothing_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    teacher = tiny_classifier("bert")
    vectors_of(teacher)
    teacher.config.name_or_path = "elsewhere"
    teacher.config.id2label = {0: "bad", 1: "good"}
    with counted_runs(teacher) as count:
        vectors_of(teacher)
    assert not count


def vectors_of(model: PreTrainedModel) -> torch.Tensor:
    student = StaticStudent().build(model, StudentShape(1, tokens=USE))
    return student.get_input_embeddings().weight.detach()


@contextmanager
def counted_runs(model: PreTrainedModel) -> Iterator[list[int]]:
    """Give a list that gets an item for each run of the encoder."""
    count: list[int] = []
    hook = model.base_model.register_forward_hook(lambda *_: count.append(1))
    yield count
    hook.remove()


def other(teacher: PreTrainedModel) -> PreTrainedModel:
    changed = copy.deepcopy(teacher)
    with torch.no_grad():
        changed.get_input_embeddings().weight[7] += 1
    return changed


@pytest.mark.parametrize("model_type", ["bertender-bilstm", "bertender-static"])
def test_a_static_student_of_a_model_without_layers_has_its_vectors(model_type: str) -> None:
    teacher = tiny_classifier(model_type)
    student = StaticStudent().build(teacher, StudentShape(1, tokens=USE, feed_forward_size=0))
    ours, theirs = (each.get_input_embeddings().weight.detach() for each in (student, teacher))
    products = centred(theirs) @ centred(theirs).T
    wanted = products / centred(theirs).var()
    torch.testing.assert_close(ours @ ours.T, wanted, rtol=1e-4, atol=1e-3)
    assert student.config.feed_forward_size == 0


def centred(table: torch.Tensor) -> torch.Tensor:
    return table - table.mean(0)


def test_tokens_are_counted_and_texts_framed_as_the_tokenizer_does() -> None:
    tokenizer = tiny_tokenizer()
    use = token_use(tokenizer, [("apple apple", "saw"), ("", "apple")])
    saw, apple = tokenizer.convert_tokens_to_ids(["saw", "apple"])
    assert (use.counts[apple], use.counts[saw], use.counts.sum()) == (3, 1, 4)
    assert use.before == (tokenizer.cls_token_id,) and use.after == (tokenizer.sep_token_id,)
    special = set(tokenizer.all_special_ids)
    assert special - set(use.special) == {tokenizer.unk_token_id}
