"""Load of a machine by other work while something was timed."""

from __future__ import annotations

from pydantic import Field

from bertender.core.config import Record

__all__ = ["BUSY_SHARE", "MachineLoad"]

BUSY_SHARE = 0.05
"""Of the cores' time; below it, others hardly change a time."""


class MachineLoad(Record):
    """Other load of the usable cores during a measurement, as shares of all their time."""

    other_work: float | None = Field(
        description="share that other processes had; None where the system does not report it"
    )
    steal: float | None = Field(
        description="share that the hypervisor gave to other machines; None as above"
    )

    @property
    def busy(self) -> float:
        """Share of the cores' time that was not the measurement's to use; 0 where unknown."""
        return (self.other_work or 0.0) + (self.steal or 0.0)

    @property
    def noisy(self) -> bool:
        """Whether the load makes figures of that time unreliable."""
        return self.busy > BUSY_SHARE

    def __str__(self) -> str:
        if self.other_work is None or self.steal is None:
            return "load unknown: this system does not report it"
        return (
            f"other work had {self.other_work:.1%} of the cores' time, and {self.steal:.1%} "
            "was stolen by the hypervisor"
        )
