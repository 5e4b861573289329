"""`python -m benchmarks.bad_clients`; see `measuring`."""

import typer

from benchmarks.bad_clients.measuring import run

if __name__ == "__main__":
    typer.run(run)
