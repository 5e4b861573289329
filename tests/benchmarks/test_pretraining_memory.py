"""The memory benchmark: it goes through a pre-training run part by part, and makes a table."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from benchmarks.pretraining_memory.measuring import NOTE, MemoryBenchmark, measured, run
from benchmarks.pretraining_memory.table import memory_block
from bertender.core.environment import environment
from bertender.core.errors import ConfigError
from distill.corpora.corpus import Corpus, survey
from distill.corpora.held_out import part_of
from distill.corpora.rows import full_sentence_rows
from distill.pretraining.pretrain import PretrainConfig
from distill.vocabularies import TOKENIZERS
from tests.toys import FRUIT, TOOLS

SHAPE = {"layers": 1, "hidden_size": 32, "heads": 2, "vocabulary_size": 300, "max_length": 16}
STAGES = ["imports", "reading", "vocabulary", "rows", "2 steps"]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_run_is_measured_stage_by_stage(name: str, tmp_path: Path) -> None:
    lines = [f"{fruit} and {tool} {row}" for row in range(4) for fruit in FRUIT for tool in TOOLS]
    path = tmp_path / "corpus.txt.xz"
    path.write_bytes(lzma.compress("\n".join(lines).encode()))
    config = PretrainConfig(corpus=str(path), tokenizer=name, precision="fp32", **SHAPE)
    use = measured(config, 2, tmp_path / "work")
    assert [stage.stage for stage in use.stages] == STAGES
    peaks = [stage.peak_resident_bytes for stage in use.stages]
    assert peaks == sorted(peaks) and 10**8 < peaks[0] < 10**11

    tokenizer = TOKENIZERS[name].train(lines, 300, 16)
    assert use.entries == len(tokenizer)
    training, held_out = (
        list(full_sentence_rows(part_of(lines, held_out=side, run=8), tokenizer, 16, 0))
        for side in (False, True)
    )
    assert (use.training_rows, use.held_out_rows) == (len(training), len(held_out))
    assert use.bytes_of_rows > 8 * sum(len(row["input_ids"]) for row in training)

    found = survey(Corpus(str(path)))
    benchmark = MemoryBenchmark(
        corpus="toy",
        text_bytes=123_400_000,
        passages=found.passages,
        documents=found.documents,
        config=config,
        steps=2,
        note=NOTE,
        environment=environment(),
        runs=(use,),
    )
    (tmp_path / "result.json").write_text(benchmark.model_dump_json())
    text = memory_block("result.json", tmp_path / "result.json")
    assert f"| `{name}` | {peaks[0] / 1e6:.0f} | " in text
    assert "on 123 MB of text (144 passages in 1 documents)" in text
    assert "Raw: `result.json`" in text


def test_without_the_corpus_it_says_where_it_belongs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTENDER_DATA", str(tmp_path))
    with pytest.raises(ConfigError, match="set BERTENDER_DATA to a folder that holds wiki"):
        run(tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()
