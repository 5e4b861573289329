"""Truncation on request, over both protocols of the real server: what is cut, and what is said."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from bertender.models.classifier import Classifier
from serve.client.protocols import PROTOCOLS
from serve.server.server import Server
from serve.wire import MODEL_NAME, TRUNCATE, TRUNCATED
from tests.front import last_line, succeed
from tests.serve.marked_model import SAYS
from tests.serve.test_client_failures import BOTH, Classify

pytestmark = pytest.mark.server

MODULES: dict[str, ModuleType] = {"http": tritonclient.http, "grpc": tritonclient.grpc}
MAX_LENGTH = 64
"""Tokens that the tiny model takes, two special ones included."""
LONG, AS_IF, SHORT = "saw " * 90, "saw " * (MAX_LENGTH - 2), "apple melon pear"


def tensors_of(server: Server, protocol: str, *texts: str, **parameters: Any) -> Any:
    """Return the result of a request, which has its tensors by name."""
    module = MODULES[protocol]
    tensor = module.InferInput("TEXT", [len(texts), 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode()] for text in texts], np.object_))
    address = f"127.0.0.1:{getattr(server.config, f'{protocol}_port')}"
    with module.InferenceServerClient(address) as client:
        return client.infer(MODEL_NAME, [tensor], parameters=parameters)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_long_text_has_the_scores_of_what_is_left_of_it(
    served: Server, local: Classifier, protocol: str
) -> None:
    cut = tensors_of(served, protocol, LONG, SHORT, **{TRUNCATE: True})
    assert cut.as_numpy(TRUNCATED).tolist() == [[True], [False]]
    expected = tensors_of(served, protocol, AS_IF, SHORT)
    for name in ("LOGITS", "SCORE"):
        np.testing.assert_allclose(cut.as_numpy(name), expected.as_numpy(name), atol=1e-5)
    logits = local.logits([(AS_IF,), (SHORT,)])
    np.testing.assert_allclose(cut.as_numpy("LOGITS"), logits, atol=1e-4)
    labels = [[local.labels[best].encode()] for best in logits.argmax(axis=1)]
    assert cut.as_numpy("LABEL").tolist() == labels


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_texts_that_fit_are_not_cut(served: Server, protocol: str) -> None:
    whole = tensors_of(served, protocol, AS_IF, SHORT, **{TRUNCATE: True})
    assert whole.as_numpy(TRUNCATED).tolist() == [[False], [False]]


@pytest.mark.parametrize("parameters", [{}, {TRUNCATE: False}])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_long_text_is_refused_where_nobody_asks_for_it_to_be_cut(
    served: Server, protocol: str, parameters: dict[str, bool]
) -> None:
    too_long = f"row 1 has more than {MAX_LENGTH} tokens, .*{TRUNCATE}=true"
    with pytest.raises(InferenceServerException, match=too_long) as refused:
        tensors_of(served, protocol, SHORT, LONG, **parameters)
    status = str(refused.value.status()).removeprefix("StatusCode.")
    assert status == SAYS[protocol]["bad"]
    plain = tensors_of(served, protocol, SHORT, **parameters)
    assert plain.as_numpy(TRUNCATED) is None


@BOTH
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_clients_say_which_texts_were_cut(
    served: Server, protocol: str, classify: Classify
) -> None:
    url = getattr(served, f"{protocol}_url")
    found = classify(url, [(SHORT,), (LONG,), (AS_IF,)], batch_size=2)
    assert [each.truncated for each in found] == [False, True, False]


def test_the_command_says_how_many_were_cut_and_to_what(served: Server, tmp_path: Path) -> None:
    url, said = ("--url", served.http_url), f"2 of 3 texts were cut to {MAX_LENGTH} tokens"
    texts = (LONG, SHORT, LONG)
    shown = succeed("classify", *texts, *url)
    assert shown.stderr.strip() == said and shown.stdout.count("\n") == 3
    assert succeed("classify", SHORT, *url).stderr == ""
    flags = [each["truncated"] for each in last_line(succeed("classify", *texts, *url, "--json"))]
    assert flags == [True, False, True]
    out = ("--output", tmp_path / "out.csv")
    assert succeed("classify", *texts, *url, *out).stdout.splitlines()[-1] == said
    header, *rows = (tmp_path / "out.csv").read_text().splitlines()
    assert header.endswith(",truncated")
    assert [row.rpartition(",")[2] for row in rows] == ["true", "false", "true"]
    assert last_line(succeed("classify", *texts, *url, *out, "--json"))["truncated"] == 2
