"""`python -m benchmarks.soak`; see `measuring`."""

import typer

from benchmarks.soak.measuring import run

if __name__ == "__main__":
    typer.run(run)
