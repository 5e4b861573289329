"""Every expression of PromQL that is shown reads what a running server has at /metrics."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from serve.backend.metrics import METRIC_FAMILIES
from serve.client.endpoint import Endpoint
from serve.server.server import Server
from tests.deployed import DEPLOY, KUBERNETES, rendered
from tests.packages import ROOT
from tests.promql import expression, grouped_by, selectors
from tests.serve.scraped import scrape

DASHBOARD: Mapping[str, Any] = json.loads((DEPLOY / "grafana" / "bertender.json").read_text())
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"

OF_PROMETHEUS = {"job", "instance", "namespace", "service"}
"""Labels that Prometheus adds to what it scrapes."""


def shown() -> dict[str, str]:
    """Return the expressions of the dashboard, of the documents, of the autoscaler and of the
    alerts, by place."""
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
    (group,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    alerts = {rule["alert"]: rule["expr"] for rule in group["rules"]}
    return {**panels, **alerts, **{text: text for text in (*documented, *queries)}}


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
        for values in itertools.product(*(value.split("|") for value in own.values())):
            one = dict(zip(own, values, strict=True))
            assert any(one.items() <= labels.items() for labels in live[name]), (name, one)
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


def test_alerts_speak_where_something_is_wrong_and_only_there(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("no promtool here: apt install prometheus")
    shutil.copy(ALERTS, tmp_path)
    shutil.copy(Path(__file__).with_name("alerts_test.yaml"), tmp_path)
    for words in (("check", "rules", ALERTS.name), ("test", "rules", "alerts_test.yaml")):
        ran = subprocess.run(["promtool", *words], cwd=tmp_path, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr
