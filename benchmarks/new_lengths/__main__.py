"""`python -m benchmarks.new_lengths`; see `measuring`."""

import typer

from benchmarks.new_lengths.measuring import run

if __name__ == "__main__":
    typer.run(run)
