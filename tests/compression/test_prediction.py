"""Predictions: right where costs are sums of parts, from as few models as are made."""

from __future__ import annotations

import pytest

from bertender.compression.candidates import all_candidates
from bertender.compression.config import CompressConfig
from bertender.compression.plan import fitted, probes_of
from tests.compression.toy_costs import ENCODER, STATIC, TEACHER, cost, probe

CONFIGS = {
    "default": {},
    "one depth": {"layers": "3"},
    "nothing cut": {"heads": "0", "ffn": "0"},
    "neurons alone": {"heads": "0", "ffn": "0,0.5"},
}


@pytest.mark.parametrize("vocab", [True, False])
@pytest.mark.parametrize("start", [TEACHER, ENCODER, STATIC])
@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
def test_sums_of_parts_are_predicted(settings: dict[str, str], start: object, vocab: bool) -> None:
    config = CompressConfig.parse(settings)
    candidates = all_candidates([start], config, vocab=vocab)  # type: ignore[list-item]
    probes = [probe(each) for each in probes_of(candidates)]
    assert len(probes) <= 5
    model = fitted(probes)
    for each in candidates:
        right, predicted = cost(each), model.predict(each)
        assert predicted.model_mb == pytest.approx(right.model_mb, rel=1e-6)
        assert predicted.single_ms == pytest.approx(right.single_ms, rel=1e-6)
