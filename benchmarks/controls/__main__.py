"""`python -m benchmarks.controls`; see `measuring`."""

import typer

from benchmarks.controls.measuring import run

if __name__ == "__main__":
    typer.run(run)
