"""WAYS: how `benchmarks.controls` trains students, with a teacher and on labels alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distill.distillation.distiller import DistillConfig

__all__ = ["CONTROLS", "ENCODER", "FURTHER_TEXTS", "STUDENT", "WAYS", "Way"]

ENCODER = "ENCODER"
"""Placeholder in settings: the encoder that the teacher was fine-tuned from."""
STUDENT = "STUDENT"
"""Placeholder in settings: the encoder of `--student`."""
FURTHER_TEXTS = "FURTHER_TEXTS"
"""Placeholder in settings: the file of further texts."""


@dataclass(frozen=True)
class Way:
    """A way to train a student: settings of `distill`."""

    settings: Mapping[str, Any]
    control: str | None = None
    """The control that it is a length of; None of a way that distils."""

    @property
    def is_of_student(self) -> bool:
        """Whether its student is made of the encoder of `--student`."""
        return STUDENT in self.settings.values()

    def config(
        self, shared: Mapping[str, Any], seed: int, names: Mapping[str, Any]
    ) -> DistillConfig:
        """Return its settings, in which each of `names` has its value."""
        own = {
            name: names.get(value, value) if isinstance(value, str) else value
            for name, value in self.settings.items()
        }
        lengths = own.pop("lengths", 1)
        fixed = {"seed": seed, "allow_constant": True}
        settings = {"vocab_size": "all", **shared, **own, **fixed}
        return DistillConfig.parse({**settings, "epochs": settings["epochs"] * lengths})


def _controls(name: str, longer: tuple[int, ...], **settings: Any) -> dict[str, Way]:
    return {
        f"{name}-{lengths}": Way({"lengths": lengths, **settings}, name) for lengths in (1, *longer)
    }


WAYS: Mapping[str, Way] = {
    **_controls("hard", (3,), method="hard"),
    **_controls("hard-encoder", (3,), method="hard", student=ENCODER),
    # on a task, its student learns from labels alone
    **_controls("labels", (5, 10, 40), method="small-vocab", student=STUDENT),
    "distilbert": Way({"method": "distilbert"}),
    "tinybert": Way({"method": "tinybert", "earlier_epochs": 4, "earlier_learning_rate": 1e-4}),
    "minilm": Way({"method": "minilm"}),
    "static": Way({"method": "static", "epochs": 5, "learning_rate": 1e-3, "layers": None}),
    "pd": Way({"method": "pd", "student": STUDENT, "lengths": 3}),
    "pd-further-texts": Way({"method": "pd", "student": STUDENT, "unlabelled": FURTHER_TEXTS}),
    "pd-further-texts-2": Way(
        {"method": "pd", "student": STUDENT, "unlabelled": FURTHER_TEXTS, "lengths": 2}
    ),
}
CONTROLS = tuple(dict.fromkeys(way.control for way in WAYS.values() if way.control))
