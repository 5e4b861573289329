"""The door as a separate process: python -m serve.door START, a file of `server.Start`.

It reports through a pipe: its ports once it is ready, or the error that ends it. It ends on
SIGTERM, and when its standard input closes, which also happens if the owner is killed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

from bertender.core.errors import BertenderError
from serve.config import PORT_FIELDS, ServeConfig
from serve.door.process import process_of, run
from serve.server.server import Server, Start, report_of


def main(arguments: list[str]) -> int:
    """Serve until told to leave; return the exit status."""
    (file,) = arguments
    logging.basicConfig(format="bertender: %(message)s", level=logging.WARNING)
    start = Start.model_validate_json(Path(file).read_text(encoding="utf-8"))
    with os.fdopen(start.reports, "w", encoding="utf-8") as reports:

        def report(content: dict[str, object]) -> None:
            reports.write(json.dumps(content) + "\n")
            reports.flush()

        try:
            run(_serve(start, report))
        except BertenderError as error:
            report({**report_of(error)})
            return 1
    return 0


async def _serve(start: Start, report: Callable[[dict[str, object]], None]) -> None:
    workspace, config = start.opened(), start.config
    server = Server(start.repository, config, workspace)

    def ready(config: ServeConfig) -> None:
        server.note(config)
        report({name: getattr(config, name) for name in ("host", "metrics_host", *PORT_FIELDS)})

    process = process_of(start.repository, config, workspace)
    loop = asyncio.get_running_loop()

    def owner_speaks() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            loop.remove_reader(sys.stdin.fileno())
            process.leave()

    loop.add_reader(sys.stdin.fileno(), owner_speaks)
    await process.run(ready)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
