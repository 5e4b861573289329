"""`python -m benchmarks.starting`; see `measuring`."""

import typer

from benchmarks.starting.measuring import run

if __name__ == "__main__":
    typer.run(run)
