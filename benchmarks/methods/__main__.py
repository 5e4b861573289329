"""`python -m benchmarks.methods`; see `measuring`."""

import typer

from benchmarks.methods.measuring import run

if __name__ == "__main__":
    typer.run(run)
