"""The report in a real browser: it draws and sorts, and hostile names and texts do nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bertender.comparison.records import Comparison
from tests.serve.browser import CHROMIUM, Browser, browser

pytest.importorskip("vl_convert")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

NAMES = "[...document.querySelectorAll('#rows tbody tr')].map(row => row.cells[1].innerText)"
SAID = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
CHARTS = "[...document.querySelectorAll('.chart svg')]"
OVERFLOWS = "document.documentElement.scrollWidth > innerWidth"
INK = "getComputedStyle(document.querySelector('.chart svg text')).fill"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def tab(folder: Path) -> Iterator[Browser]:
    with browser(folder / "profile") as opened:
        yield opened


def shown(tab: Browser, rich: Comparison, folder: Path) -> None:
    """Show the report, and wait for its charts."""
    from bertender.report.page import page

    path = folder / "report.html"
    if not path.exists():
        path.write_text(page(rich), encoding="utf-8")
        assert path.stat().st_size < 3e6
    tab.events.clear()
    tab.listen(path.as_uri(), "Runtime", "Log", "Network", "Page")
    tab.wait_for("document.body && document.body.dataset.charts")


def of_kind(tab: Browser, *methods: str) -> list[Any]:
    return [each["params"] for each in tab.events if each.get("method") in methods]


def test_it_draws_and_asks_nobody(tab: Browser, rich: Comparison, folder: Path) -> None:
    shown(tab, rich, folder)
    assert tab.value("document.body.dataset.charts") == "drawn"
    assert tab.value("document.querySelectorAll('.chart svg').length") == 4
    assert tab.value("document.querySelectorAll('.chart svg path').length") > 10
    requests = [each["request"]["url"] for each in of_kind(tab, "Network.requestWillBeSent")]
    assert [url for url in requests if not url.endswith("report.html")] == []
    assert of_kind(tab, *SAID) == []


def test_hostile_words_are_words(tab: Browser, rich: Comparison, folder: Path) -> None:
    shown(tab, rich, folder)
    assert tab.value("document.title") == "sst2: report"
    assert tab.value("document.querySelectorAll('img, iframe, main script').length") == 0
    words = tab.value("document.body.innerText")
    assert "<img src=x" in words and "</script><script>" in words and "<!-- and 'quoted'" in words
    tab.value("fetch('http://127.0.0.1:9/').catch(() => { globalThis.refused = true })")
    tab.wait_for("globalThis.refused")
    assert any("Content Security Policy" in str(each) for each in of_kind(tab, *SAID))


def test_a_click_sorts(tab: Browser, rich: Comparison, folder: Path) -> None:
    shown(tab, rich, folder)
    before = tab.value(NAMES)
    assert before[0] == "teacher" and before[-1].startswith("always")
    for index in range(15):
        heading = f"#rows th:nth-child({index + 1}) button"
        if tab.value(f"document.querySelector('{heading}').innerText").startswith("p50"):
            break
    tab.value(f"document.querySelector('{heading}').scrollIntoView()")
    tab.click(heading)
    first, second, third, last = tab.value(NAMES)
    assert (first[:4], second, third) == ("int8", "student", "teacher")
    assert last.startswith("always"), "it has no time"
    tab.click(heading)
    assert tab.value(NAMES)[0] == "teacher" and tab.value(NAMES)[-1] == last
    assert tab.value("document.querySelectorAll('#rows th[aria-sort]').length") == 1


def test_it_fits_a_phone_the_dark_and_paper(tab: Browser, rich: Comparison, folder: Path) -> None:
    shown(tab, rich, folder)
    phone = {"width": 380, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    tab.ask("Emulation.setDeviceMetricsOverride", **phone)
    tab.wait_for(f"{CHARTS}.every(each => each.clientWidth <= 380)")
    assert not tab.value(OVERFLOWS)
    boxes = "[...document.querySelectorAll('.scroll')]"
    assert tab.value(f"{boxes}.some(box => box.scrollWidth > box.clientWidth)"), "inside its box"
    inks = []
    for scheme, medium in (("light", "screen"), ("dark", "screen"), ("dark", "print")):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        tab.ask("Emulation.setEmulatedMedia", media=medium, features=features)
        inks.append(tab.value(INK))
    light, dark, paper = inks
    assert light != dark and paper == "rgb(0, 0, 0)", "text of charts has the colour of the page"
    tab.ask("Emulation.setEmulatedMedia", media="", features=[])
    tab.value("dispatchEvent(new Event('beforeprint'))")
    assert tab.value("[...document.querySelectorAll('details')].every(each => each.open)")
