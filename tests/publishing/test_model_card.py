"""Model cards: figures of the card and of a comparison, metadata, and code that runs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from bertender.core.artifact import Artifact
from bertender.core.card import Calibration
from bertender.core.errors import DataError
from bertender.core.findings import (
    ConstantFindings,
    Findings,
    LengthFindings,
    ScoreFindings,
    TextLengths,
)
from bertender.problems import KINDS
from bertender.publishing.model_card import PIPELINES, ModelCardConfig, model_card
from bertender.publishing.push import PushConfig, push
from tests.comparison.rows import TEACHER, compared
from tests.front import succeed
from tests.stand_in_hub import Hub

LENGTHS = LengthFindings(
    max_length=32,
    training=TextLengths(texts=300, longer=2, longest=51),
    held_out=TextLengths(texts=100, longer=0, longest=30),
)


def with_card(artifact: Artifact, **changes: object) -> Artifact:
    return replace(artifact, card=artifact.card.model_copy(update=changes))


def found(**changes: Any) -> Findings:
    scores = {"chosen_on": "selection", "score": 0.8, "n": 100, "scores": {}, **changes}
    return Findings(scores=ScoreFindings(**scores), lengths=LENGTHS)


def figures(text: str) -> dict[str, str]:
    """The rows of the card's table."""
    return dict(re.findall(r"^\| (.+?) \| (.+?) \|$", text, re.M))


def metadata(text: str) -> Mapping[str, Any]:
    return dict(ModelCard(text).data.to_dict())


def result_of(text: str) -> tuple[str, str, float]:
    """Data set, metric and score in the metadata."""
    (model,) = metadata(text)["model-index"]
    (result,) = model["results"]
    (metric,) = result["metrics"]
    return result["dataset"]["name"], metric["type"], metric["value"]


def test_a_score_has_its_interval_and_number(teacher: Artifact) -> None:
    """Wilson's of 80 of 100: (0.8 + z²/200 ± z sqrt(0.0016 + z²/40000)) / (1 + z²/100)."""
    made = with_card(teacher, findings=found(), max_length=32)
    text = model_card(made, ModelCardConfig())
    assert figures(text)["accuracy, held-out texts"] == "0.8 [0.711, 0.867], n = 100"
    assert "flatters" not in text and "reads 32 tokens" in text
    assert "2 of 300 training texts are longer than 32 tokens and were cut" in text
    assert result_of(text) == ("toy", "accuracy", 0.8)
    skewed = ConstantFindings(label="a|tool", share=0.8, n=100, metric="accuracy")
    flattered = with_card(made, findings=found(chosen_on="dev", constant=skewed))
    text = model_card(flattered, ModelCardConfig())
    assert "these same texts, which flatters the score" in text
    assert "predicts 'a\\|tool' everywhere" in text, "the cell of a table ends at a bar"


def test_a_score_by_another_metric_is_not_called_the_tasks(teacher: Artifact) -> None:
    """As of `quantize --metric macro_f1 --max-dev 40`, whose source was scored by accuracy."""
    own = found(metric="macro_f1", n=40, task="reviews")
    text = model_card(with_card(teacher, findings=own), ModelCardConfig())
    assert figures(text)["macro_f1, held-out texts of task `reviews`"] == "0.8, n = 40"
    assert metadata(text)["metrics"] == ["macro_f1"]
    assert result_of(text) == ("reviews", "macro_f1", 0.8)


def test_an_older_score_has_no_interval(teacher: Artifact) -> None:
    """Its card does not say how many texts there were."""
    text = model_card(with_card(teacher, findings=found(n=None)), ModelCardConfig())
    assert figures(text)["accuracy, held-out texts"] == "0.8"


def test_of_a_graph_the_score_is_that_of_its_source_and_said_to_be(
    teacher: Artifact, exported: Artifact, tmp_path: Path
) -> None:
    text = model_card(exported, ModelCardConfig())
    shown = figures(text)
    assert shown["predictions equal to those of `teacher`"].startswith("1.0000 over ")
    assert not [name for name in shown if name.startswith("accuracy")], "nobody scored the teacher"
    assert "model-index" not in metadata(text)
    assert text.count("- `bertender ") == 2 and f"`{teacher.digest[:12]}`" in text


def test_a_comparison_gives_score_and_time(teacher: Artifact, tmp_path: Path) -> None:
    row = TEACHER.model_copy(update={"digest": teacher.digest})
    comparison = compared(row)
    path = tmp_path / "table.json"
    path.write_text(comparison.model_dump_json())
    text = model_card(teacher, ModelCardConfig(comparison=path))
    shown = figures(text)
    assert shown["accuracy, held-out texts of task `sst2`"] == "0.8934 [0.871, 0.912], n = 872"
    assert shown["one text, median, tokenisation included"] == "9.95 ms"
    assert "2 threads, Some CPU 9000, texts of 19.6 words" in shown["timed in"]
    assert result_of(text) == ("sst2", "accuracy", 0.8934)
    f1 = row.score.model_copy(update={"metric": "macro_f1"})
    row = row.model_copy(update={"score": f1})
    path.write_text(compared(row).model_dump_json())
    text = model_card(teacher, ModelCardConfig(comparison=path))
    assert result_of(text) == ("sst2", "macro_f1", 0.8934)
    path.write_text(compared(TEACHER).model_dump_json())
    with pytest.raises(DataError, match=r"no row is of .*teacher \(aaaaaaaaaaaa\)"):
        model_card(teacher, ModelCardConfig(comparison=path))


def test_metadata_say_what_opens_it_and_what_it_is_for(
    teacher: Artifact, exported: Artifact
) -> None:
    settings = ModelCardConfig(license="apache-2.0", base_model="owner/encoder")
    said = metadata(model_card(teacher, settings))
    assert (said["library_name"], said["pipeline_tag"]) == ("transformers", "text-classification")
    assert (said["license"], said["base_model"]) == ("apache-2.0", "owner/encoder")
    assert metadata(model_card(exported, ModelCardConfig()))["library_name"] == "onnx"
    pruned = with_card(teacher, family="bertender-pruned-bert")
    text = model_card(pruned, ModelCardConfig())
    assert metadata(text)["library_name"] == "bertender" and "bertender.open_model" in text
    unknown = model_card(teacher, ModelCardConfig())
    assert "license" not in metadata(unknown) and "base_model" not in metadata(unknown)
    assert "licence: unknown" in unknown


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_each_kind_of_problem_has_a_task_of_the_hub(kind: str, teacher: Artifact) -> None:
    record = teacher.card.task.model_copy(update={"problem_type": kind})
    text = model_card(with_card(teacher, task=record), ModelCardConfig())
    assert metadata(text)["pipeline_tag"] == PIPELINES[kind]


def test_a_base_model_is_a_hub_name_that_somebody_fetched(teacher: Artifact) -> None:
    def base(stage: str, **config: object) -> object:
        made = with_card(teacher, stage=stage, config=config)
        return metadata(model_card(made, ModelCardConfig())).get("base_model")

    assert base("import", source="owner/encoder@main", revision="0" * 40) == "owner/encoder"
    assert base("import", source="/models/encoder", revision=None) is None
    assert base("finetune", teacher="runs/encoder") is None, "as a folder is called"


def test_hostile_labels_break_no_table_and_no_metadata(teacher: Artifact) -> None:
    labels = ("a`b|c", "---", "\x1b[2J", "<img src=x onerror=alert(1)>")
    record = teacher.card.task.model_copy(update={"labels": labels, "name": "a: b\n---\n# c"})
    text = model_card(with_card(teacher, task=record), ModelCardConfig())
    assert metadata(text)["pipeline_tag"] == "text-classification"
    assert "\x1b" not in text and "`` a`b\\|c ``" in text
    assert "`<img src=x onerror=alert(1)>`" in text, "as code, which no page runs"
    assert "\n# c" not in text


def test_how_a_calibrated_model_is_read_is_said(teacher: Artifact) -> None:
    own = Calibration(method="temperature", fitted_for="", texts=50, temperature=2.5)
    record = teacher.card.task.model_copy(update={"calibration": own})
    text = model_card(with_card(teacher, task=record), ModelCardConfig())
    assert "divide the logits by 2.5 before the softmax" in text
    assert "calibrated" not in model_card(teacher, ModelCardConfig())


def code_of(text: str) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    return str(code)


def test_the_code_for_transformers_runs(
    teacher: Artifact, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(code_of(model_card(teacher, ModelCardConfig(), str(teacher.path))), {})
    assert "'label': " in capsys.readouterr().out


def test_the_code_for_a_graph_runs(exported: Artifact, hub: Hub) -> None:
    push(exported, "anna/toy", PushConfig(private=True))
    names: dict[str, Any] = {}
    exec(code_of(hub.repositories["anna/toy"].files["README.md"].decode()), names)
    assert names["outputs"][0].shape == (1, 2)


def test_the_command_writes_a_readme_that_leaves_the_artifact_whole(
    teacher: Artifact, tmp_path: Path
) -> None:
    copy = shutil.copytree(teacher.path, tmp_path / "copy")
    said = succeed("card", copy).stdout
    assert said.startswith("---\n") and succeed("card", copy, "--out", copy / "README.md")
    assert (copy / "README.md").read_text() == said
    assert Artifact.load(copy).digest == teacher.digest
