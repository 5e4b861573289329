"""Tokens that a model has no row for are found when it is opened, not by the text that has one."""

from __future__ import annotations

import pytest

from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.models.classifier import open_classifier
from bertender.tasks.task import Task
from bertender.text.tokenizer import (
    largest_token,
    load_tokenizer,
    open_tokenizer,
    tokens_beyond,
)
from export.config import ExportConfig
from export.exporter import export
from quantize.quantizer import quantize
from serve.backend.opening import open_artifact
from serve.config import BackendParameters
from tests.quantize.contexts import config_of
from tests.quick import quick
from tests.toy_models import VOCABULARY, save_artifact, tiny_classifier

ADDED = ["<user>", "<url>"]
NAMED = (
    rf"have {VOCABULARY} rows.*'<user>' \({VOCABULARY}\), '<url>' \({VOCABULARY + 1}\)\. .*finetune"
)
KINDS = ("torch", "float", "dynamic", "four-bit-embeddings")


@pytest.fixture(scope="module", params=quick(KINDS, "torch", "float", "dynamic"))
def artifact(
    request: pytest.FixtureRequest, task: Task, tmp_path_factory: pytest.TempPathFactory
) -> Artifact:
    """An artifact to whose tokenizer two tokens are added after it was made."""
    folder, made = tmp_path_factory.mktemp("rows"), request.param
    artifact = save_artifact(tiny_classifier("bert"), task, folder / "torch")
    if made != "torch":
        artifact = export(artifact, task, ExportConfig(), folder / "onnx")
    if made in ("dynamic", "four-bit-embeddings"):
        artifact = quantize(artifact, task, config_of(made), folder / "quantized")
    open_classifier(artifact)
    tokenizer = load_tokenizer(artifact.path)
    tokenizer.add_tokens(ADDED)
    tokenizer.save_pretrained(artifact.path)
    return Artifact.load(artifact.path, verify=False)


def test_more_tokens_than_rows_are_refused_by_name(artifact: Artifact) -> None:
    with pytest.raises(ModelError, match=NAMED):
        open_classifier(artifact)


def test_an_endpoint_refuses_them_when_it_starts(artifact: Artifact) -> None:
    if artifact.card.kind == "torch":
        pytest.skip("endpoints run graphs")
    parameters = BackendParameters(tokens_per_bucket=64, threads=1)
    with pytest.raises(ModelError, match=NAMED):
        open_artifact(artifact, parameters, threads=1)


def test_each_kind_of_tokenizer_knows_its_last_token(artifact: Artifact) -> None:
    for tokenizer in (load_tokenizer(artifact.path), open_tokenizer(artifact.path)):
        assert largest_token(tokenizer) == VOCABULARY + 1
        assert not tokens_beyond(tokenizer, VOCABULARY + 2)
        assert tokens_beyond(tokenizer, VOCABULARY - 10).endswith(" and 7 more")
