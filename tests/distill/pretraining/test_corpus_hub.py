"""Corpora on a hub: streamed row by row, refused at once where no hub answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import datasets
import pytest
from huggingface_hub import constants

from bertender.core.errors import ConfigError, DataError, HubUnreachableError
from distill.pretraining import corpus as corpus_hub
from distill.pretraining.corpus import Corpus

ROWS = ({"text": "one\n\ntwo", "id": 1}, {"text": " ", "id": 2}, {"text": "three", "id": 3})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A hub that has every data set, with ROWS; what it was asked for."""
    asked: list[Any] = []

    def load(*given: Any, **named: Any) -> Iterator[dict[str, Any]]:
        asked.append((*given, named))
        return iter(ROWS)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(corpus_hub, "hub_knows", lambda place: asked.append(place) or True)
    monkeypatch.setattr(datasets, "load_dataset", load)
    return asked


STREAMED = {"split": "train", "streaming": True}


@pytest.mark.parametrize(("name", "subset"), [("owner/name", None), ("owner/name:small", "small")])
def test_a_row_is_a_document(asked: list[Any], name: str, subset: str | None) -> None:
    corpus = Corpus(name)
    for _ in range(2):
        assert list(corpus) == ["one", "two", "", "three", ""]
    assert asked == ["api/datasets/owner/name", ("owner/name", subset, STREAMED)] * 2


def test_offline_it_is_refused_at_once(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    said = "corpus 'owner/name' is not a file, and no reachable hub"
    with pytest.raises(HubUnreachableError, match=said):
        next(iter(Corpus("owner/name")))
    assert asked == []


def test_without_an_answer_it_is_refused(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_hub, "hub_knows", lambda place: False)
    with pytest.raises(HubUnreachableError, match="no reachable hub has a data set"):
        next(iter(Corpus("owner/name")))
    assert asked == []


@pytest.mark.usefixtures("asked")
def test_a_missing_column_is_named_beside_those_that_there_are() -> None:
    with pytest.raises(DataError, match=r"no column 'txt'. Did you mean 'text'\? .*'text', 'id'"):
        next(iter(Corpus("owner/name", "txt")))
    with pytest.raises(DataError, match=r"corpus 'owner/name', row 1: '1' is of type int"):
        next(iter(Corpus("owner/name", "id")))


@pytest.mark.usefixtures("asked")
def test_an_unknown_subset_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*given: Any, **named: Any) -> None:
        raise ValueError("BuilderConfig 'smal' not found. Available: ['small']")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(ConfigError, match=r"'owner/name:smal' cannot be opened: .*\['small'\]"):
        next(iter(Corpus("owner/name:smal")))


@pytest.mark.usefixtures("asked")
def test_a_hub_that_falls_silent_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield ROWS[0]
        raise ConnectionError("gone")

    monkeypatch.setattr(datasets, "load_dataset", lambda *given, **named: rows())
    passages = iter(Corpus("owner/name"))
    assert [next(passages) for _ in range(3)] == ["one", "two", ""]
    with pytest.raises(HubUnreachableError, match="stopped responding after row 1: gone"):
        next(passages)
