"""`python -m benchmarks.serving`; see `measuring`."""

import typer

from benchmarks.serving.measuring import run

if __name__ == "__main__":
    typer.run(run)
