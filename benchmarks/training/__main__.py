"""`python -m benchmarks.training`; see `measuring`."""

import typer

from benchmarks.training.measuring import run

if __name__ == "__main__":
    typer.run(run)
