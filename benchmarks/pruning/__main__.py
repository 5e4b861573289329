"""`python -m benchmarks.pruning`; see `measuring`."""

import typer

from benchmarks.pruning.measuring import run

if __name__ == "__main__":
    typer.run(run)
