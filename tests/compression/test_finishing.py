"""The end of a compression: a variant that is refused, or beyond a limit, gives way to the next."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from bertender.compression.candidates import Start
from bertender.compression.compress import Finishing
from bertender.compression.config import CompressConfig
from bertender.compression.plan import no_candidate_error, with_trained
from bertender.compression.report import Cost
from bertender.compression.training import Training
from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.tasks.task import Task
from quantize.config import SCHEMES, Scheme
from quantize.context import QuantizationContext, Writer, Written
from quantize.post_training import write_dynamic
from quantize.quantizer import WRITERS
from tests.compression.brief import brief_probes
from tests.compression.toy_costs import candidate, plan, result

__all__ = ["brief_probes"]

pytestmark = pytest.mark.usefixtures("brief_probes")

SETTINGS = {"students": (), "schemes": ("wrong", "dynamic"), "noisy": True, "processes": 1}


class Unfair(Writer):
    """Quantizes, and favours the first label whatever the text."""

    def write(self, context: QuantizationContext, target: Path) -> Written:
        written = write_dynamic(context, target)
        model = onnx.load(target)
        (bias,) = (each for each in model.graph.initializer if each.name.endswith("fier.bias"))
        favoured = numpy_helper.to_array(bias) + np.array([50, 0], dtype=np.float32)
        bias.CopyFrom(numpy_helper.from_array(favoured, bias.name))
        onnx.save(model, target)
        return written


class Impossible(Writer):
    """Refuses, as a scheme does that has no form for such a model."""

    def write(self, context: QuantizationContext, target: Path) -> Written:
        raise ModelError("no form for it")


def test_the_next_variant_takes_the_place_of_one_that_breaks_a_limit(
    trained: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that are expected to fit; where none holds, all are reported, the nearest named."""

    def cost_of(artifact: Artifact, single_ms: float) -> Cost:
        slow = artifact.card.config["scheme"] == "dynamic"
        return Cost(model_mb=1.0, single_ms=5.0 if slow else 1.25)

    monkeypatch.setattr("bertender.compression.compress.cost_of", cost_of)
    start, schemes = Start(name="teacher", layers=4), ("dynamic", "four-bit-embeddings", "static")
    first, unfit, second = (
        result(candidate(4, start, scheme=scheme), fits=scheme != "four-bit-embeddings")
        for scheme in schemes
    )
    planned = {each.candidate: each for each in (first, unfit, second)}
    for limit_ms, holds in {2.0: True, 1.0: False}.items():
        config = CompressConfig.parse({**SETTINGS, "schemes": schemes, "max_ms": limit_ms})
        training = Training(trained, task, config, tmp_path, lambda text: None)
        ready = first.model_copy(update={"rounds": (training.train(first, 1.0, 0),)})
        done, best = Finishing(training, planned).first_that_holds([ready])
        assert [each.candidate for each in done] == [second.candidate, first.candidate]
        assert [each.cost.single_ms for each in done] == [1.25, 5.0]
        assert done[1].left_out == "measured beyond the limits"
        assert best == (done[0] if holds else None)
    assert "The nearest is teacher-4-static" in no_candidate_error(done, config)
    assert "Give max_ms 1.25 or more" in no_candidate_error(done, config)


def test_what_predicts_one_label_everywhere_is_not_chosen(
    trained: Artifact, task: Task, tmp_path: Path
) -> None:
    start = Start(name="teacher", layers=4)
    entrants = [result(candidate(4, start, scheme="dynamic", heads=share)) for share in (0.0, 0.5)]
    config = CompressConfig.parse({**SETTINGS, "schemes": ("dynamic",)})
    training = Training(trained, task, config, tmp_path, lambda text: None)
    sound = training.train(entrants[0], 1.0, 0)
    assert sound.constant is None
    stuck = sound.model_copy(update={"constant": "tool"})
    ready = [
        each.model_copy(update={"rounds": (last,)})
        for each, last in zip(reversed(entrants), (stuck, sound), strict=True)
    ]
    finishing = Finishing(training, {each.candidate: each for each in entrants})
    done, best = finishing.first_that_holds(ready)
    assert best is not None and best.candidate == entrants[0].candidate
    assert (done[0].left_out, done[0].refused) == ("predicts 'tool' everywhere", True)
    assert "predicts 'tool' everywhere" in no_candidate_error(done[:1], config)


@pytest.mark.one_path
@pytest.mark.parametrize("wrong", [Unfair(), Impossible()], ids=["unfair", "impossible"])
def test_the_next_scheme_takes_the_place_of_one_that_is_refused(
    wrong: Writer, trained: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCHEMES, "wrong", Scheme("wrong"))
    monkeypatch.setitem(WRITERS, "wrong", wrong)
    start = Start(name="teacher", layers=4)
    entrant = result(candidate(4, start, scheme="wrong"))
    other = result(candidate(4, start, scheme="dynamic"))
    config = CompressConfig.parse(SETTINGS)
    training = Training(trained, task, config, tmp_path, lambda text: None)
    ready = entrant.model_copy(update={"rounds": (training.train(entrant, 1.0, 0),)})
    finishing = Finishing(training, {each.candidate: each for each in (entrant, other)})
    done, best = finishing.first_that_holds([ready])
    assert best is not None
    assert best.candidate == other.candidate
    report = plan([entrant, other], config)
    first, second = with_trained(report, done, [entrant]).candidates
    assert (first.candidate, first.left_out) == (other.candidate, None)
    assert (second.candidate, second.refused) == (entrant.candidate, True)
    assert second.left_out is not None and second.left_out.startswith("refused: ")
    minutes = with_trained(report, done, [entrant]).minutes
    assert minutes == pytest.approx(ready.rounds[0].minutes), "one training, of two variants"
