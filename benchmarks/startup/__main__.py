"""`python -m benchmarks.startup`; see `measuring`."""

import typer

from benchmarks.startup.measuring import run

if __name__ == "__main__":
    typer.run(run)
