"""`python -m benchmarks.tagging`; see `measuring`."""

import typer

from benchmarks.tagging.measuring import run

if __name__ == "__main__":
    typer.run(run)
