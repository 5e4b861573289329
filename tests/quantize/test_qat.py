"""Training with 8-bit errors: what is rounded, where gradients go, and the graph of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock, patch

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn
from transformers.pytorch_utils import Conv1D

from bertender.comparison import accuracy as constant
from bertender.comparison.accuracy import predict_outputs
from bertender.comparison.fitting import best_thresholds
from bertender.core.artifact import Artifact
from bertender.core.errors import ConstantError, ModelError
from bertender.models.classifier import (
    load_torch_classifier,
    model_inputs,
    onnx_file,
    open_classifier,
)
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Split, Task
from bertender.training.steps import switch_off_dropout
from quantize import qat as training
from quantize.integers import INTEGERS, affine
from quantize.qat import (
    DECAY,
    FakeQuantized,
    RoundedWeight,
    axis_of_inputs,
    round_rows,
    rounded,
    score_while_training,
)
from tests.listening import no_training
from tests.quantize.contexts import QAT_QUICK, config_of, context_of, target_for, write
from tests.toy_heads import JOINT
from tests.toy_models import SHAPES, save_artifact, tiny_classifier
from tests.toy_tagging import TASK as TAGGING
from tests.toys import answer_task, set_task, toy_task

LAYER = "bert.encoder.layer.1.output.dense"
TABLE = "bert.embeddings.word_embeddings"


def fake(layers: Sequence[str] = (LAYER,)) -> FakeQuantized:
    model = tiny_classifier("bert").eval()
    weights = {path: RoundedWeight(INTEGERS["int8-symmetric"]) for path in layers}
    return FakeQuantized(model, weights, {TABLE: round_rows}, "uint8").eval()


def batch(task: Task, artifact: Artifact, count: int = 8) -> dict[str, torch.Tensor]:
    arrays = open_classifier(artifact).encode(task.train.examples[:count]).arrays
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def test_the_gradient_passes_as_if_nothing_were_rounded() -> None:
    values = torch.tensor([-5.0, -0.26, 0.1, 0.3, 9.0], requires_grad=True)
    found = rounded(values, torch.tensor(0.25), 2.0, INTEGERS["uint8"])
    assert found.tolist() == [-0.5, -0.25, 0.0, 0.25, 9.0]  # -0.5 is the least: -2 steps
    (found * torch.arange(5.0)).sum().backward()
    assert values.grad is not None and values.grad.tolist() == [0, 1, 2, 3, 4]


def test_weights_have_a_scale_for_each_output_and_tables_one() -> None:
    model = fake()
    weight = model.trained_weights()[f"{LAYER}.weight"]
    found = model.student.get_submodule(LAYER).weight
    scales = weight.abs().amax(dim=1, keepdim=True) / 127
    assert torch.allclose(found, (weight / scales).round() * scales, atol=1e-7)
    assert not torch.equal(found, weight)
    table = model.trained_weights()[f"{TABLE}.weight"]
    one = affine(float(table.min()), float(table.max()), INTEGERS["uint8"])
    left = one.rounded(table.numpy())
    looked_up = model.student.get_submodule(TABLE)(torch.arange(len(left)))
    assert np.abs(looked_up.detach().numpy() - left).max() < 1e-6


@pytest.mark.parametrize(("layer", "inputs"), [(nn.Linear(6, 4), 1), (Conv1D(4, 6), 0)])
def test_each_output_has_a_scale_whatever_its_axis(layer: nn.Module, inputs: int) -> None:
    weight = layer.get_parameter("weight").detach()
    assert axis_of_inputs(layer) == inputs and weight.shape[inputs] == 6
    integers = INTEGERS["int8-symmetric"]
    found = RoundedWeight(integers, inputs)(weight)
    torch.testing.assert_close(found.T, RoundedWeight(integers, 1 - inputs)(weight.T))
    with pytest.raises(ModelError, match=r"weights in a Conv1d, .*--scheme dynamic"):
        axis_of_inputs(nn.Conv1d(1, 1, 1))


def test_fused_weights_give_the_same_logits(task: Task, tmp_path: Path) -> None:
    texts = batch(task, save_artifact(tiny_classifier("bert"), task, tmp_path / "source"))
    model = fake()
    with torch.no_grad(), model.widening():
        model(texts)
    before = model(texts).detach()
    model.fuse()
    assert torch.equal(model(texts), before)
    assert not any("parametrizations" in name for name in model.student.state_dict())


def test_names_and_weights_are_the_model_s_own() -> None:
    plain, model = tiny_classifier("bert"), fake()
    assert model.trained_weights().keys() == plain.state_dict().keys()
    plain.load_state_dict(model.trained_weights())


def test_ranges_are_averages_over_real_tokens(task: Task, teacher: Artifact) -> None:
    model, texts = fake(), batch(task, teacher)
    seen: list[torch.Tensor] = []
    layer = model.student.get_submodule(LAYER)
    layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]), prepend=True)
    with model.widening(), torch.no_grad():
        model(texts)
    real = seen[0][texts["attention_mask"].bool()]
    assert texts["attention_mask"].min() == 0
    first = model.ranges()[LAYER]
    assert first == pytest.approx((float(real.min()), float(real.max())))
    with torch.no_grad():
        model(texts)
    assert model.ranges()[LAYER] == first, "in eval mode nothing moves"
    switch_off_dropout(model.train())
    with torch.no_grad():
        model(texts)
    now = seen[-1][texts["attention_mask"].bool()]
    wanted = [
        old * DECAY + float(new) * (1 - DECAY)
        for old, new in zip(first, now.aminmax(), strict=True)
    ]
    assert model.ranges()[LAYER] == pytest.approx(tuple(wanted))


@pytest.mark.parametrize("family", SHAPES)
def test_padding_of_training_batches_enters_no_range(
    family: str, task: Task, teacher: Artifact
) -> None:
    texts = batch(task, teacher, count=16)
    ids, mask = texts["input_ids"], texts["attention_mask"].bool()
    # the first padded position stays: MobileBERT's embeddings read their neighbours
    padding = ~mask & ~mask.roll(1, dims=1)
    assert padding.sum() > 16
    words = ids.roll(1, dims=0).where(mask.roll(1, dims=0), ids[0, 1])
    found = []
    for padded in (ids, torch.where(padding, words, ids)):
        plain = tiny_classifier(family)
        layers = [name for name, each in plain.named_modules() if isinstance(each, torch.nn.Linear)]
        weights = {path: RoundedWeight(INTEGERS["int8-symmetric"]) for path in layers}
        model = FakeQuantized(plain, weights, {}, "uint8").eval()
        model.activations.train()  # without the rest's dropout
        with torch.no_grad():
            model({**texts, "input_ids": padded})
        found.append(model.ranges())
    for path, first in found[0].items():
        assert found[1][path] == pytest.approx(first, rel=1e-4, abs=1e-6), path


@pytest.mark.parametrize("training_mode", [True, False])
def test_scoring_moves_no_range_and_restores_the_mode(
    training_mode: bool, task: Task, tmp_path: Path
) -> None:
    source = save_artifact(tiny_classifier("bert"), task, tmp_path / "source")
    context = context_of(source, task, tmp_path, scheme="qat", **QAT_QUICK)
    model = fake()
    with model.widening(), torch.no_grad():
        model(batch(task, source))
    before = model.ranges()
    model.train(training_mode)
    assert 0 <= score_while_training(context, model)[task.metric] <= 1
    assert model.ranges() == before
    assert {each.training for each in model.modules()} == {training_mode}


@pytest.mark.slow
def test_held_out_texts_do_not_enter_the_graph(task: Task, tmp_path: Path) -> None:
    """Two runs that differ in what each epoch is scored on end in the same ranges."""
    source = save_artifact(tiny_classifier("bert"), task, tmp_path / "source")
    other = Split((("saw",), ("melon " * 20,)), (1, 0))
    found = []
    for name, dev in (("one", task.dev), ("other", other)):
        (folder := tmp_path / name).mkdir()
        (folder / "draft").mkdir()
        settings = {**QAT_QUICK, "epochs": 2, "calibration_texts": 32}
        context = context_of(source, replace(task, dev=dev), folder, scheme="qat", **settings)
        found.append(write("qat", context, folder / "draft" / "model.onnx").ranges)
    assert found[0] == found[1]


def test_the_errors_are_those_of_eight_bits(task: Task, teacher: Artifact) -> None:
    texts = batch(task, teacher)
    plain = tiny_classifier("bert").eval()
    layers = [name for name, each in plain.named_modules() if isinstance(each, torch.nn.Linear)]
    model = fake(layers=layers)
    with model.widening(), torch.no_grad():
        model(texts)
    with torch.no_grad():
        wanted, found = plain(**texts).logits, model(texts)
    difference = (found - wanted).abs().max() / wanted.abs().max()
    assert 1e-5 < difference < 0.1


def test_the_graph_answers_as_the_fake_quantized_model(task: Task, tmp_path: Path) -> None:
    source = save_artifact(tiny_classifier("bert"), task, tmp_path / "source")
    (tmp_path / "draft").mkdir()
    context = context_of(source, task, tmp_path, scheme="qat", calibration_texts=32, **QAT_QUICK)
    written = write("qat", context, tmp_path / "draft" / "model.onnx")
    assert written.reference is not None
    texts = task.dev.examples
    wanted = written.reference.logits(texts)
    found = context.opened(tmp_path / "draft" / "model.onnx").logits(texts)
    far = np.abs(context.classifier.logits(texts) - wanted).mean()
    assert np.abs(found - wanted).mean() < 0.02 * np.abs(wanted).max()
    assert np.abs(found - wanted).mean() < 0.2 * far, "and it has learned something"


def test_training_lowers_the_loss_and_leaves_the_source(task: Task, tmp_path: Path) -> None:
    source = save_artifact(tiny_classifier("bert"), task, tmp_path / "source")
    before = {file: (source.path / file).read_bytes() for file in source.card.files}
    config = config_of("qat", epochs=4, learning_rate=1e-3)
    artifact = STAGES["quantize"].make([source], task, config, tmp_path / "int8")
    losses = artifact.card.findings.training.losses
    assert losses[-1]["hard"] < 0.9 * losses[0]["hard"]
    assert {file: (source.path / file).read_bytes() for file in source.card.files} == before
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["int8", "source"]
    weights = [
        numpy_helper.to_array(item)
        for item in onnx.load(onnx_file(artifact)).graph.initializer
        if item.name.endswith("MatMul_quantized") or "_quantized" in item.name
    ]
    assert {weight.dtype for weight in weights} <= {np.dtype(each) for each in ("i1", "u1", "i4")}


@pytest.mark.slow
def test_a_model_of_one_label_is_refused_unless_it_is_allowed(
    teacher: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, stage, out = toy_task(dev_size=64), STAGES["quantize"], tmp_path / "int8"
    unmoved = {"learning_rate": 1e-9}
    monkeypatch.setattr(constant, "FEWEST_OTHERS", 10)
    with pytest.raises(ConstantError, match=r"^scheme=qat, learning_rate=1e-09.* everywhere"):
        stage.make([teacher], task, config_of("qat", **unmoved), out)
    assert not out.exists()
    with no_training():
        made = stage.make([teacher], task, config_of("qat", **unmoved, allow_constant=True), out)
    assert made.card.findings.scores.constant.share == 0.5


@pytest.mark.parametrize("soft", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
def test_the_float_model_s_answers_are_learned_unless_told_otherwise(
    soft: float, task: Task, tmp_path: Path
) -> None:
    source = save_artifact(tiny_classifier("bert"), task, tmp_path / "source")
    config = config_of("qat", soft_labels=soft)
    artifact = STAGES["quantize"].make([source], task, config, tmp_path / "int8")
    losses = artifact.card.findings.training.losses
    assert ("soft" in losses[0]) is bool(soft)


@pytest.mark.parametrize("task", [TAGGING, JOINT, answer_task()], ids=lambda task: task.metric)
def test_every_token_learns_the_float_model_s_own_answer(
    task: Task, teacher_of: Callable[[str], Artifact], tmp_path: Path
) -> None:
    """Of words of several parts too, of which outputs are those of the first part."""
    source, texts = teacher_of(task.problem_type), task.train.first(8)
    if task.problem.labels_words:
        words = tuple(tuple(f"{word}'s" for word in each) for each in texts.examples)
        texts = replace(texts, examples=words)
    context = context_of(source, replace(task, train=texts), tmp_path, scheme="qat", **QAT_QUICK)
    examples, model = training._examples(context), load_torch_classifier(source)
    for row in range(len(examples)):
        own = examples.collate([examples[row]])
        with torch.inference_mode():
            wanted = model(**model_inputs(model, own)).logits
        torch.testing.assert_close(own[training.TEACHER_LOGITS], wanted, atol=1e-4, rtol=1e-4)


def test_a_broken_float_model_teaches_nothing() -> None:
    batch = Mock(arrays={"attention_mask": np.ones((1, 2), np.int64)})
    logits = np.array([[[0.0, 1.0], [np.nan, 0.0]]], np.float32)
    broken = Mock(encode=Mock(return_value=batch), predictor=Mock(logits=lambda batch: logits))
    broken.name = "broken"
    with (
        patch.object(training, "encoded_buckets", return_value=[[0]]),
        pytest.raises(ModelError, match="broken predicts with NaN or infinite logits"),
    ):
        training._token_logits(broken, [("a", "b")])


@pytest.mark.parametrize("task", [set_task(), answer_task()], ids=lambda task: task.metric)
def test_what_was_fitted_to_the_weights_before_is_fitted_again(
    task: Task, teacher_of: Callable[[str], Artifact], tmp_path: Path
) -> None:
    source = teacher_of(task.problem_type)
    config = config_of("qat", epochs=2, learning_rate=3e-3, max_length=64)
    made = STAGES["quantize"].make([source], task, config, tmp_path / "int8")
    scores, outputs = (
        made.card.findings.scores,
        predict_outputs(open_classifier(made), task.train.examples),
    )
    if task.problem.has_thresholds:
        assert [*scores.thresholds] == [*task.labels] and any(scores.thresholds.values())
        left = best_thresholds(task, outputs, task.train)
        assert max(map(abs, left.values())) < 0.1 * max(map(abs, scores.thresholds.values()))
    assert made.card.task.fitted == (scores.fitted or {})
    again = task.problem.fit(outputs, task.train.examples, task.train.label_ids)
    assert made.card.task.fitted == pytest.approx(again, abs=0.2)
    assert not again or made.card.task.fitted != source.card.task.fitted


@pytest.mark.slow
@pytest.mark.one_path
@pytest.mark.parametrize("family", ["albert", "distilbert", "roberta", "electra"])
def test_other_families(family: str, task: Task, tmp_path: Path) -> None:
    source = save_artifact(tiny_classifier(family), task, tmp_path / "source")
    config = config_of("qat", target=target_for(family))
    artifact = STAGES["quantize"].make([source], task, config, tmp_path / "int8")
    found = artifact.card.findings.quantization
    linear = sum(
        isinstance(each, torch.nn.Linear) for each in load_torch_classifier(source).modules()
    )
    assert found.running_in_integers == found.products >= linear


def test_shared_weights_are_refused_before_a_training_where_their_sums_saturate(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "saturates", lambda: True)
    source = save_artifact(tiny_classifier("albert"), task, tmp_path / "source")
    with pytest.raises(ModelError, match=r"weights are shared, as an ALBERT's.*--target avx2"):
        STAGES["quantize"].make([source], task, config_of("qat"), tmp_path / "int8")
    assert not (tmp_path / "int8").exists()


def test_an_lstm_is_refused(task: Task, tmp_path: Path) -> None:
    source = save_artifact(tiny_classifier("bertender-bilstm"), task, tmp_path / "source")
    with pytest.raises(
        ModelError, match=r"has an LSTM.*round linear layers alone.*--scheme dynamic"
    ):
        STAGES["quantize"].make([source], task, config_of("qat"), tmp_path / "int8")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
