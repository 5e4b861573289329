"""`python -m benchmarks.foreign_load`; see `measuring`."""

import typer

from benchmarks.foreign_load.measuring import run

if __name__ == "__main__":
    typer.run(run)
