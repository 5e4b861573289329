"""`python -m benchmarks.gate`; see `measuring`."""

import typer

from benchmarks.gate.measuring import run

if __name__ == "__main__":
    typer.run(run)
