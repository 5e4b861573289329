"""MobileBERT: whose turn it is, how fast the others learn, and what the student starts from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForMaskedLM, PreTrainedModel

from bertender.core.errors import ModelError
from bertender.models.families import FAMILIES, padding_embedding
from bertender.problems import PROBLEMS
from bertender.training.heads import HEADS
from distill.distillation.config import DistillConfig, GeneralConfig
from distill.distillation.distillation import DistillationObjective, phase_settings
from distill.distillation.general import GeneralTeacher, distill_general
from distill.losses.signals import Wanted
from distill.losses.terms import LayerMap, last, uniform
from distill.losses.training_modules import LayerAfterLayer
from distill.methods import METHODS
from distill.methods.mobilebert import MobileBertStudent
from distill.students import StudentKind, StudentShape
from distill.students.weights import with_head
from tests.distill.distillation.general_settings import settings_of
from tests.toy_models import VOCABULARY, save_language_model, tiny_classifier
from tests.toys import passages, tiny_tokenizer

STEPS = 12
KINDS: dict[str, StudentKind] = {
    "mobilebert": MobileBertStudent(),
    "mobilebert-tiny": MobileBertStudent(tiny=True),
}
mobilebert_student = MobileBertStudent().build


def training_module(
    layers: int = 3, width: int | None = None, layer_map: LayerMap = uniform
) -> LayerAfterLayer:
    torch.manual_seed(0)
    teacher = tiny_classifier("bert", num_hidden_layers=6)
    method = METHODS["mobilebert-tiny"].changed({}, layers=layer_map)
    student = method.build(teacher, StudentShape(layers, hidden_size=width))
    phase = method.at(layers).phases[0]
    return LayerAfterLayer(student, teacher, phase.terms, seed=0, steps=STEPS).train()


def tokens(*texts: str) -> dict[str, torch.Tensor]:
    return dict(tiny_tokenizer()(list(texts), padding=True, return_tensors="pt"))


def losses(module: LayerAfterLayer, step: int) -> dict[str, torch.Tensor]:
    teacher = tiny_classifier("bert", num_hidden_layers=6)
    layers = frozenset(range(1, 7))
    reads: Wanted = {"hidden_states": layers, "attention_scores": layers}
    objective = DistillationObjective(teacher, reads)
    return dict(objective(module, tokens("apple pear", "saw"), step))


def test_each_pair_of_layers_has_a_turn_of_the_same_length() -> None:
    module = training_module(layers=3)
    assert [module.turn(step / STEPS) for step in range(STEPS)] == [0] * 4 + [1] * 4 + [2] * 4
    for turn, pair in enumerate(((1, 2), (2, 4), (3, 6))):
        assert [term.pairs(3, 6) for term in module.turns[turn]] == [(pair,)] * 4


@pytest.mark.parametrize("turn", range(3))
def test_what_learns_is_the_layer_whose_turn_it_is_and_what_is_below(turn: int) -> None:
    module = training_module(layers=3)
    torch.stack(list(losses(module, 4 * turn).values())).sum().backward()
    learning = [
        any(weight.grad is not None and bool(weight.grad.any()) for weight in layer.parameters())
        for layer in module.student.base_model.encoder.layer
    ]
    assert learning == [layer <= turn for layer in range(3)]
    assert module.student.classifier.weight.grad is None


def test_layers_that_had_their_turn_learn_at_a_tenth_of_the_rate() -> None:
    rates = training_module(layers=3).rates
    names = [name for name, _ in training_module(layers=3).named_parameters()]
    assert all(any(name.startswith(part) for name in names) for part in rates)
    by_turn = [[rate(step / STEPS) for rate in rates.values()] for step in (0, 4, 8)]
    embeddings_and_layers = [[1, 1, 1, 1], [0.1, 0.1, 1, 1], [0.1, 0.1, 0.1, 1]]
    assert by_turn == embeddings_and_layers


def test_a_map_of_one_pair_has_one_turn_for_all_layers() -> None:
    module = training_module(layer_map=last)
    assert {module.turn(step / STEPS) for step in range(STEPS)} == {0}
    assert {rate(0.99) for rate in module.rates.values()} == {1.0}


def test_the_published_weights_are_over_the_number_of_layers() -> None:
    transfer, _ = METHODS["mobilebert"].at(24).phases
    weights = {term.name: term.weight for term in transfer.terms}
    assert weights == pytest.approx(
        {"features": 100 / 24, "means": 5000 / 24, "variances": 5 / 24, "attention": 1}
    )
    assert transfer.epochs == 24


def test_dropout_is_off_while_layers_are_matched() -> None:
    transfer, labels = METHODS["mobilebert"].at(2).phases
    config = DistillConfig(method="mobilebert")
    assert phase_settings(transfer, config).no_dropout
    assert not phase_settings(labels, config).no_dropout


@pytest.mark.parametrize(("width", "projected"), [(None, []), (32, []), (16, ["hidden_states"])])
def test_only_another_width_is_projected(width: int | None, projected: list[str]) -> None:
    module = training_module(width=width)
    assert list(module.projections) == projected
    assert set(losses(module, 0)) == {"features", "means", "variances", "attention"}


STARTING = [name for name, row in FAMILIES.items() if row.plain_layers] + ["deberta-v2"]
MASK = torch.tensor([[1] * 9, [1] * 5 + [0] * 4])


def embeddings(model: PreTrainedModel) -> torch.Tensor:
    """The first hidden states of two texts, over their real tokens: (tokens, hidden)."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(5, VOCABULARY, MASK.shape, generator=generator)
    ids = torch.where(MASK.bool(), ids, torch.tensor(model.config.pad_token_id))
    with torch.inference_mode():
        outputs = model(input_ids=ids, attention_mask=MASK, output_hidden_states=True)
    return torch.as_tensor(outputs.hidden_states[0][MASK.bool()])


@pytest.mark.parametrize("model_type", STARTING)
def test_the_embeddings_are_the_teachers_up_to_the_length_of_each_vector(model_type: str) -> None:
    """No table of the toys is wider than 128, so that its factors lose nothing."""
    teacher = tiny_classifier(model_type)
    student = mobilebert_student(teacher, StudentShape(2)).eval()
    norm = teacher.base_model.get_submodule(FAMILIES[model_type].embedding_norm)
    ours, theirs = (embeddings(model) - norm.bias.detach() for model in (student, teacher))
    lengths = ours.norm(dim=-1) / theirs.norm(dim=-1)
    torch.testing.assert_close(ours, theirs * lengths[:, None], rtol=1e-3, atol=1e-4)
    assert 0.8 < float(lengths.mean()) < 1.25


def test_the_scale_is_that_of_all_words_at_all_positions() -> None:
    """Of words and positions with a common direction, as trained ones have."""
    teacher = tiny_classifier("bert")
    tables, norm = teacher.base_model.embeddings, teacher.base_model.embeddings.LayerNorm
    with torch.no_grad():
        direction = torch.randn(32, generator=torch.Generator().manual_seed(3))
        for table in (tables.word_embeddings, tables.position_embeddings):
            table.weight += direction
        words, positions, types = (
            each.weight - each.weight.mean(-1, keepdim=True)
            for each in (
                *(tables.word_embeddings, tables.position_embeddings),
                tables.token_type_embeddings,
            )
        )
        sums = words[:, None] + positions + types[0]  # (vocab, positions, hidden)
        student = mobilebert_student(teacher, StudentShape(2))
        scale = student.base_model.embeddings.LayerNorm.weight
        torch.testing.assert_close(scale, norm.weight / sums.square().mean().sqrt())


@pytest.mark.parametrize(
    ("model_type", "changes"), [("electra", {"embedding_size": 16}), ("albert", {})]
)
def test_of_a_factorised_teacher_the_student_has_the_word_table(
    model_type: str, changes: dict[str, int]
) -> None:
    teacher = tiny_classifier(model_type, **changes)
    student = mobilebert_student(teacher, StudentShape(2))
    words = teacher.get_input_embeddings().weight.detach()[5:]
    table = student.get_input_embeddings().weight.detach()[5:]
    assert table.shape == words.shape
    ours, theirs = (torch.cdist(each, each) for each in (table, words - words.mean(1)[:, None]))
    assert float(torch.corrcoef(torch.stack([ours.flatten(), theirs.flatten()]))[0, 1]) > 0.9


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("width", "heads"), [(None, None), (24, 3), (40, 4)])
def test_the_bottleneck_is_a_quarter_and_a_multiple_of_the_heads(
    name: str, width: int | None, heads: int | None
) -> None:
    teacher = tiny_classifier("bert", labels=3)
    student = KINDS[name].build(teacher, StudentShape(2, hidden_size=width, heads=heads)).eval()
    config = student.config
    assert (config.hidden_size, config.num_attention_heads) == (width or 32, heads or 4)
    assert 0 <= config.intra_bottleneck_size - config.hidden_size // 4 < config.num_attention_heads
    assert config.intra_bottleneck_size % config.num_attention_heads == 0
    assert config.intermediate_size == 4 * config.intra_bottleneck_size
    assert student(**tokens("apple pear")).logits.shape == (1, 3)


def test_the_tiny_student_has_half_the_feed_forward_parts_and_no_idle_weights() -> None:
    teacher = tiny_classifier("bert")
    for name, parts in (("mobilebert", 4), ("mobilebert-tiny", 2)):
        student = KINDS[name].build(teacher, StudentShape(1))
        assert len(student.base_model.encoder.layer[0].ffn) + 1 == parts
        student(**tokens("apple pear")).logits.square().sum().backward()
        assert all(weight.grad is not None for weight in student.parameters())


@pytest.mark.parametrize("name", KINDS)
def test_a_trained_student_answers_the_same_alone_and_beside_longer_texts(name: str) -> None:
    torch.manual_seed(0)
    student = KINDS[name].build(tiny_classifier("bert"), StudentShape(2))
    with torch.no_grad():
        mixing = student.base_model.embeddings.embedding_transformation
        for parameter in (*student.base_model.encoder.parameters(), *mixing.parameters()):
            parameter.add_(torch.randn_like(parameter) * 0.1)
    batch = tokens("saw", "apple pear plum cherry grape")
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        functional.cross_entropy(student(**batch).logits, torch.tensor([0, 1])).backward()
        optimizer.step()
    padding = padding_embedding(student)
    assert padding is not None and not padding.any()
    student.eval()
    with torch.inference_mode():
        alone, beside = student(**tokens("saw")).logits[0], student(**batch).logits[0]
        torch.testing.assert_close(alone, beside, rtol=0, atol=1e-5)
        padding.fill_(1.0)
        assert float((student(**batch).logits[0] - alone).abs().max()) > 1e-3, "it does read it"


def test_layers_to_start_from_are_refused() -> None:
    with pytest.raises(
        ModelError, match=r"teacher_layers=\(1,\): a MobileBERT student starts from"
    ):
        mobilebert_student(tiny_classifier("bert"), StudentShape(1, teacher_layers=(1,)))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_mobilebert_of_the_same_kind_is_taken_whole(name: str, problem: str) -> None:
    built = KINDS[name].build(tiny_classifier("bert"), StudentShape(4))
    source = with_head(built, HEADS[problem])
    again = KINDS[name].build(source, StudentShape(4))
    taken = again.state_dict()
    assert all(torch.equal(taken[key], weight) for key, weight in source.state_dict().items())
    with pytest.raises(ModelError, match=r"teacher_layers=\(0, 1, 2, 3\): a MobileBERT student"):
        KINDS[name].build(source, StudentShape(4, teacher_layers=(0, 1, 2, 3)))
    with torch.no_grad():
        next(again.parameters()).add_(1)
    assert not torch.equal(next(again.parameters()), next(source.parameters())), "a copy"
    (other,) = KINDS.keys() - {name}
    for kind, shape in ((KINDS[other], StudentShape(4)), (KINDS[name], StudentShape(2))):
        anew = kind.build(source, shape)
        assert set(anew.state_dict()) != set(source.state_dict())


@pytest.mark.one_path
@pytest.mark.parametrize("name", KINDS)
def test_what_a_corpus_makes_pads_with_zeros(name: str, tmp_path: Path) -> None:
    config = GeneralConfig(**settings_of(name, epochs=1, earlier_epochs=1))
    teacher = GeneralTeacher.load(
        str(save_language_model(tmp_path / "teacher")), config.changed_method()
    )
    made = distill_general(teacher, passages(120), config, tmp_path / "student")
    padding = padding_embedding(AutoModelForMaskedLM.from_pretrained(made.path))
    assert padding is not None and not padding.any()
    (phase,) = made.card.findings.training.earlier_phases
    assert phase.losses[-1]["means"] < phase.losses[0]["means"]
