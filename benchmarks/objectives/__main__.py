"""`python -m benchmarks.objectives`; see `measuring`."""

import typer

from benchmarks.objectives.measuring import run

if __name__ == "__main__":
    typer.run(run)
