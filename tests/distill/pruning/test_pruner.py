"""`bertender prune` from end to end: what is left, what it scores, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace as Namespace
from typing import Any

import numpy as np
import pytest

from bertender.comparison.accuracy import evaluate
from bertender.core.artifact import Artifact
from bertender.core.errors import AccuracyError, ConfigError, ModelError, UnknownNameError
from bertender.core.machine import Speedup
from bertender.models.classifier import open_classifier
from bertender.models.own_models import PRUNABLE
from bertender.tasks.task import Task
from bertender.training.examples import token_dataset
from distill.distillation.config import DistillConfig
from distill.distillation.distiller import distill
from distill.methods import METHODS
from distill.pruning import pruner, rounds
from distill.pruning.config import IMPORTANCES, RULES, PruneConfig
from distill.pruning.latency import LatencyTable
from distill.pruning.pruner import prune
from distill.pruning.rounds import PruningContext
from export.config import ExportConfig
from export.exporter import export
from quantize.config import QuantizeConfig
from quantize.quantizer import quantize
from tests.distill.pruning.toys import MADE_UP
from tests.listening import interrupted_at, no_training
from tests.quick import quick
from tests.toy_models import save_artifact, save_encoder, tiny_classifier
from tests.toys import tiny_tokenizer

QUICK: dict[str, Any] = {
    "epochs": 3,
    "batch_size": 8,
    "learning_rate": 2e-3,
    "precision": "fp32",
    "scored_texts": 40,
}
UNTRAINED: dict[str, Any] = {"recover": False, "batch_size": 8, "scored_texts": 40}
RESCALED: dict[str, Any] = {"retraining_free": True, "heads": 0.5}


@pytest.mark.parametrize("name", quick(IMPORTANCES, "gradient"))
def test_half_of_it_goes_and_the_rest_answers(
    name: str, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    settings = {**QUICK, **({} if IMPORTANCES[name] else {"scored_texts": 1000})}
    config = PruneConfig(heads=0.5, ffn=0.5, importance=name, **settings)
    pruned = prune(trained_teacher, task, config, tmp_path / "pruned")
    card = pruned.card
    (left,) = card.findings.pruning.rounds
    assert sum(left.heads) == 8 and sum(left.neurons) == 128
    assert card.stage == "prune" and card.family == "bertender-pruned-bert"
    assert card.parent is not None and card.parent.digest == trained_teacher.digest
    score, _ = evaluate(open_classifier(pruned), task.dev, task.metric)
    assert score.value == pytest.approx(left.score) and score.value > 0.9
    assert card.findings.parameters < trained_teacher.card.findings.parameters
    assert np.array(left.head_importance).shape == (4, 4)


@pytest.mark.slow
def test_it_exports_and_quantizes(trained_teacher: Artifact, task: Task, tmp_path: Path) -> None:
    config = PruneConfig(heads=0.5, ffn=0.75, across="layer", **QUICK)
    pruned = prune(trained_teacher, task, config, tmp_path / "pruned")
    assert pruned.card.findings.pruning.rounds[0].heads == (2, 2, 2, 2)
    exported = export(pruned, task, ExportConfig(), tmp_path / "onnx")
    int8 = quantize(exported, task, QuantizeConfig(), tmp_path / "int8")
    score, _ = evaluate(open_classifier(int8), task.dev, task.metric)
    assert score.value > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("model_type", PRUNABLE)
def test_every_architecture_goes_the_whole_way(model_type: str, task: Task, tmp_path: Path) -> None:
    """Cut, trained again, opened, exported and quantized, each behind the gate of its stage."""
    model = tiny_classifier(model_type, pad_token_id=0)
    source = save_artifact(model, task, tmp_path / "source")
    config = PruneConfig(heads=0.5, ffn=0.5, **{**QUICK, "epochs": 1})
    pruned = prune(source, task, config, tmp_path / "pruned")
    assert pruned.card.family == f"bertender-pruned-{model_type}"
    assert pruned.card.findings.training.steps > 0
    score, _ = evaluate(open_classifier(pruned), task.dev, task.metric)
    assert score.value == pytest.approx(pruned.card.findings.pruning.rounds[0].score)
    exported = export(pruned, task, ExportConfig(), tmp_path / "onnx")
    int8 = quantize(exported, task, QuantizeConfig(), tmp_path / "int8")
    assert int8.card.family == pruned.card.family


def test_rounds_cut_as_much_as_one(trained_teacher: Artifact, task: Task, tmp_path: Path) -> None:
    config = PruneConfig(heads=0.5, rounds=3, **{**QUICK, "epochs": 1})
    pruned = prune(trained_teacher, task, config, tmp_path / "pruned")
    heads = [sum(each.heads) for each in pruned.card.findings.pruning.rounds]
    assert 16 > heads[0] > heads[1] > heads[2] and abs(heads[2] - 8) <= 1
    assert pruned.card.findings.pruning.rounds[-1].neurons == (64,) * 4


def test_the_vocabulary_of_the_task_is_enough(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    config = PruneConfig(vocab="task", recover=False)
    pruned = prune(trained_teacher, task, config, tmp_path / "pruned")
    reading = pruned.card.findings.pruning.vocabulary
    assert reading.after.entries < reading.before.entries
    assert reading.after.unknown == reading.before.unknown == 0
    assert reading.after.pieces_per_text == reading.before.pieces_per_text
    assert pruned.card.findings.pruning.rounds[0].score == pruned.card.findings.pruning.unpruned
    assert pruned.card.family == "bert", "plain transformers opens it"
    ours, theirs = (open_classifier(each) for each in (pruned, trained_teacher))
    np.testing.assert_allclose(
        ours.logits(task.dev.examples), theirs.logits(task.dev.examples), atol=1e-5
    )


def test_all_at_once_recovers(trained_teacher: Artifact, task: Task, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("apple\nsaw\n", encoding="utf-8")
    config = PruneConfig(heads=0.5, ffn=0.5, vocab=str(tmp_path / "words.txt"), **QUICK)
    pruned = prune(trained_teacher, task, config, tmp_path / "pruned")
    reading = pruned.card.findings.pruning.vocabulary
    assert reading.after.pieces_per_text > reading.before.pieces_per_text
    assert pruned.card.findings.pruning.rounds[0].score > 0.7


def test_layers_go_as_a_whole(trained_teacher: Artifact, task: Task, tmp_path: Path) -> None:
    config = PruneConfig(layers=2, heads=0.25, **QUICK)
    pruned = prune(trained_teacher, task, config, tmp_path / "pruned")
    assert len(pruned.card.findings.pruning.layers) == 2
    assert len(pruned.card.findings.pruning.rounds[0].heads) == 2
    assert pruned.card.findings.pruning.rounds[0].score > 0.9
    with pytest.raises(ModelError, match="layers=4: the model has 4, and one must stay"):
        prune(trained_teacher, task, PruneConfig(layers=4), tmp_path / "none")


@pytest.mark.one_path
@pytest.mark.parametrize("call", [4, 13, 14, 21])
def test_a_killed_run_goes_on_to_the_same_weights(
    call: int, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    """In the first of two rounds, at its end, and in the second."""
    config = PruneConfig(heads=0.4, ffn=0.4, rounds=2, checkpoint_steps=2, **{**QUICK, "epochs": 1})
    whole = prune(trained_teacher, task, config, tmp_path / "whole")
    assert whole.card.findings.training.steps == 24, "of both rounds"
    with interrupted_at(call), pytest.raises(KeyboardInterrupt):
        prune(trained_teacher, task, config, tmp_path / "killed")
    assert prune(trained_teacher, task, config, tmp_path / "killed").digest == whole.digest


def test_cut_texts_are_said_once(
    trained_teacher: Artifact, task: Task, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The pruned model and the model that teaches it read the same tokens."""
    train = replace(task.train, examples=(("saw " * 20,), *task.train.examples[1:]))
    config = PruneConfig(heads=0.5, max_length=8, **{**QUICK, "epochs": 1})
    prune(trained_teacher, replace(task, train=train), config, tmp_path / "pruned")
    assert len([said for said in caplog.messages if "training texts are longer" in said]) == 1


@pytest.mark.parametrize("settings", [{"heads": 0.4, "ffn": 0.4}, {"layers": 1, "heads": 0.4}])
def test_a_killed_run_goes_on_with_the_parts_that_it_chose(
    settings: dict[str, Any],
    trained_teacher: Artifact,
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A choice of its own could be another one, for which the checkpoint is not."""
    config = PruneConfig(**settings, checkpoint_steps=2, **{**QUICK, "epochs": 1})
    whole = prune(trained_teacher, task, config, tmp_path / "whole")
    with interrupted_at(4), pytest.raises(KeyboardInterrupt):
        prune(trained_teacher, task, config, tmp_path / "killed")
    for chooser in ("importance_of", "least_missed"):
        monkeypatch.setattr(rounds, chooser, lambda *given: pytest.fail("chosen again"))
    again = prune(trained_teacher, task, config, tmp_path / "killed")
    assert again.digest == whole.digest
    assert again.card.findings.pruning == whole.card.findings.pruning


@pytest.mark.one_path
@pytest.mark.parametrize("method", METHODS)
def test_a_pruned_teacher_teaches_or_is_refused(
    method: str, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    config = PruneConfig(heads=0.5, **UNTRAINED)
    teacher = prune(trained_teacher, task, config, tmp_path / "pruned")
    settings = {} if METHODS[method].student.starts_from_layers else {"epochs": 1}
    if METHODS[method].student.wants_own_start:
        settings = {"student": str(save_encoder("bert", tmp_path / "encoder")), "epochs": 1}
    if settings:
        distill(teacher, task, DistillConfig(method=method, **settings), tmp_path / "student")
        return
    with pytest.raises(ModelError, match=r"the layers of a 'bertender-pruned-bert' .* not alike"):
        distill(teacher, task, DistillConfig(method=method), tmp_path / "student")


def test_a_student_of_another_start_learns_from_a_pruned_teacher(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    config = PruneConfig(heads=0.5, **UNTRAINED)
    teacher = prune(trained_teacher, task, config, tmp_path / "pruned")
    start = str(save_encoder("bert", tmp_path / "encoder"))
    config = DistillConfig(method="distilbert", student=start, epochs=1)
    student = distill(teacher, task, config, tmp_path / "student")
    assert student.card.family == "distilbert"
    with pytest.raises(ModelError, match=r"not alike.*'tinybert' reads them"):
        config = DistillConfig(method="tinybert", student=start)
        distill(teacher, task, config, tmp_path / "refused")
    with pytest.raises(ModelError, match="no student of method 'distilbert' can start from it"):
        config = DistillConfig(method="distilbert", student=str(teacher.path))
        distill(trained_teacher, task, config, tmp_path / "refused")


def test_without_recovery_nothing_is_trained(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    config = PruneConfig(heads=0.25, **UNTRAINED)
    with no_training():
        pruned = prune(trained_teacher, task, config, tmp_path / "pruned")
    (left,) = pruned.card.findings.pruning.rounds
    assert left.score == left.score_after_cut and pruned.card.findings.training.steps == 0


def test_rescaling_takes_the_place_of_training(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    config = PruneConfig(heads=0.5, ffn=0.5, rounds=2, retraining_free=True, scored_texts=40)
    with no_training():
        pruned = prune(trained_teacher, task, config, tmp_path / "pruned")
    first, last = pruned.card.findings.pruning.rounds
    assert pruned.card.findings.training.steps == 0 and sum(last.heads) == 8
    for done in (first.rescaled, last.rescaled):
        assert [(each.layer, each.part) for each in done][:2] == [
            (0, "heads"),
            (0, "neurons"),
        ]
        assert all(each.error_after <= each.error_before for each in done) and len(done) == 8
    score, _ = evaluate(open_classifier(pruned), task.dev, task.metric)
    assert score.value == pytest.approx(last.score) and score.value > 0.9
    layers = PruneConfig(heads=0.5, layers=1, vocab="task", retraining_free=True, scored_texts=40)
    with no_training():
        assert prune(
            trained_teacher, task, layers, tmp_path / "shorter"
        ).card.findings.pruning.layers


TARGET: dict[str, Any] = {"target_latency": "2.0x", **{**QUICK, "epochs": 1}}
OTHER_WAYS: dict[str, dict[str, Any]] = {
    "recovery": TARGET,
    "rounds": {**TARGET, "rounds": 2},
    "no recovery": {"target_latency": "2.0x", **UNTRAINED},
    "another importance": {**TARGET, "importance": "taylor"},
    "fewer layers": {**TARGET, "layers": 1},
    "many texts": {**TARGET, "latency_texts": 8, "latency_tokens": 32},
}


@pytest.mark.parametrize("way", quick(OTHER_WAYS, "many texts", "rounds"))
def test_a_target_is_met_by_the_table(
    way: str, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    config = PruneConfig.parse(OTHER_WAYS[way])
    pruned = prune(trained_teacher, task, config, tmp_path / "pruned", stopwatches=MADE_UP)
    speed, rounds = pruned.card.findings.pruning.latency, pruned.card.findings.pruning.rounds
    table = LatencyTable.model_validate(speed.table.model_dump())
    before_ms = table.predicted_ms([4] * 4, [64] * 4)
    after_ms = table.predicted_ms(rounds[-1].heads, rounds[-1].neurons)
    assert before_ms / 2 - 1 < after_ms <= before_ms / 2, "16 neurons take 1 ms"
    assert speed.predicted == pytest.approx(before_ms / after_ms) and speed.target == 2.0
    assert speed.measured == Speedup(value=2.5, low=2.25, high=2.75)
    mean = round(np.mean(token_dataset(task.train, tiny_tokenizer()).lengths))
    texts, tokens = (8, 32) if way == "many texts" else (1, mean)
    assert (table.load.texts, table.load.tokens) == (texts, tokens)
    assert config.importance == ("taylor" if way == "another importance" else "fisher")


def test_a_target_without_training(trained_teacher: Artifact, task: Task, tmp_path: Path) -> None:
    config = PruneConfig(target_latency=1.5, retraining_free=True, scored_texts=40)
    with no_training():
        pruned = prune(trained_teacher, task, config, tmp_path / "pruned", stopwatches=MADE_UP)
    assert pruned.card.findings.pruning.rounds[0].rescaled and config.target_latency == 1.5


def test_a_killed_run_goes_by_the_table_that_it_began_with(
    trained_teacher: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = PruneConfig.parse({**TARGET, "checkpoint_steps": 2})
    whole = prune(trained_teacher, task, config, tmp_path / "whole", stopwatches=MADE_UP)
    with interrupted_at(6), pytest.raises(KeyboardInterrupt):
        prune(trained_teacher, task, config, tmp_path / "killed", stopwatches=MADE_UP)
    monkeypatch.setattr(MADE_UP, "table", lambda *given: pytest.fail("measured again"))
    again = prune(trained_teacher, task, config, tmp_path / "killed", stopwatches=MADE_UP)
    assert again.digest == whole.digest


@pytest.mark.parametrize("value", ["fast", "1.0x", 1, 0, "-2x", "inf", "nan", "", None])
def test_a_target_says_how_many_times_as_fast(value: Any) -> None:
    if value is None:
        assert PruneConfig(heads=0.5, target_latency=None).importance == "gradient"
        return
    with pytest.raises(ConfigError, match=r"target_latency=.*is not a factor of speed.*as 2\.0x"):
        PruneConfig.parse({"target_latency": value})


@pytest.mark.parametrize(("layers", "best"), [(0, "5.14"), (2, "8.64")])
def test_what_no_pruning_reaches_is_refused_before_anything_is_computed(
    layers: int,
    best: str,
    trained_teacher: Artifact,
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module, name in ((pruner, "validated"), (rounds, "teacher_outputs")):
        monkeypatch.setattr(module, name, lambda *given: pytest.fail("too late"))
    config = PruneConfig(target_latency=20, layers=layers)
    said = rf"target_latency=20x.*each of its {4 - layers} layers the model is {best}x.*Ask for"
    with pytest.raises(ConfigError, match=said):
        prune(trained_teacher, task, config, tmp_path / "out", stopwatches=MADE_UP)
    assert not (tmp_path / "out").exists()


def test_a_drop_beyond_the_allowed_one_is_refused(
    trained_teacher: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = PruneConfig(heads=0.5, max_drop=0.5, **{**QUICK, "epochs": 1})
    monkeypatch.setattr(pruner, "validated", lambda *given: (Namespace(value=0.91), None))
    monkeypatch.setattr(rounds, "epoch_score", lambda *given: {"accuracy": 0.9049})
    with pytest.raises(AccuracyError, match=r"lost 0\.51 points of accuracy.*max_drop=0.5 allows"):
        prune(trained_teacher, task, config, tmp_path / "pruned")
    assert not (tmp_path / "pruned").exists()
    with no_training():
        more = config.model_copy(update={"max_drop": 0.6})
        prune(trained_teacher, task, more, tmp_path / "pruned")  # from the checkpoints
        monkeypatch.setattr(PruningContext, "score", lambda self, model: 0.905)
        untrained = PruneConfig(heads=0.5, max_drop=0.5, **UNTRAINED)
        prune(trained_teacher, task, untrained, tmp_path / "exactly")


HALF: dict[str, Any] = {"heads": 0.5}
IDLE_SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "rounds without parts": {"rounds=2: only heads and neurons": {"rounds": 2, "vocab": "task"}},
    "importance without parts": {
        "across=layer, importance=magnitude: only heads and neurons": {
            **{"vocab": "task", "across": "layer", "importance": "magnitude"},
        },
    },
    "rescaling without parts": {
        "retraining_free=True: only heads and neurons": {"retraining_free": True, "layers": 1},
    },
    "scored texts without effect": {
        "scored_texts=9: what is cut here does not": {"vocab": "task", "scored_texts": 9},
        "scored_texts=8: what is cut here does not": {
            **{**HALF, "importance": "random", "scored_texts": 8},
        },
    },
    "batches without a forward pass": {
        "batch_size=3, tokens_per_batch=7: no batch is computed": {
            **{"vocab": "task", "recover": False, "batch_size": 3, "tokens_per_batch": 7},
        },
    },
    "vocabulary settings without vocab": {
        "vocab_floor=2, vocab_size=9: without vocab": {**HALF, "vocab_floor": 2, "vocab_size": 9},
    },
    "latency without a target": {
        "latency_texts=8, latency_tokens=300: nothing is timed": {
            **{**HALF, "latency_texts": 8, "latency_tokens": 300},
        },
    },
    "shares with a target": {
        "target_latency=2.0 and ffn=0.5, heads=0.25: the target": {
            **{"target_latency": 2, "heads": 0.25, "ffn": 0.5},
        },
        "target_latency=2.0 and across=layer: the target": {
            **{"target_latency": 2, "across": "layer"},
        },
    },
    "training with rescaling": {
        "retraining_free=True and epochs=2, learning_rate=0.1: nothing is trained": {
            **{**RESCALED, "epochs": 2, "learning_rate": 0.1},
        },
        "retraining_free=True and accumulation=2, optimizer=lamb: nothing is trained": {
            **{**RESCALED, "accumulation": 2, "optimizer": "lamb"},
        },
        "retraining_free=True and teacher=elsewhere: nothing is trained": {
            **{**RESCALED, "teacher": "elsewhere"},
        },
    },
    "training without recovery": {
        "recover=False and batches=random, schedule=constant: nothing is trained": {
            **{**HALF, "recover": False, "batches": "random", "schedule": "constant"},
        },
        "recover=False and teacher=elsewhere: nothing is trained": {
            **{**HALF, "recover": False, "teacher": "elsewhere"},
        },
    },
    "unlabelled texts without effect": {
        "max_unlabelled=4, unlabelled=more.txt: nothing is trained, and tokens are counted": {
            **{**HALF, "recover": False, "unlabelled": "more.txt", "max_unlabelled": 4},
        },
        "unlabelled_texts=9: nothing is trained, and tokens": {
            **{**RESCALED, "vocab": "docs", "unlabelled_texts": 9},
        },
    },
    "nothing to prune": {"heads=0, ffn=0, layers=0 and no vocab: there is nothing": {}},
    "recovery with rescaling": {
        "retraining_free=True and recover=True: rescaling": {**RESCALED, "recover": True},
    },
    "timed texts longer than max_length": {
        "max_length=128 and latency_tokens=129: no text is longer": {
            **{"target_latency": 2, "latency_tokens": 129, "max_length": 128},
        },
    },
}


@pytest.mark.parametrize("name", RULES)
def test_settings_that_would_change_nothing_are_refused(name: str) -> None:
    for said, settings in IDLE_SETTINGS[name].items():
        with pytest.raises(ConfigError, match=said):
            PruneConfig.parse(settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"vocab": "task", "rounds": 1, "retraining_free": False, "recover": True},
        {"target_latency": 2, "heads": 0.0, "across": "model"},
        {**RESCALED, "recover": False, "epochs": 1},
        {"layers": 1, "recover": False, "scored_texts": 9, "batch_size": 4},
    ],
)
def test_a_default_that_is_spelt_out_harms_nothing(settings: dict[str, Any]) -> None:
    PruneConfig.parse(settings)


def test_what_cannot_be_pruned_is_refused(task: Task, tmp_path: Path) -> None:
    for share in (1.0, 40.0, -0.1):
        with pytest.raises(ConfigError, match=rf"heads={share}.*is not a share"):
            PruneConfig.parse({"heads": share})
    with pytest.raises(UnknownNameError, match=r"no importance 'gradent'. Did you mean 'gradient'"):
        PruneConfig(heads=0.5, importance="gradent")
    source = save_artifact(tiny_classifier("albert"), task, tmp_path / "albert")
    with pytest.raises(ModelError, match="a 'albert' model cannot be pruned"):
        prune(source, task, PruneConfig(heads=0.5), tmp_path / "out")
    with pytest.raises(ConfigError, match="heads=0, ffn=0, layers=0 and no vocab: there"):
        prune(source, task, PruneConfig(), tmp_path / "out")
    teacher = save_artifact(tiny_classifier("bert"), task, tmp_path / "bert")
    with pytest.raises(ConfigError, match=r"heads=0.001: 0 of 16 would be cut"):
        prune(teacher, task, PruneConfig(heads=0.001), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["albert", "bert"]
