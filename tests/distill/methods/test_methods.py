"""The rows of METHODS as losses: their parts, weights and settings, and what they train."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.models.families import encoder_layers, family_of
from bertender.tasks.task import Task
from distill.distillation.config import DistillConfig
from distill.distillation.distillation import (
    DistillationObjective,
    check_compatible,
    phase_settings,
)
from distill.distillation.start import new_student
from distill.losses.signals import TEXT_SIGNALS, joined, read_signals
from distill.losses.terms import last
from distill.losses.training_modules import TRAINING_MODULES
from distill.methods import GENERAL_METHODS, METHODS
from distill.methods.method import Method, Phase
from distill.students import START_LAYERS, StudentShape
from distill.teachers.encoders import Teacher
from distill.tokenizers import token_use
from tests.toy_models import ODD, save_encoder, tiny_classifier
from tests.toys import tiny_tokenizer

PHASES = [(name, phase.name) for name in METHODS for phase in METHODS[name].at(2).phases]
SETTINGS: dict[str, dict[str, Any]] = {"minilm-v2": {"relation_heads": 8}}
"""The toys are too narrow for the paper's 48."""
LONGER = {"mobilebert": 200, "mobilebert-tiny": 200}
"""Steps of layers that start from small random weights and have no layer norms; 60 of others."""


SURE = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
"""The teacher's answers to the two texts, which agree with their labels."""
STEPS = 10


def toy_method(name: str, **settings: Any) -> Method:
    return METHODS[name].changed({}, **{**SETTINGS.get(name, {}), **settings})


def toy_shape(method: Method) -> StudentShape:
    """Two layers of the toys' four, or the one of students that have no layers to choose."""
    layers = min(method.student.depth(4), 2)
    return StudentShape(layers, tokens=token_use(tiny_tokenizer(), ()))


def toy_batch(labels: tuple[int, ...] = (0, 1)) -> dict[str, torch.Tensor]:
    tokens = tiny_tokenizer()(["apple pear", "saw"], padding=True, return_tensors="pt")
    return {**tokens, "labels": torch.tensor(labels), "teacher_logits": SURE}


def training_module_of(phase: Phase, student: PreTrainedModel, teacher: PreTrainedModel) -> Any:
    module = TRAINING_MODULES[phase.training_module]
    return module(student, teacher, phase.terms, seed=0, steps=STEPS)


def losses_of(
    method: Method,
    phase: Phase,
    teacher: PreTrainedModel,
    step: int = 0,
    batch: dict[str, torch.Tensor] | None = None,
) -> tuple[Any, dict[str, torch.Tensor]]:
    """The training module of a phase, and the parts of its loss on a batch."""
    torch.manual_seed(0)
    student = method.build(teacher, toy_shape(method))
    training_module = training_module_of(phase, student, teacher).eval()
    objective = DistillationObjective(teacher, phase.reads(2, 4))
    return training_module, dict(objective(training_module, batch or toy_batch(), step))


@pytest.mark.parametrize(("name", "phase_name"), PHASES)
def test_a_phase_trains_the_student_alone(name: str, phase_name: str) -> None:
    teacher = tiny_classifier("bert").train()
    before = {key: tensor.clone() for key, tensor in teacher.state_dict().items()}
    method = toy_method(name)
    (phase,) = (phase for phase in method.at(2).phases if phase.name == phase_name)
    training_module, parts = losses_of(method, phase, teacher)
    assert set(parts) == {term.name for term in phase.terms if term.weight}
    assert not teacher.training  # or dropout would blur its answers
    sum(parts.values()).backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    learning = [p for p in training_module.student.parameters() if p.grad is not None]
    assert learning and any(p.grad.abs().max() > 0 for p in learning if p.grad is not None)
    assert all(torch.equal(before[key], now) for key, now in teacher.state_dict().items())


@pytest.mark.parametrize(("name", "phase_name"), PHASES)
def test_each_term_falls_from_a_student_that_is_not_its_teacher(name: str, phase_name: str) -> None:
    teacher = tiny_classifier("bert")
    method = toy_method(name)
    (phase,) = (phase for phase in method.at(2).phases if phase.name == phase_name)
    training_module, first = losses_of(method, phase, teacher)
    with torch.no_grad():
        for parameter in training_module.student.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    objective = DistillationObjective(teacher, phase.reads(2, 4))
    learning = [p for p in training_module.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(learning, lr=3e-3)
    seen = []
    falling = [name for name in first if name not in ("soft", "hard")]
    for _ in range(LONGER.get(method.name, 60)):
        parts = objective(
            training_module, toy_batch(), STEPS - 1
        )  # always the same, whoever's turn it is
        seen.append({name: float(part.detach()) for name, part in parts.items()})
        whole = sum(seen[-1].values()) < 0.8 * sum(seen[0].values())
        if whole and all(seen[-1][name] < 0.8 * seen[0][name] for name in falling):
            return
        optimizer.zero_grad()
        sum(parts.values()).backward()
        optimizer.step()
    pytest.fail(f"they began at {seen[0]} and are at {seen[-1]}")


@pytest.mark.parametrize("name", METHODS)
def test_the_finished_student_keeps_nothing_of_its_training(name: str) -> None:
    teacher = tiny_classifier("bert")
    method = toy_method(name)
    student = method.build(teacher, toy_shape(method))
    keys = set(student.state_dict())
    for phase in method.at(2).phases:
        student = training_module_of(phase, student, teacher).finished()
    assert set(student.state_dict()) == keys and "distill" not in type(student).__module__
    assert all(parameter.requires_grad for parameter in student.parameters())


@pytest.mark.parametrize("name", METHODS)
def test_the_last_phase_alone_takes_the_configs_length(name: str) -> None:
    *earlier, final = METHODS[name].at(3).phases
    assert final.epochs is None and all(phase.epochs for phase in earlier)
    names = [phase.name for phase in METHODS[name].at(3).phases]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", METHODS)
def test_a_row_says_of_its_phases_what_holds_at_any_depth(name: str) -> None:
    method = METHODS[name]
    facts = ("needs", "conditions", "has_phases", "weights_for_logits_alone")
    for depth in (1, 2, 7):
        written_out = method.at(depth)
        assert [getattr(written_out, fact) for fact in facts] == [
            getattr(method, fact) for fact in facts
        ]
        assert written_out.at(depth) == written_out


@pytest.mark.parametrize("name", METHODS)
def test_a_row_says_what_its_method_does_on_a_corpus_too(name: str) -> None:
    general = METHODS[name].general
    assert (general is not None) == (name in GENERAL_METHODS)
    if general is not None:
        assert GENERAL_METHODS[name].phases == general.phases
        assert GENERAL_METHODS[name].settings == general.settings
        assert GENERAL_METHODS[name].summary == general.summary


def test_a_weight_of_the_user_is_not_divided_by_the_depth() -> None:
    transfer, _ = METHODS["mobilebert"].changed({"means": 6.0}).at(3).phases
    weights = {term.name: term.weight for term in transfer.terms}
    assert weights == pytest.approx(
        {"features": 100 / 3, "means": 6, "variances": 5 / 3, "attention": 1}
    )


def test_what_a_method_wants_and_costs_follows_from_its_terms() -> None:
    assert METHODS["hard"].conditions == () and METHODS["hard"].cost == "no teacher"
    assert METHODS["pkd"].conditions == ("the teacher's width",)
    assert METHODS["pkd"].cost == "the teacher reads each text once, for all epochs"
    heads = ("the teacher's tokens", "the teacher's number of heads")
    assert METHODS["tinybert"].conditions == METHODS["minilm"].conditions == heads
    assert METHODS["minilm-v2"].conditions == heads[:1]
    assert METHODS["tinybert"].cost == "the teacher runs in each step of transformer"
    assert METHODS["theseus"].conditions[0] == "the teacher's own layers"
    words = GENERAL_METHODS["distilbert"].conditions
    assert words[0] == "a teacher that predicts words" and words[-1] == "the teacher's width"


def test_weights_scale_the_parts_and_zero_removes_one() -> None:
    teacher = tiny_classifier("bert")

    def parts(**weights: float) -> dict[str, float]:
        method = METHODS["distilbert"].changed(weights)
        _, losses = losses_of(method, method.at(2).phases[0], teacher)
        return {name: float(loss.detach()) for name, loss in losses.items()}

    usual = parts()
    assert parts(hard=1.5)["hard"] == pytest.approx(3 * usual["hard"])
    assert set(parts(cosine=0)) == {"soft", "hard"}
    assert parts(soft=0, hard=0) == {"cosine": pytest.approx(usual["cosine"])}


def test_settings_reach_the_terms_that_have_them_alone() -> None:
    terms = {t.name: t for t in METHODS["pkd"].changed({}, temperature=7.0, layers=last).terms}
    own = {t.name: t for t in METHODS["pkd"].terms}
    assert vars(terms["soft"])["temperature"] == 7.0
    assert vars(terms["patience"])["layers"] is last
    assert terms["hard"] == own["hard"] and vars(own["soft"])["temperature"] == 10.0


TAUGHT_BY_TEXTS = [name for name, row in METHODS.items() if row.needs <= TEXT_SIGNALS]
BY_SENTENCES: list[tuple[str, dict[str, float]]] = [
    *((name, {}) for name in TAUGHT_BY_TEXTS),
    ("distilbert", {"cosine": 0}),
    *((name, {"attention": 0}) for name in METHODS if name.startswith("internal")),
]
"""Methods, with changed weights, that read whole texts alone."""


@pytest.mark.parametrize(("name", "weights"), BY_SENTENCES)
def test_kept_answers_give_the_losses_of_a_teacher_that_runs(
    name: str, weights: dict[str, float]
) -> None:
    method, teacher, batch = METHODS[name].changed(weights), tiny_classifier("bert"), toy_batch()
    reads = joined(phase.reads(2, 4) for phase in method.at(2).phases)
    del batch["teacher_logits"]
    online = {
        phase.name: losses_of(method, phase, teacher, batch=batch)[1]
        for phase in method.at(2).phases
    }
    signals = read_signals(teacher, batch, reads)
    batch |= {f"teacher_sentence_states_{i}": s for i, s in signals.sentence_states.items()}
    batch["teacher_logits"] = signals.logits
    teacher.register_forward_hook(lambda *given: pytest.fail("the teacher was run"))
    for phase in method.at(2).phases:
        _, kept = losses_of(method, phase, teacher, batch=batch)
        assert (
            set(kept)
            == set(online[phase.name])
            == {term.name for term in phase.terms if term.weight}
        )
        for part, loss in kept.items():
            torch.testing.assert_close(loss, online[phase.name][part], rtol=1e-6, atol=1e-7)


OWN_START_LAYERS = {"pkd": (0, 1, 2, 3, 4, 5), "distilbert": (0, 1, 2, 3, 4, 11)}
"""Layers of 12, from 0, that a student of 6 starts from although others are matched or even."""


def start_of(student: PreTrainedModel, teacher: PreTrainedModel) -> dict[int, int]:
    """Which layer of the teacher each layer of the student is a copy of, counted from 1."""
    ours, theirs = (
        [
            family_of(model).feed_forward.weights(layer)["inner.weight"]
            for layer in encoder_layers(model)
            if family_of(model).plain_layers
        ]
        for model in (student, teacher)
    )
    return {
        place: other
        for place, mine in enumerate(ours, 1)
        for other, its in enumerate(theirs, 1)
        if torch.equal(mine, its)
    }


@pytest.mark.parametrize(
    "name", [name for name, row in METHODS.items() if "layers" not in row.student.lacks]
)
def test_a_student_starts_from_the_layers_that_it_is_matched_with(name: str) -> None:
    method = toy_method(name)
    teacher = tiny_classifier("bert", num_hidden_layers=12)
    found = start_of(method.build(teacher, StudentShape(6)), teacher)
    if own := OWN_START_LAYERS.get(name):
        assert tuple(layer - 1 for layer in found.values()) == own
        return
    pairs = {pair for term in method.terms for pair in term.pairs(6, 12) if pair != (0, 0)}
    assert not found or pairs <= set(found.items())


def test_relation_heads_divide_the_width_of_attention() -> None:
    """A MobileBERT's is that of its bottleneck."""
    teacher, shape = tiny_classifier("mobilebert"), StudentShape(2, hidden_size=64, heads=4)
    narrow = teacher.config.true_hidden_size
    assert narrow < teacher.config.hidden_size
    fitting, beyond = (toy_method("minilm-v2", relation_heads=size) for size in (narrow, 32))
    student = fitting.build(teacher, shape)
    check_compatible(fitting, student, teacher)
    with pytest.raises(ModelError, match=rf"both models, 64 and {narrow}; {narrow} and its"):
        check_compatible(beyond, student, teacher)


def test_hard_is_the_control_of_distilbert_from_its_first_weights() -> None:
    teacher = tiny_classifier("bert", num_hidden_layers=12)
    control, distilbert = (
        start_of(METHODS[name].build(teacher, StudentShape(6)), teacher)
        for name in ("hard", "distilbert")
    )
    assert control == distilbert


def test_every_method_starts_from_a_choice_of_layers_that_there_is() -> None:
    assert {METHODS[name].start_layers for name in METHODS} <= START_LAYERS.keys()


@pytest.mark.parametrize("name", GENERAL_METHODS)
def test_the_general_stage_starts_as_the_task_stage(name: str) -> None:
    """DistilBERT's general stage is the paper's, with the layers of the published checkpoint."""
    own = "alternating" if name == "distilbert" else METHODS[name].start_layers
    assert GENERAL_METHODS[name].start_layers == own


def test_pkd_starts_from_the_teacher_or_from_a_pretrained_encoder(
    trained_teacher: Artifact, task: Task, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """From the teacher with its classifier; with an encoder given, from its first layers."""
    encoder = str(save_encoder("bert", tmp_path / "encoder"))
    for source, layers in ((None, 2), (encoder, 2), (encoder, 4)):
        caplog.clear()
        given = {"layers": layers} if layers == 2 else {}
        config = DistillConfig(method="pkd", student=source, **given)
        teacher = Teacher.load(trained_teacher, task)
        start, student = new_student(teacher, METHODS["pkd"], task, config)
        first = {layer: layer for layer in range(1, layers + 1)}
        assert start_of(student, start.model) == first
        assert (start_of(student, teacher.model) == first) is (source is None)
        same_head = torch.equal(student.classifier.weight, teacher.model.classifier.weight)
        assert same_head is (source is None)
        assert ("as large as the teacher, of 4 layers" in caplog.text) is (layers == 4)


TAKES_A_START = [name for name, row in METHODS.items() if not row.uses_teacher_layers]


@pytest.mark.parametrize("start", ["encoder", "teacher"])
@pytest.mark.parametrize("name", TAKES_A_START)
def test_an_encoder_to_start_from_keeps_its_layers(name: str, start: str) -> None:
    """And the teacher's are cut to what the method wants; settings go before both."""
    method, depth = METHODS[name], 4

    def layers(**given: Any) -> int:
        config = DistillConfig(method=name, **given)
        return config.shape(method, depth, own_start=start == "encoder").layers

    kept = 1 if "layers" in method.student.lacks else depth
    assert layers() == (kept if start == "encoder" else method.student.depth(depth))
    assert layers(layers=3) == 3
    if method.student.layer_by_layer:
        assert layers(teacher_layers=(0, 1, 3)) == 3


ORDERS: dict[str, list[list[tuple[int, int]]]] = {
    "internal": [[(1, 2)], [(1, 2), (2, 4)], [(1, 2), (2, 4), (3, 6)]],
    "internal-progressive": [[(1, 2)], [(2, 4)], [(3, 6)]],
    "internal-all": [[(1, 2), (2, 4), (3, 6)]],
}
"""Of the three orders of the paper, what each phase that matches layers compares: 3 of 6."""


@pytest.mark.parametrize("name", ORDERS)
def test_each_order_of_internal_distillation_matches_its_layers(name: str) -> None:
    phases = METHODS[name].at(3).phases
    matching = [[each for each in p.terms if each.pairs(3, 6)] for p in phases]
    compared = [[list(each.pairs(3, 6)) for each in terms] for terms in matching if terms]
    assert compared == [[pairs] * 2 for pairs in ORDERS[name]]
    labels = {"soft", "hard"}
    with_labels = [labels <= {term.name for term in phase.terms} for phase in phases]
    assert with_labels == [False] * (len(phases) - 1) + [True]
    assert len(phases) == (1 if name == "internal-all" else 4)


@pytest.mark.parametrize("name", ORDERS)
def test_a_shorter_map_leaves_no_phase_without_a_layer(name: str) -> None:
    phases = METHODS[name].changed({}, layers=last).at(3).phases
    pairs = {term.pairs(3, 6) for phase in phases for term in phase.terms}
    assert pairs == {((3, 6),), ()}


@pytest.mark.parametrize("depth", [2, 3, 24])
@pytest.mark.parametrize("name", ["mobilebert", "mobilebert-tiny"])
def test_a_layer_of_a_mobilebert_has_an_epoch_unless_it_is_told(name: str, depth: int) -> None:
    transfer, _ = METHODS[name].at(depth).phases
    epochs = [
        phase_settings(transfer, DistillConfig(method=name, **given)).epochs
        for given in ({}, {"earlier_epochs": 5})
    ]
    assert epochs == [depth, 5], "so many for all layers together"


def test_internal_goes_up_layer_by_layer() -> None:
    *growing, _ = METHODS["internal"].at(3).phases
    pairs = [[vars(term)["layers"](3, 6)[: term.up_to] for term in p.terms] for p in growing]
    assert [len(both[0]) for both in pairs] == [1, 2, 3]
    assert all(attention == sentence for attention, sentence in pairs)
    assert pairs[2][0] == ((1, 2), (2, 4), (3, 6))
    *mapped, _ = METHODS["internal"].changed({}, layers=last).at(3).phases
    assert [term.pairs(3, 6) for term in mapped[0].terms] == [((3, 6),)] * 2


def test_projections_are_one_a_signal_and_none_without_weight() -> None:
    teacher = tiny_classifier("bert")
    for weights, names in (({}, ["hidden_states"]), ({"hidden": 0.0}, [])):
        method = METHODS["tinybert"].changed(weights)
        student = method.build(teacher, StudentShape(2, hidden_size=16))
        (phase, _) = method.at(2).phases
        module = training_module_of(phase, student, teacher)
        assert list(module.projections) == names


@pytest.mark.parametrize(("name", "phase_name"), PHASES)
def test_a_phase_reads_a_teacher_whose_positions_share_its_keys(name: str, phase_name: str) -> None:
    """As DeBERTa-v3 does: its projections run on positions too, which are no tokens."""
    model_type, changes = ODD["positions by shared keys"]
    teacher, method = tiny_classifier(model_type, **changes), toy_method(name)
    phase = next(each for each in method.at(2).phases if each.name == phase_name)
    if name == "albert":
        with pytest.raises(ModelError, match="of its own kind"):
            losses_of(method, phase, teacher)
        return
    _, parts = losses_of(method, phase, teacher)
    assert all(part.isfinite() for part in parts.values())


PROJECTED = [
    (name, phase.name)
    for name, row in METHODS.items()
    for phase in row.phases
    if any(getattr(term, "projected", False) for term in phase.terms)
]


@pytest.mark.parametrize(("name", "phase_name"), PROJECTED)
def test_states_as_wide_as_the_teachers_are_compared_as_they_are(
    name: str, phase_name: str
) -> None:
    """Here the student is its teacher, so that nothing is left to learn of its states."""
    teacher = tiny_classifier("bert")
    phase = next(each for each in METHODS[name].at(4).phases if each.name == phase_name)
    same = copy.deepcopy(teacher)
    module = training_module_of(phase, same, teacher).eval()
    objective = DistillationObjective(teacher, phase.reads(4, 4))
    parts = objective(module, toy_batch(), 0)
    projected = [term.name for term in phase.terms if getattr(term, "projected", False)]
    assert len(projected) > 0
    for term in projected:
        assert parts[term].item() == pytest.approx(0, abs=1e-6)


def test_a_phase_takes_its_own_settings_and_the_users_word() -> None:
    first, final = METHODS["tinybert"].at(2).phases
    plain = DistillConfig(method="tinybert")
    said = DistillConfig(method="tinybert", earlier_epochs=7, earlier_learning_rate=0.5, epochs=2)
    assert phase_settings(final, said) is said
    for config, epochs, rate in ((plain, 10, 5e-5), (said, 7, 0.5)):
        settings = phase_settings(first, config)
        assert (settings.epochs, settings.learning_rate) == (epochs, rate)
        assert settings.schedule == "constant" and config.schedule == "linear"
