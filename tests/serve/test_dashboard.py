"""Every expression of PromQL that is shown reads what a running server has at /metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from serve.backend.metrics import METRIC_FAMILIES
from serve.client.endpoint import Endpoint
from serve.server.server import Server
from tests.deployed import DEPLOY, KUBERNETES, rendered
from tests.packages import ROOT
from tests.promql import expression, grouped_by, selectors
from tests.serve.scraped import scrape

DASHBOARD: Mapping[str, Any] = json.loads((DEPLOY / "grafana" / "bertender.json").read_text())

OF_PROMETHEUS = {"job", "instance", "namespace", "service"}
"""Labels that Prometheus adds to what it scrapes."""


def shown() -> dict[str, str]:
    """Return the expressions of the dashboard, of the documents and of the autoscaler, by place."""
    panels = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    }
    page = (ROOT / "docs" / "serving" / "operate.md").read_text(encoding="utf-8")
    documented = re.findall(r"`([^`\n]*\brate\([^`\n]+)`", page)
    (scaled,) = (
        own
        for own in rendered(KUBERNETES / "overlays" / "autoscaled")
        if own["kind"] == "ScaledObject"
    )
    queries = [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]]
    return {**panels, **{text: text for text in (*documented, *queries)}}


SHOWN = shown()


@pytest.mark.server
@pytest.mark.parametrize("place", SHOWN)
def test_an_expression_reads_live_metrics(place: str, served: Server) -> None:
    with Endpoint(served.http_url) as endpoint:
        endpoint.classify([("apple",)])
    parsed = expression(SHOWN[place])
    live: dict[str, list[dict[str, str]]] = {}
    for name, labels in scrape(served):
        live.setdefault(name, []).append({"model": "", "version": "", **dict(labels)})
    read = selectors(parsed)
    assert read
    for name, matchers in read:
        assert name in live, f"{name} is not at /metrics"
        own = {label: value for label, value in matchers.items() if label not in OF_PROMETHEUS}
        assert any(own.items() <= labels.items() for labels in live[name]), (name, own)
        known = set(live[name][0]) | OF_PROMETHEUS
        assert grouped_by(parsed) <= known, f"{name} has the labels {sorted(known)}"


def test_the_dashboard_has_every_metric_of_the_backend() -> None:
    used = {name for text in SHOWN.values() for name in re.findall(r"bertender_\w+", text)}
    assert {family.name for family in METRIC_FAMILIES} <= used


def test_the_dashboard_is_whole() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))) - {"__rate_interval"}
    assert used == variables
    for panel in panels:
        names = re.findall(r"\{\{(\w+)\}\}", json.dumps(panel["targets"]))
        assert set(names) <= set.union(
            *(grouped_by(expression(t["expr"])) for t in panel["targets"])
        )
