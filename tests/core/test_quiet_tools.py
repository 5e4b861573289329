"""The tools' chatter stays inside, and logging is as it was afterwards."""

from __future__ import annotations

import logging

import pytest

from bertender.core.progress import quiet_tools


def test_chatter_is_kept_and_errors_are_not(caplog: pytest.LogCaptureFixture) -> None:
    tool = logging.getLogger("a tool")
    tool.setLevel(logging.INFO)
    root = logging.getLogger()
    handlers, level = [*root.handlers], root.level
    with quiet_tools():
        tool.info("skip to quantize")
        tool.error("cannot")
        root.addHandler(logging.NullHandler())
    assert [record.getMessage() for record in caplog.records] == ["cannot"]
    assert (root.handlers, root.level) == (handlers, level)
    tool.info("heard again")
    assert caplog.records[-1].getMessage() == "heard again"
