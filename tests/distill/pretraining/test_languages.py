"""Languages of a corpus: their shares by hand, and rows of rare ones in a run more often."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bertender.cli.findings import language_lines
from bertender.core.errors import ConfigError, DataError
from distill.pretraining.config import PretrainConfig
from distill.pretraining.corpus import survey
from distill.pretraining.languages import (
    Language,
    Repeated,
    factors_of,
    repetitions,
    sampled_shares,
)
from distill.pretraining.objectives import MaskedTokens
from distill.pretraining.pretrain import pretrain, pretrain_by_name
from tests.distill.pretraining.settings import BRIEF
from tests.listening import listed_steps


@pytest.mark.parametrize(
    ("sizes", "alpha", "shares", "factors"),
    [
        ([8, 2], 0.5, [2 / 3, 1 / 3], [1, 2]),  # roots of 0.8 and 0.2 are as 2 to 1
        ([90, 10], 0.5, [0.75, 0.25], [1, 3]),
        ([4, 9], 0.5, [0.4, 0.6], [1.5, 1]),
        ([1, 4, 16], 0.5, [1 / 7, 2 / 7, 4 / 7], [4, 2, 1]),
        ([3, 1], 0, [0.5, 0.5], [1, 3]),
        ([3, 1], 1, [0.75, 0.25], [1, 1]),
    ],
)
def test_shares_and_factors_by_hand(
    sizes: list[float], alpha: float, shares: list[float], factors: list[float]
) -> None:
    assert sampled_shares(sizes, alpha) == pytest.approx(shares)
    assert factors_of(sizes, alpha) == factors


@pytest.mark.parametrize(
    ("count", "factor", "times"),
    [(3, 1, [1, 1, 1]), (3, 3, [3, 3, 3]), (5, 1.5, [1, 2, 1, 2, 1]), (4, 1.25, [1, 1, 1, 2])],
)
def test_repetitions_by_hand(count: int, factor: float, times: list[int]) -> None:
    assert repetitions(count, factor).tolist() == times


def test_a_vocabulary_reads_passages_of_a_rare_language_more_often() -> None:
    texts = ["a", "b", ""], ["c", "", "d", "e", ""]
    one, other = (Language("", each, survey(each)) for each in texts)
    assert list(Repeated([one, other], [1, 1.5])) == ["a", "b", "c", "d", "d", "e"]


def _corpus(folder: Path, **passages: int) -> str:
    """Files of passages that differ, each a document; returns their names by commas."""
    for name, count in passages.items():
        text = "\n\n".join(f"{name} {number} {name}." for number in range(count))
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return ",".join(str(folder / f"{name}.txt") for name in passages)


def test_rows_of_a_rare_language_are_read_more_often(tmp_path: Path) -> None:
    corpus = _corpus(tmp_path, apple=450, pear=50)
    settings = {**BRIEF, "batch_size": 8, "packing": "doc-sentences", "language_alpha": 0.5}
    config = PretrainConfig.parse({**settings, "corpus": corpus, "mask_probability": 1e-6})
    with listed_steps() as steps:
        made = pretrain_by_name(config, tmp_path / "out")
    one, other = made.card.findings.languages or ()
    assert [Path(each.name).stem for each in (one, other)] == ["apple", "pear"]
    # 434 and 42 rows without those held out, the first 8 of each 400
    of_rows = [434 / 476, 42 / 476]
    assert [one.share, other.share] == pytest.approx(of_rows, abs=0.02)
    assert [one.sampled, other.sampled] == pytest.approx(
        sampled_shares([one.tokens, other.tokens], 0.5), abs=0.005
    )
    shares = [
        f"{each.share:.1%} of the tokens, read as {each.sampled:.1%}" for each in (one, other)
    ]
    said = language_lines(made.card.findings)
    assert [line.rpartition(": ")[2] for line in said] == shares
    factor = factors_of([one.tokens, other.tokens], 0.5)[1]
    rows = [ids for step in steps for ids in step.batch["input_ids"]]
    assert len(rows) == 434 + int(42 * factor)


def test_what_is_held_out_is_not_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passages are held out before those of a rare language are repeated."""
    parts: list[set[str]] = []

    def recorded(passages: Iterable[str], *more: Any) -> Iterator[Any]:
        read = [*passages]
        parts.append({*filter(None, read)})
        return really(read, *more)

    really = MaskedTokens.rows
    monkeypatch.setattr(MaskedTokens, "rows", recorded)
    corpus = _corpus(tmp_path, apple=90, pear=60)
    config = PretrainConfig.parse({**BRIEF, "language_alpha": 0, "corpus": corpus})
    pretrain_by_name(config, tmp_path / "out")
    assert [len(part) for part in parts] == [82, 8, 52, 8]
    assert len(set.union(*parts)) == 150


def test_one_language_or_a_short_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"language_alpha=0.5: corpus=docs is one part"):
        PretrainConfig.parse({"language_alpha": 0.5})
    config = PretrainConfig.parse({"language_alpha": 0.5, "corpus": "a.txt,b.txt"})
    with pytest.raises(ConfigError, match="these passages have no languages"):
        pretrain(["a"] * 60, config, tmp_path / "out")
    corpus = _corpus(tmp_path, apple=60, pear=49)
    config = PretrainConfig.parse({"language_alpha": 0.5, "corpus": corpus})
    with pytest.raises(DataError, match=r"corpus '.*pear.txt': 49 passages are too few"):
        pretrain_by_name(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()
