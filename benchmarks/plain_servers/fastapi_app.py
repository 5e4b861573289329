"""FastAPI around `PlainModel`: each request is a run of its own, padded to its longest text."""

import os
from pathlib import Path

from fastapi import FastAPI
from pydantic import BaseModel

from benchmarks.plain_servers.model import ARTIFACT_VARIABLE, LENGTH_VARIABLE, PlainModel

__all__ = ["Predictions", "Texts", "app"]


class Texts(BaseModel):
    """A request."""

    texts: list[str]


class Predictions(BaseModel):
    """Its response."""

    logits: list[list[float]]


def app() -> FastAPI:
    """Build the application; its settings are variables of the environment."""
    model = PlainModel(Path(os.environ[ARTIFACT_VARIABLE]), int(os.environ[LENGTH_VARIABLE]), None)
    served = FastAPI()

    @served.get("/ready")
    def ready() -> bool:
        return True

    @served.post("/classify")
    def classify(request: Texts) -> Predictions:  # not async: FastAPI runs it on a thread
        return Predictions(logits=model.logits(request.texts).tolist())

    return served
