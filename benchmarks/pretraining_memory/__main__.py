"""`python -m benchmarks.pretraining_memory`; see `measuring`."""

import typer

from benchmarks.pretraining_memory.measuring import run

if __name__ == "__main__":
    typer.run(run)
