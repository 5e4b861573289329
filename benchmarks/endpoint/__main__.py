"""`python -m benchmarks.endpoint`; see `measuring`."""

import typer

from benchmarks.endpoint.measuring import run

if __name__ == "__main__":
    typer.run(run)
