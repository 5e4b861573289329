"""Administrative routes of HTTP, for who has the token: they become the calls of gRPC.

https://github.com/triton-inference-server/server/tree/main/docs/protocol
"""

from __future__ import annotations

from starlette.routing import BaseRoute

from serve.door.service import Door


def admin_routes(door: Door) -> list[BaseRoute]:
    """Return the routes."""
    return []
