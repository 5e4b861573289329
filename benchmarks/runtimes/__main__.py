"""`python -m benchmarks.runtimes`; see `measuring`."""

import typer

from benchmarks.runtimes.measuring import run

if __name__ == "__main__":
    typer.run(run)
