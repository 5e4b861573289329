"""A process of bad clients: `python -m benchmarks.bad_clients.process`.

It is not the load generator's, whose requests would wait for those of bad clients. Each line
"KIND<tab>TARGET" of standard input begins a turn of that kind, and an empty line comes back after
its first act. The next line ends the turn: what the clients got comes back, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from benchmarks.bad_clients.kinds import KINDS, Target
from bertender.comparison.latency import LineProcess

__all__ = ["MODULE", "begin_turn", "end_turn", "main"]

MODULE = "benchmarks.bad_clients.process"


def begin_turn(process: LineProcess, kind: str, target: Target) -> None:
    """Let clients of a kind act; return after their first act."""
    process.ask(f"{kind}\t{target.model_dump_json()}")


def end_turn(process: LineProcess) -> dict[str, int]:
    """End the turn; return how many responses of each status there were."""
    responses: dict[str, int] = json.loads(process.ask(""))
    return responses


class _Turn:
    """Clients of a kind, from their first act until they end."""

    def __init__(self) -> None:
        self.begun, self.over = Event(), Event()

    def take(self, kind: str, target: Target) -> Counter[str]:
        try:
            return KINDS[kind](target, self._ends)
        finally:
            self.begun.set()  # where it fails, nothing has set it

    def _ends(self, wait_s: float) -> bool:
        self.begun.set()
        return self.over.wait(wait_s)


def main() -> None:
    """Take turns until the input ends."""
    with ThreadPoolExecutor(1) as pool:
        for line in iter(sys.stdin.readline, ""):
            kind, _, target = line.partition("\t")
            turn = _Turn()
            acting = pool.submit(turn.take, kind, Target.model_validate_json(target))
            turn.begun.wait()
            print(flush=True)
            sys.stdin.readline()
            turn.over.set()
            print(json.dumps(acting.result()), flush=True)


if __name__ == "__main__":
    main()
