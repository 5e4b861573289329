"""The server of stand-ins, which says nothing where a client goes away."""

from __future__ import annotations

from http.server import ThreadingHTTPServer
from typing import Any


class QuietServer(ThreadingHTTPServer):
    """Prints no traceback for a client that has gone: it would land in the output of whatever test
    runs meanwhile."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass
