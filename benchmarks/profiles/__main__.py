"""`python -m benchmarks.profiles`; see `measuring`."""

import typer

from benchmarks.profiles.measuring import run

if __name__ == "__main__":
    typer.run(run)
