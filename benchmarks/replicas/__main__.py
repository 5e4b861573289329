"""`python -m benchmarks.replicas`; see `measuring`."""

import typer

from benchmarks.replicas.measuring import run

if __name__ == "__main__":
    typer.run(run)
