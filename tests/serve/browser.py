"""A headless Chromium that clicks and types, driven over pipes by its DevTools protocol."""

from __future__ import annotations

import json
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO, Any

__all__ = ["CHROMIUM", "FLAGS", "Browser", "browser"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
PIPES = 'exec "$@" 3<&0 4>&1 1>&2'
"""Chromium reads commands at descriptor 3, and writes what becomes of them to 4."""
CENTRE = """
const box = document.querySelector({selector}).getBoundingClientRect();
[box.x + box.width / 2, box.y + box.height / 2]
"""
CONTROL = 2
"""Bit of a modifier key."""
TIMEOUT_S = 30.0


@dataclass
class Browser:
    """One tab."""

    process: subprocess.Popen[bytes]
    session: dict[str, str] = field(default_factory=dict)
    """Of the tab, as each command to it says."""
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    events: list[dict[str, Any]] = field(default_factory=list)
    """What it has reported besides results of commands, of the domains that `listen` enables."""

    def listen(self, url: str, *domains: str) -> None:
        """Show a page in a new tab, and record the events of domains from before it loads."""
        self.open("about:blank")
        for domain in domains:
            self.ask(f"{domain}.enable")
        self.ask("Page.navigate", url=url)

    def open(self, url: str) -> None:
        """Show a page, in a new tab."""
        target = self.ask("Target.createTarget", url=url)["targetId"]
        self.session = {}
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self.session = {"sessionId": attached["sessionId"]}

    def value(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript in the page."""
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"]
        return found.get("value")

    def wait_for(self, expression: str) -> None:
        """Return when an expression is true."""
        deadline = time.monotonic() + TIMEOUT_S
        while not self.value(f"Boolean({expression})"):
            assert time.monotonic() < deadline, (expression, self.value("document.body.innerText"))
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        """Press the mouse's button at the centre of an element."""
        x, y = self.value("{" + CENTRE.format(selector=json.dumps(selector)) + "}")
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def write(self, text: str) -> None:
        """Type a text, key by key."""
        for character in text:
            self.ask("Input.dispatchKeyEvent", type="char", text=character)

    def press_control_enter(self) -> None:
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key="Enter", modifiers=CONTROL)

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the result of a command; what the browser reports meanwhile are its events."""
        number = next(self.numbers)
        session = {} if method.startswith("Target.") else self.session
        command = {"id": number, "method": method, "params": parameters, **session}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\0")
        self.process.stdin.flush()
        while (answer := self._message()).get("id") != number:
            self.events.append(answer)
        assert "error" not in answer, (method, answer)
        return dict(answer["result"])

    def _message(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        content = bytearray()
        while (byte := self._byte(self.process.stdout)) != b"\0":
            assert byte, "the browser has ended"
            content += byte
        return dict(json.loads(content))

    @staticmethod
    def _byte(output: IO[bytes]) -> bytes:
        ready, _, _ = select.select([output], [], [], TIMEOUT_S)
        assert ready, f"the browser says nothing for {TIMEOUT_S:g} s"
        return output.read(1)


@contextmanager
def browser(folder: Path, *more: str) -> Iterator[Browser]:
    """Start one, whose profile is in a folder, with more flags."""
    profile = f"--user-data-dir={folder}"
    command = [str(CHROMIUM), *FLAGS, *more, profile, "--remote-debugging-pipe"]
    with subprocess.Popen(
        ["sh", "-c", PIPES, "browser", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,  # what is read already would not be seen by `select`
    ) as process:
        try:
            yield Browser(process)
        finally:
            process.terminate()
            process.wait(30)
