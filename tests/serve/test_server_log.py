"""The one line that matters is found in real pieces of Triton's logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve.config import STANDARD_OUTPUT
from serve.server.triton_process import failure_reason

LOGS = {
    "a model": (
        'E1 10:00:00.1 5 server.cc:241] "CudaDriverHelper has not been initialized."\n'
        "E1121 10:00:01.1 5 model_lifecycle.cc:642] \"failed to load 'classifier' version 1: "
        r'Internal: ModelError: no usable tokenizer in x\n\nAt:\n  /x.py(3): initialize\n"' + "\n",
        "ModelError: no usable tokenizer in x",
    ),
    "a model, without Python": (
        "E1121 10:00:01.1 5 model_lifecycle.cc:642] \"failed to load 'classifier' version 1: "
        'Invalid argument: no stub"\nI1121 10:00:02.1 5 server.cc:604] next\n',
        "Invalid argument: no stub",
    ),
    "a stub": (
        'E1121 10:00:01.1 5 model_lifecycle.cc:642] "one thing"\n'
        "bertender: the Python stub, process 7, died; the server cannot go on\n",
        "the Python stub, process 7, died; the server cannot go on",
    ),
    "restarts": (
        "bertender: the Python stub, process 7, died; the server cannot go on\n"
        "bertender: the server ended, status 70; it starts again in 0.5 s\n"
        "bertender: the Python stub, process 8, died; the server cannot go on\n"
        "bertender: the server failed 2 times; it is not started again\n",
        "the Python stub, process 8, died; the server cannot go on",
    ),
    "restarts, for another reason": (
        "tritonserver: error while loading shared libraries: libb64.so: cannot open\n"
        "bertender: the server failed 6 times; it is not started again\n",
        "tritonserver: error while loading shared libraries: libb64.so: cannot open",
    ),
    "a port": (
        'E1121 10:00:01.9 5518 main.cc:257] "failed to start HTTP service: Unavailable - Socket '
        "'127.0.0.1:80' already in use \"\n",
        "failed to start HTTP service: Unavailable - Socket '127.0.0.1:80' already in use",
    ),
    "a signal": (
        "I1121 10:00:01.9 5518 server.cc:1] ready\n"
        "bertender: the server was ended by SIGKILL, signal 9: the kernel sends it where memory "
        "runs out\n",
        "the server was ended by SIGKILL, signal 9: the kernel sends it where memory runs out",
    ),
    "a crash, and an error of another request before it": (
        'E1121 10:00:01.1 5 http_server.cc:642] "a request that was refused"\n'
        "bertender: the server was ended by SIGSEGV, signal 11\n",
        "the server was ended by SIGSEGV, signal 11",
    ),
    "an abort, and its error": (
        'E1121 10:00:01.1 5 main.cc:642] "failed to start HTTP service: no socket"\n'
        "terminate called\n"
        "bertender: the server was ended by SIGABRT, signal 6\n",
        "the server was ended by SIGABRT, signal 6; before that: failed to start HTTP service: no "
        "socket",
    ),
    "an abort, long after an error": (
        'E1121 10:00:01.1 5 main.cc:642] "an old one"\n'
        + "I1121 10:00:02.1 5 server.cc:604] next\n" * 20
        + "bertender: the server was ended by SIGABRT, signal 6\n",
        "the server was ended by SIGABRT, signal 6",
    ),
    "a shell": (
        "I1121 10:00:01.9 5518 server.cc:1] loading\nbash: line 1: /x/stub: not found\n",
        "bash: line 1: /x/stub: not found",
    ),
    "a library": (
        "tritonserver: error while loading shared libraries: libb64.so: cannot open\n",
        "tritonserver: error while loading shared libraries: libb64.so: cannot open",
    ),
    "no driver": (
        'E1121 10:00:00.1 5 server.cc:241] "CudaDriverHelper has not been initialized."\nlast\n',
        "its log has no reason; its last lines: E1121 10:00:00.1 5 server.cc:241] "
        '"CudaDriverHelper has not been initialized." | last',
    ),
    "nothing": ("first\nsecond\n", "its log has no reason; its last lines: first | second"),
}


@pytest.mark.parametrize("case", LOGS)
def test_the_reason_is_found_in_the_log(case: str, tmp_path: Path) -> None:
    log, reason = LOGS[case]
    (tmp_path / "log").write_text(log)
    assert failure_reason(tmp_path / "log") == reason


def test_no_log_is_said(tmp_path: Path) -> None:
    assert failure_reason(tmp_path / "log").endswith("its last lines: -")


def test_an_earlier_start_is_not_the_reason(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(LOGS["a port"][0])
    start = log.stat().st_size
    with log.open("a") as more:
        more.write(LOGS["a library"][0])
    assert failure_reason(log, start) == LOGS["a library"][1]
    log.write_text(LOGS["nothing"][0])
    assert failure_reason(log, start) == LOGS["nothing"][1], "it was begun anew"


def test_a_log_on_standard_output_is_referred_to() -> None:
    assert "standard output" in failure_reason(STANDARD_OUTPUT)
