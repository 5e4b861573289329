"""Abstention: which texts a served model is not sure of, by the scores that it gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertender.core.artifact import Artifact, copy_artifact
from bertender.core.card import Calibration
from bertender.core.errors import ConfigError
from bertender.problems import PROBLEMS
from bertender.problems.problem import Outputs
from bertender.text.batch import Example
from serve.backend.batches import ServedModel
from serve.backend.opening import open_served_model
from serve.client.endpoint import Endpoint
from serve.client.endpoint import ServedModel as ModelOfClient
from serve.config import BackendParameters, ServeConfig
from serve.repository.config_pbtxt import config_of_version, model_config
from tests.front import last_line, succeed
from tests.serve.asking import ask
from tests.served import ANY_PORTS, served
from tests.toy_kinds import TASKS

TEXTS: tuple[Example, ...] = (("apple pear",), ("saw drill hammer",), ("number 3",))
HALF = 0.5


def opened(artifact: Artifact, below: float | None) -> ServedModel:
    parameters = BackendParameters(tokens_per_bucket=64, threads=1, abstain_below=below)
    return open_served_model(artifact.path, parameters, max_batch_size=64)


def answer(artifact: Artifact, below: float | None) -> dict[str, Any]:
    model = opened(artifact, below)
    (tensors,) = ask(model, TEXTS)
    counted = model.tally.take()
    model.close()
    assert isinstance(tensors, dict)
    return {**tensors, "counted": counted}


def test_a_text_abstains_where_its_score_is_lower(exported: Artifact) -> None:
    plain = answer(exported, None)
    assert "ABSTAINED" not in plain
    scores = plain["SCORE"].ravel()
    middle = float(np.sort(scores)[1])
    found = answer(exported, middle)
    assert found["ABSTAINED"].tolist() == (scores < middle)[:, None].tolist()
    assert found["ABSTAINED"].sum() == 1 and found["ABSTAINED"].dtype == bool
    assert found["LABEL"].tolist() == plain["LABEL"].tolist()
    counted = found["counted"]
    assert counted["bertender_abstained_texts_total", ""] == 1
    assert counted["bertender_confidence_sum", ""] == pytest.approx(scores.sum(), rel=1e-5)
    assert counted["bertender_text_tokens_count", ""] == 3


def test_scores_are_calibrated_and_logits_are_not(exported: Artifact, tmp_path: Path) -> None:
    calibration = Calibration(method="temperature", fitted_for="", texts=9, temperature=0.1)
    record = exported.card.task.model_copy(update={"calibration": calibration})
    card = exported.card.model_copy(update={"task": record})
    sharper = copy_artifact(replace(exported, card=card), tmp_path / "sharper")
    plain, found = answer(exported, None), answer(sharper, 0.99)
    np.testing.assert_array_equal(plain["LOGITS"], found["LOGITS"])
    exponents = np.exp(10 * plain["LOGITS"].astype(np.float64))
    expected = (exponents / exponents.sum(axis=1, keepdims=True)).max(axis=1)
    np.testing.assert_allclose(found["SCORE"].ravel(), expected, rtol=1e-4)
    assert found["ABSTAINED"].ravel().tolist() == (expected < 0.99).tolist()


def test_the_signature_has_the_output_where_it_is_asked_for(exported: Artifact) -> None:
    config = model_config(exported.card, ServeConfig(abstain_below=HALF))
    assert [each.name for each in config.output][-2:] == ["TRUNCATED", "ABSTAINED"]
    fresh = model_config(exported.card, ServeConfig())
    # a new version of the model goes on abstaining
    deployed = config_of_version(config, fresh, "classifier", 2)
    assert deployed.output[-1] == config.output[-1]
    assert deployed.parameters["abstain_below"].string_value == "0.5"


@pytest.mark.parametrize("kind", ["regression", "ranking", "sentence_embedding"])
def test_kinds_without_a_probability_are_refused(kind: str, exported: Artifact) -> None:
    task = TASKS[kind].record()
    card = exported.card.model_copy(update={"task": task})
    with pytest.raises(ConfigError, match=f"a model of '{kind}' gives no probability"):
        model_config(card, ServeConfig(abstain_below=HALF))
    abstaining = model_config(exported.card, ServeConfig(abstain_below=HALF))
    with pytest.raises(ConfigError, match="gives no probability"):
        config_of_version(abstaining, model_config(card, ServeConfig()), "classifier", 2)


def sigmoid(value: float) -> float:
    return float(1 / (1 + np.exp(-value)))


def outputs(*rows: tuple[float, ...]) -> Outputs:
    return Outputs(np.array(rows, dtype=np.float32).reshape(len(rows), -1), np.arange(len(rows)))


CONFIDENCE = {
    "single_label_classification": (outputs((0.0, 2.0)), sigmoid(2)),
    # a label of the set, and one outside it: the second is less sure
    "multi_label_classification": (outputs((3.0, -1.0)), sigmoid(1)),
    "token_classification": (outputs((4.0, 0.0), (0.0, 0.5)), sigmoid(0.5)),
    "multiple_choice": (outputs((1.0, 1.0)), 0.5),
}


@pytest.mark.parametrize("kind", CONFIDENCE)
def test_confidence_is_that_of_the_least_sure_decision(kind: str) -> None:
    own, expected = CONFIDENCE[kind]
    nothing = Outputs(own.logits[:0], own.places[:0])
    found = PROBLEMS[kind].confidence([own, nothing, own], ("a", "b"))
    assert found == pytest.approx([expected, 0.0, expected])


def test_several_heads_are_as_sure_as_the_least_of_those_with_a_probability() -> None:
    kind = "topic:single_label_classification,rating:regression"
    problem = PROBLEMS[kind].of_labels(("topic:a", "topic:b", "rating:number"))
    assert problem.has_confidence
    assert problem.confidence([outputs((0.0, 2.0, -9.0))], ()) == pytest.approx([sigmoid(2)])


def test_a_client_of_a_server_that_does_not_abstain_says_nothing(exported: Artifact) -> None:
    model = ModelOfClient(64, 1, PROBLEMS["single_label_classification"], "")
    tensors = {name: each for name, each in answer(exported, None).items() if name != "counted"}
    (found, *_) = model.classifications([tensors], TEXTS)
    assert found.abstained is None and "abstained" not in found.model_dump()


@pytest.fixture(scope="module", params=["embedded", "triton"])
def address(
    request: pytest.FixtureRequest, exported: Artifact, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("abstaining")
    settings = {**ANY_PORTS, "server": request.param, "abstain_below": 1.0}
    with served(exported, folder, **settings) as server:
        yield server.http_url


@pytest.mark.server
def test_a_server_says_it_to_its_clients(address: str, tmp_path: Path) -> None:
    with Endpoint(address) as endpoint:
        assert [each.abstained for each in endpoint.classify(TEXTS)] == [True] * 3
    shown = succeed("classify", "saw drill", "--url", address).stdout
    assert shown.rstrip().endswith("saw drill\tabstained")
    assert last_line(succeed("classify", "saw", "--url", address, "--json"))[0]["abstained"]
    path = tmp_path / "texts.csv"
    path.write_text("text\nsaw drill\n", encoding="utf-8")
    out = tmp_path / "out.csv"
    succeed("classify", "--input", path, "--url", address, "--output", out)
    header, row = out.read_text(encoding="utf-8").splitlines()
    assert header.endswith(",truncated,abstained") and row.endswith(",false,true")
