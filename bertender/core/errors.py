"""Everything that bertender raises on purpose, in one tree.

    BertenderError                 the root: one `except` catches all of it
    ├── ConfigError                a value that cannot be accepted
    │   └── UnknownNameError       a name that is not a row of its table; names the nearest one
    ├── DataError                  a data file is wrong: names file, row and column
    │   └── RowError               one of its rows is, and the others can do without it
    ├── HubUnreachableError        a model or data set is neither local nor reachable
    ├── HubRefusedError            a hub does not take what is pushed to it
    ├── ArtifactError              a directory is not a usable artifact
    │   ├── NotAnArtifactError     there is no artifact.json, or it cannot be read
    │   ├── DamagedArtifactError   files are missing or differ from their recorded digest
    │   └── BusyError              another process is building it
    ├── TrainingError              a training run cannot continue
    │   └── ConstantError          a model predicts one label everywhere
    ├── ModelError                 a model cannot serve what is asked of it
    │   ├── GateError              a gate refuses how it was quantized; another scheme may pass
    │   ├── UnsoundGraphError      a graph computes what it should not, whatever its scheme
    │   ├── HubCodeError           its config names code that would be fetched and run
    │   └── RuntimeMissingError    what would run it is not installed
    ├── RefusedError               a check was made, and it said no
    │   ├── ParityError            a candidate does not agree with its reference
    │   ├── AccuracyError          a model lost more of its score than was allowed
    │   ├── DriftError             recent texts are unlike those that a model was trained for
    │   └── DeploymentError        a model does not take the place of the served one
    ├── MachineBusyError           other work disturbs what is timed
    ├── LoadTestError              a load test has no figure that can be trusted
    └── ServingError               the inference server cannot start or respond
        ├── ServerMissingError     there is no Triton binary
        ├── PortTakenError         another process listens on the port
        ├── UnreachableError       no endpoint responds at an address
        ├── OverloadedError        the server is there, and rejects a request for now
        └── DeadlineError          the response to a request did not come in time

A message carries the value, what was allowed, and the next step. A command exits with 1 for a
RefusedError, which ConstantError, GateError and UnsoundGraphError are too, as `diff` and `grep` do;
and with 2 where something could not be done.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar


class BertenderError(Exception):
    """Root of every error that bertender raises on purpose.

    Example:
        try:
            bertender.distill("runs/teacher", out="runs/student", layer=2)
        except bertender.BertenderError as error:
            print(error)  # names the unknown setting and the nearest known one
    """

    exit_code: ClassVar[int] = 2
    """Of a command that raises it."""


class RefusedError(BertenderError):
    """A check was made, and it said no."""

    exit_code = 1


class ConfigError(BertenderError):
    """A setting has a value that cannot be accepted."""


class UnknownNameError(ConfigError):
    """A name is not a row of the table that it is looked up in."""

    def __init__(
        self, kind: str, name: str, known: Iterable[str], *, setting: str | None = None
    ) -> None:
        self.kind, self.name, self.known = kind, name, tuple(known)
        names = sorted(self.known)
        where = f"{setting}: " if setting else ""
        super().__init__(
            f"{where}no {kind} {name!r}.{nearest_hint(name, names)} Known: {', '.join(names)}."
        )


class DataError(BertenderError):
    """A data file cannot be used; the message names file, row and column."""


class RowError(DataError):
    """A row of a data file cannot be used, and the other rows can do without it."""

    def __init__(self, path: Path, place: str, reason: str) -> None:
        super().__init__(f"{path}, {place}: {reason}")
        self.path = path
        self.place = place
        self.reason = reason


class HubUnreachableError(BertenderError):
    """A model or a data set is not on this machine and no hub responds."""


class HubRefusedError(BertenderError):
    """A hub does not take a model: no token, no rights, or a repository that holds other things."""


class ArtifactError(BertenderError):
    """A directory cannot be used as an artifact."""


class NotAnArtifactError(ArtifactError):
    """A directory has no readable artifact.json."""


class DamagedArtifactError(ArtifactError):
    """An artifact's files are missing or differ from their recorded digests."""


class BusyError(ArtifactError):
    """Another process is building the artifact."""


class TrainingError(BertenderError):
    """A training run cannot continue."""


class ConstantError(TrainingError, RefusedError):
    """A model predicts one label everywhere, though the true labels are several."""


class ModelError(BertenderError):
    """A model cannot be used for the request."""


class GateError(ModelError, RefusedError):
    """A gate refuses a quantized graph; one of another scheme may pass it."""


class UnsoundGraphError(ModelError, RefusedError):
    """A graph does not compute what it should on this machine, and no other scheme would."""


class HubCodeError(ModelError):
    """A model's config names code that transformers would fetch from a hub and run."""


class RuntimeMissingError(ModelError):
    """A runtime is not installed; the message names the extra that brings it."""


class ParityError(RefusedError):
    """A candidate does not agree with its reference."""


class AccuracyError(RefusedError):
    """A model lost more of its score than was allowed."""


class DriftError(RefusedError):
    """Recent texts are unlike those that a model was trained for."""


class MachineBusyError(BertenderError):
    """Other work disturbs what is timed."""


class LoadTestError(BertenderError):
    """A load test has no figure that can be trusted: its generator was late, or no rate holds."""


class DeploymentError(RefusedError):
    """A model does not take the place of the served one, which serves as before."""


class ServingError(BertenderError):
    """The inference server cannot start or respond."""


class ServerMissingError(ServingError):
    """There is no Triton binary on this machine."""


class PortTakenError(ServingError):
    """Another process listens on a port that the server needs."""


class UnreachableError(ServingError):
    """No endpoint responds at an address."""


class OverloadedError(ServingError):
    """The server rejects a request for now: it has more work than it takes on."""


class DeadlineError(ServingError):
    """The response to a request did not come in time."""


def nearest_hint(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the known name nearest to `name`, else an empty string."""
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""
