"""Settings of a student: the forms that they take, and which are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ModelError, UnknownNameError
from bertender.tasks.task import Task
from distill.distillation.config import DistillConfig
from distill.distillation.distiller import distill
from tests.distill.distillation.settings import SHORT


def test_the_command_lines_forms_of_settings() -> None:
    config = DistillConfig.parse({"weights": "soft=0.7, hard=0.3", "teacher_layers": "1,3,5"})
    assert config.weights == {"soft": 0.7, "hard": 0.3}
    assert config.teacher_layers == (1, 3, 5)
    assert DistillConfig.model_validate_json(config.model_dump_json()) == config
    word = config.changed({"teacher_layers": "first"})
    assert word.teacher_layers == "first"
    assert DistillConfig.model_validate_json(word.model_dump_json()) == word


@pytest.mark.parametrize(
    ("said", "layers"),
    [("1, 3", (1, 3)), (3, (3,)), (["0", 2], (0, 2)), (" spread", "spread"), (["first"], "first")],
)
def test_teacher_layers_are_numbers_or_a_choice(said: Any, layers: Any) -> None:
    assert DistillConfig.parse({"teacher_layers": said}).teacher_layers == layers


@pytest.mark.parametrize("said", ["", None, [], ()])
def test_teacher_layers_that_are_left_empty_are_the_methods(said: Any) -> None:
    assert DistillConfig.parse({"teacher_layers": said}).teacher_layers is None


BAD_SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "negative weight": ({"weights": "soft=-1"}, r"weights\.soft=.*greater than or equal to 0"),
    "no number": ({"weights": "soft"}, r"weights\.soft=''.*valid number"),
    "temperature": ({"temperature": 0}, "temperature=0: .*greater than 0"),
    "layers": ({"layers": 0}, "layers=0: .*greater than or equal to 1"),
    "teacher layers": (
        {"teacher_layers": "1,x"},
        "teacher_layers='1,x': give numbers from 0, as 1,3,5, or one of first, first-and-last",
    ),
    "a choice of layers": ({"teacher_layers": "frist"}, "Did you mean 'first'"),
    "a layer below the first": (
        {"teacher_layers": "-1"},
        "teacher_layers='-1': give numbers from 0",
    ),
    "no number at all": ({"teacher_layers": 2.5}, "teacher_layers=2.5: give numbers from 0"),
    "named layers to average": (
        {"teacher_layers": "first", "method": "albert"},
        "teacher_layers=first: the student of method 'albert' starts from the mean of layers",
    ),
    "named layers without a number of layers": (
        {"teacher_layers": "first", "student": "an-encoder"},
        "teacher_layers=first: a student of another encoder has all of its layers",
    ),
    "unknown key": ({"temprature": 2}, "temprature: unknown key. Did you mean 'temperature'"),
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
    "no student": ({"method": "pd"}, ConfigError, "'pd' needs a small pre-trained student"),
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
    "first layers of another width": (
        {"method": "tinybert", "hidden_size": 16, "teacher_layers": "first"},
        ModelError,
        "teacher_layers=first: a student of another width.* starts from random",
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
        ConfigError,
        "layers=2: the student of method 'bilstm' has no such part to choose",
    ),
    "heads of a BiLSTM": (
        {"method": "bilstm", "layers": None, "heads": 4},
        ConfigError,
        "heads=4: the student of method 'bilstm' has no such part",
    ),
    "layers for a BiLSTM": (
        {"method": "bilstm", "layers": None, "teacher_layers": (0,)},
        ConfigError,
        r"teacher_layers=\(0,\): the student of method 'bilstm' has no",
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
    "heads of a table": (
        {"method": "static", "layers": None, "heads": 4},
        ConfigError,
        "heads=4: the student of method 'static' has no such part",
    ),
    "more directions than there are": (
        {"method": "static", "layers": None, "hidden_size": 40},
        ModelError,
        "hidden_size=40: the start has vectors of 32 numbers.* Give 32 at most",
    ),
    "no feed-forward part": (
        {"method": "minibert", "feed_forward_size": 0},
        ConfigError,
        "feed_forward_size=0: the student of method 'minibert' needs.*static do without",
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
