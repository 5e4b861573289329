"""Functions that serve a model, ask a served one, and replace it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

from bertender.core.table import load_place
from bertender.text.example import to_examples

if TYPE_CHECKING:
    from bertender.pipeline.calls import ArtifactLike, PathLike
    from serve.client import Classification
    from serve.deployment import Deployment
    from serve.server import TritonServer

__all__ = ["classify", "deploy", "serve"]


def serve(
    artifact: ArtifactLike | Mapping[str, ArtifactLike], **settings: Any
) -> AbstractContextManager[TritonServer]:
    """Serve a model through Triton Inference Server: ready inside the block, stopped after it.

    Args:
        artifact: an onnx classifier, as the model `classifier`; or several by the names of models.
        settings: the options of `bertender serve`; a port 0 takes any free one. Those that are
            not set are of this machine's profile, as there.

    Raises:
        ServingError: the server cannot start.

    Example:
        with bertender.serve("runs/int8", http_port=0, metrics_port=0) as server:
            print(server.http_url, server.metrics_url)
    """
    from bertender.pipeline.calls import opened, plain

    config = load_place("serve.config:LocalServeConfig").parse(plain(settings))
    if not isinstance(artifact, Mapping):
        artifact = {"classifier": artifact}
    # they are verified when the repository is written
    models = {name: opened(each, verify=False) for name, each in artifact.items()}
    for name in models:
        load_place("serve.model_arguments:check_name")(name)
    cards = [each.card for each in models.values()]
    config, _ = load_place("serve.profiles:with_profile")(config, cards)
    serving = load_place("serve.server:serving")(models, config)
    return cast("AbstractContextManager[TritonServer]", serving)


def classify(
    texts: Sequence[str | tuple[str, ...]],
    url: str = "http://127.0.0.1:8000",
    *,
    batch_size: int | None = None,
    timeout_s: float = 60.0,
    retries: int | None = None,
    **settings: Any,
) -> list[Classification]:
    """Ask a served model about texts; loads no model library.

    Args:
        texts: a text or a pair of texts each.
        url: `http://host:port` or `grpc://host:port`, `https://` or `grpcs://` with TLS; the
            default is that of `bertender serve`.
        batch_size: texts of a request; by default, and at most, what the model takes.
        timeout_s: longest wait for one request in seconds, its retries included.
        retries: how often a request is sent again where the server rejects it for now, or nothing
            listens there; by default until `timeout_s` is over, and 3 times for the first.
        settings: `model`, its name on the server; `ca_file`, `client_certificate`, `client_key` and
            `api_key_file`; as the options of `bertender classify`.

    Raises:
        DataError: `texts` is not a sequence of texts or pairs, or a text is empty.
        ServingError: no endpoint responds there (UnreachableError), not in time (DeadlineError),
            or the server rejects the request for now (OverloadedError), or refuses it.

    Example:
        with bertender.serve("runs/int8", http_port=0, metrics_port=0) as server:
            results = bertender.classify(["a text of yours", "another one"], server.http_url)
        print(results[0].label, results[0].score)
    """
    examples = to_examples(texts)
    sending = {"batch_size": batch_size, "timeout_s": timeout_s, "retries": retries}
    if "model" in settings:
        sending["model"] = settings.pop("model")
    files = load_place("serve.client:AccessConfig").parse(settings)
    predictions = load_place("serve.client:classify")(examples, url, **sending, access=files)
    return cast("list[Classification]", predictions)


def deploy(artifact: ArtifactLike, to: PathLike, **settings: Any) -> Deployment:
    """Let an artifact take the place of a served model, once it predicts as when it was made.

    It is tried next to the served model, which responds meanwhile and stays if it fails.

    Args:
        artifact: an onnx classifier with golden texts.
        to: address of a running `bertender serve` of this machine, or the directory of a model
            repository.
        settings: the options of `bertender deploy`; an address needs `admin_token_file`.

    Raises:
        ConfigError: the address, the token or the name of the model is wrong; or the artifact is
            of another task.
        ModelError, ArtifactError: the artifact cannot be served, or has no golden texts.
        BusyError: another process deploys there.
        DeploymentError: the artifact does not load, or predicts otherwise than when it was made.

    Example:
        closed = {"http_port": 0, "metrics_port": 0, "admin_token_file": "token"}
        with bertender.serve("runs/onnx", **closed) as server:
            done = bertender.deploy("runs/int8", server.http_url, admin_token_file="token")
        print(done.state, done.version, done.golden.texts)
    """
    from bertender.pipeline.calls import opened, plain

    config = load_place("serve.deployment:DeployConfig").parse(plain(settings))
    source = opened(artifact, verify=False)  # checked when its files are placed
    deployment = load_place("serve.deployment:deploy")(source, os.fspath(to), config)
    return cast("Deployment", deployment)
