"""The tagging benchmark: work that is reused, and a table of means and gains."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tagging import measuring as tagging
from benchmarks.tagging.measuring import (
    CONTROL,
    LOSSES,
    TaggerBudget,
    TaggerResult,
    TaggingBenchmark,
)
from benchmarks.tagging.table import tagging_block
from bertender.core.environment import environment
from bertender.metrics.scores import Score
from tests.toy_models import save_encoder
from tests.toy_tagging import TASK


def tagger(loss: str, seed: int, found: tuple[int, ...]) -> TaggerResult:
    """A tagger that answers an entity a sentence, of one that is there."""
    share = sum(found) / len(found)
    return TaggerResult(
        loss=loss,
        seed=seed,
        parameters=10_000_000,
        size_bytes=41_200_000,
        score=Score(metric="entity_f1", value=share, low=0.0, high=1.0, n=len(found)),
        found=found,
        answered=(1,) * len(found),
    )


def test_the_tagging_table_shows_means_and_what_a_loss_gains(tmp_path: Path) -> None:
    budget = TaggerBudget(
        max_train=2000,
        epochs=8,
        learning_rate=1e-3,
        batch_size=32,
        teacher_epochs=1,
        teacher_learning_rate=2e-4,
    )
    benchmark = TaggingBenchmark(
        task="toy",
        encoder="some-encoder",
        train_sentences=9000,
        entities=(1, 1, 1, 1),
        budget=budget,
        environment=environment(),
        teacher=tagger("labels", 0, (1, 1, 1, 1)),
        students=(
            tagger(CONTROL, 0, (1, 0, 0, 0)),
            tagger(CONTROL, 1, (1, 1, 0, 0)),
            tagger("soft", 0, (1, 1, 1, 0)),
            tagger("soft", 1, (1, 1, 1, 1)),
        ),
    )
    (tmp_path / "result.json").write_text(benchmark.model_dump_json())
    text = tagging_block("result.json", tmp_path / "result.json")
    rows = [line.split("|")[1].strip() for line in text.splitlines()[2:5]]
    assert rows == ["teacher", "`minibert`, soft", f"`minibert`, {CONTROL}"]
    assert "| 10.0 | 41 | 0.875 | 0.750, 1.000 | +50.0 [" in text
    assert "| 0.375 | 0.250, 0.500 | - |" in text
    assert "some-encoder, learned from all 9000 training sentences, 1 epoch at" in text
    assert "Every student: 2000 of them, 8 epochs" in text


def write_tagged(folder: Path) -> None:
    """The toy tagging task as SNIPS comes, its held-out sentences as the test split."""
    folder.mkdir(parents=True)
    for split, tagged in (("train", TASK.train), ("test", TASK.dev)):
        tags = [" ".join(TASK.labels[number] for number in row) for row in tagged.label_ids]
        words = [" ".join(sentence) for sentence in tagged.examples]
        (folder / f"{split}.seq.in").write_text("\n".join(words))
        (folder / f"{split}.seq.out").write_text("\n".join(tags))


@pytest.mark.slow
def test_taggers_that_are_there_are_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tagged(tmp_path / "data" / tagging.FOLDER)
    monkeypatch.setenv("BERTENDER_DATA", str(tmp_path / "data"))
    encoder = str(save_encoder("bert", tmp_path / "encoder"))
    settings = {"work": tmp_path / "work", "seeds": 1, "max_train": 16, "epochs": 1}
    tagging.run(encoder, **settings)
    for name in ("finetune_by_name", "distill"):
        monkeypatch.setattr(tagging, name, lambda *given: pytest.fail("trained again"))
    tagging.run(encoder, out=tmp_path / "result.json", **settings)
    saved = TaggingBenchmark.model_validate_json((tmp_path / "result.json").read_text())
    assert [result.loss for result in saved.students] == list(LOSSES)
    assert sum(saved.entities) == sum(
        tag.startswith("B")
        for row in TASK.dev.label_ids
        for tag in (TASK.labels[number] for number in row)
    )
    weights = tmp_path / "work" / "soft-0" / "model.safetensors"
    assert saved.students[1].size_bytes == weights.stat().st_size
