"""`python -m benchmarks.fusion`; see `measuring`."""

import typer

from benchmarks.fusion.measuring import run

if __name__ == "__main__":
    typer.run(run)
