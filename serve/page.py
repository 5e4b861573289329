"""The page of `serve --page`: its files, and a route that describes the served models.

The browser sends texts to the door's own inference route. The page may load, request and be framed
only by its own origin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from bertender.core.artifact import Artifact, lineage
from bertender.core.card import Calibration
from bertender.core.config import Record
from bertender.core.errors import BertenderError
from bertender.problems import PROBLEMS
from serve.door.engine import Code, Model, RefusedError
from serve.door.http import connection_of
from serve.door.http_bodies import json_response
from serve.door.service import Door
from serve.wire import CANDIDATE_SUFFIX

FILES: Mapping[str, tuple[str, str]] = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
"""path -> (file, content type)"""

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Ancestor(Record):
    """An artifact of the lineage."""

    name: str = Field(description="of its folder, or why it cannot be read")
    stage: str = ""
    precision: str = ""
    parameters: int | None = None
    model_mb: float | None = Field(None, description="of the weights or the graph, in 10^6 bytes")
    digest: str = Field("", description="its first digits")


class About(Record):
    """A served model."""

    model: str
    version: str
    task: str
    labels: tuple[str, ...]
    inputs: Mapping[str, str] = Field(description="of a request: name -> column of the task")
    problem_type: str
    calibration: Calibration | None = Field(description="of its probabilities, where it has one")
    lineage: tuple[Ancestor, ...] = Field(description="the served artifact first")


class Page:
    """The routes of the page.

    Args:
        door: door that the routes belong to.
        folder_of: returns the folder of a model's artifact.
    """

    def __init__(self, door: Door, folder_of: Callable[[Model], Path]) -> None:
        self.door = door
        self.folder_of = folder_of
        self.known: dict[tuple[str, str], About] = {}
        """By model and version, so that the files of all ancestors are checked once."""

    @property
    def routes(self) -> list[BaseRoute]:
        return [*(Route(path, self.file) for path in FILES), Route("/about", self.about)]

    async def file(self, request: Request) -> Response:
        name, content_type = FILES[request.url.path]
        content = resources.files("serve").joinpath("page_files", name).read_bytes()
        return Response(content, headers=HEADERS, media_type=content_type)

    async def about(self, request: Request) -> Response:
        """Describe the models, in the versions now served."""
        authorization = request.headers.get("authorization")
        self.door.callers.caller(authorization, connection_of(request.scope, self.door))
        known: dict[tuple[str, str], About] = {}
        try:
            for name, model in (await self.door.engine.models()).items():
                key = (name, model.version)
                if key in self.known:
                    known[key] = self.known[key]
                elif not name.endswith(CANDIDATE_SUFFIX):
                    known[key] = await asyncio.to_thread(self._about, model)
        except BertenderError as error:
            raise RefusedError(Code.FAILED, str(error)) from None
        self.known = known
        content = [each.model_dump(mode="json") for each in known.values()]
        return json_response(content, headers=HEADERS)

    def _about(self, model: Model) -> About:
        artifact = Artifact.load(self.folder_of(model), verify=False)
        task = artifact.card.task
        columns = PROBLEMS[task.problem_type].asked_columns(task.text_columns)
        return About(
            model=model.name,
            version=model.version,
            task=task.name,
            labels=task.labels,
            inputs=dict(zip(model.inputs, columns, strict=True)),
            problem_type=task.problem_type,
            calibration=task.calibration,
            lineage=tuple(ancestor_of(each) for each in lineage(artifact)),
        )


def ancestor_of(each: Artifact | str) -> Ancestor:
    """Return an ancestor as the page shows it."""
    if isinstance(each, str):
        return Ancestor(name=each)
    card, name, place = each.card, each.name, each.path.parent
    if name == "artifact" and place.name.isdecimal():  # in a version folder of a model
        name = f"{place.parent.name}, version {place.name}"
    return Ancestor(
        name=name,
        stage=card.stage,
        precision=card.precision,
        parameters=card.findings.parameters,
        model_mb=card.model_size_bytes / 1e6,
        digest=each.digest[:12],
    )
