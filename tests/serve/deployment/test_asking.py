"""Which golden texts a candidate is asked about, by the limits of the server."""

from __future__ import annotations

import pytest

from bertender.core.artifact import GoldenText, GoldenTexts
from bertender.core.errors import DeploymentError
from bertender.problems import PROBLEMS
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.text.batch import Example
from serve.client.protocols import PROTOCOLS
from serve.config import BackendParameters
from serve.deploy import ask_golden, readable
from serve.server.targets import Place
from tests.serve.scripted import SERVERS, Script


def golden_of(*examples: Example, tokens: int = 4) -> GoldenTexts:
    texts = tuple(
        GoldenText(example=each, label="a", logits=((1.0, 0.0),), places=(0,), tokens=tokens)
        for each in examples
    )
    return GoldenTexts(
        runtime="onnxruntime", tolerance="float32", logit_scale=1, logit_spread=1, texts=texts
    )


def limits(**settings: int) -> BackendParameters:
    return BackendParameters(tokens_per_bucket=64, threads=1, **settings)


def test_texts_keep_their_places() -> None:
    golden = golden_of(("a" * 9,), ("short",), ("b" * 9,), ("é" * 4,))
    assert [*readable(golden, SINGLE_LABEL, limits(max_text_bytes=8))] == [1, 3]


def test_a_text_of_a_pair_is_measured_alone() -> None:
    """As the server does: that reads two inputs."""
    golden = golden_of(("eight by", "tes each"), ("nine byte", "b"))
    assert [*readable(golden, SINGLE_LABEL, limits(max_text_bytes=8))] == [0]


def test_the_words_of_a_sentence_are_measured_together() -> None:
    tagging = PROBLEMS["token_classification"]
    golden = golden_of(("four", "more"), ("four", "mor"))
    assert [*readable(golden, tagging, limits(max_text_bytes=8))] == [1]


def test_texts_that_would_be_cut_are_left_out() -> None:
    golden = golden_of(("a",), tokens=5)
    assert [*readable(golden, SINGLE_LABEL, limits(max_length=5))] == [0]
    with pytest.raises(DeploymentError, match=r"no golden text .*max_length=4"):
        readable(golden, SINGLE_LABEL, limits(max_length=4))


@pytest.mark.parametrize("step", ["reject", "close", "reset", "refuse"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_text_is_not_sent_again_without_a_check_of_who_listens(protocol: str, step: str) -> None:
    script, checks = Script([step]), list[int]()
    texts = dict(enumerate(golden_of(("secret text",)).texts))
    with SERVERS[protocol](script) as url:
        place = Place(url, "classifier")
        with pytest.raises(DeploymentError, match="golden text 1 gets no answer") as error:
            ask_golden(place, texts, SINGLE_LABEL, 5, lambda: checks.append(script.asked))
    assert "secret" not in str(error.value)
    assert (script.asked, checks) == (1, [0])
