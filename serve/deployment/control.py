"""Triton's routes that load and unload models, asked with the administrative token."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from bertender.core.errors import ConfigError, DeploymentError
from serve.administration import HTTP_HEADER

__all__ = ["ModelControl"]

POLL_S = 0.1
LEAVING = frozenset({"READY", "LOADING", "UNLOADING"})
"""States of a version that takes memory."""


@dataclass(frozen=True)
class ModelControl:
    """Loads and unloads models of one server.

    Each method waits for what it asks for, `timeout_s` at most, and raises DeploymentError with the
    server's reason where that fails.
    """

    host: str
    port: int
    token: str = field(repr=False)
    timeout_s: float

    def check_token(self) -> None:
        """Raise ConfigError where the server does not know the token."""
        self._post("/v2/repository/index")

    def load(self, model: str) -> None:
        """Load a model as its folder is now; the loaded one answers until the new one is ready."""
        self._post(f"/v2/repository/models/{model}/load")

    def unload(self, model: str) -> None:
        """Unload a model, all that it has begun first; one that is not loaded is no error."""
        if self.versions(model):
            self._post(f"/v2/repository/models/{model}/unload")
        self.wait_for(model)

    def wait_for(self, model: str, *versions: int) -> None:
        """Wait until no other version of a model takes memory."""
        deadline = time.monotonic() + self.timeout_s
        while leaving := self.versions(model) - {*versions}:
            if time.monotonic() > deadline:
                names = ", ".join(map(str, sorted(leaving)))
                raise DeploymentError(
                    f"version {names} of {model!r} is still loaded after {self.timeout_s:g} s. "
                    "Give it longer with --timeout-s."
                )
            time.sleep(POLL_S)

    def versions(self, model: str) -> set[int]:
        """Return the versions of a model that take memory."""
        index = json.loads(self._post("/v2/repository/index"))
        return {
            int(each["version"])
            for each in index
            if each["name"] == model and each.get("state") in LEAVING
        }

    def _post(self, path: str) -> bytes:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout_s)
        try:
            connection.request("POST", path, b"{}", {HTTP_HEADER: self.token})
            response = connection.getresponse()
            status, content = response.status, response.read()
        except TimeoutError:
            raise DeploymentError(
                f"no response to POST {path} within {self.timeout_s:g} s. Give it longer with "
                "--timeout-s."
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise DeploymentError(f"POST {path}: the server does not respond: {error}") from None
        finally:
            connection.close()
        if status == HTTPStatus.FORBIDDEN:
            raise ConfigError(
                "admin_token_file: the server refuses this token. Name the file that `bertender "
                "serve --admin-token-file` was started with."
            )
        if status != HTTPStatus.OK:
            raise DeploymentError(_reason(content))
        return content


def _reason(content: bytes) -> str:
    """Return Triton's error as one line."""
    try:
        answer: Any = json.loads(content)
        text = str(answer["error"])
    except (ValueError, LookupError, TypeError):
        text = content.decode(errors="replace")
    return " ".join(text.split())
