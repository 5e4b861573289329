"""`python -m benchmarks.step_memory`; see `measuring`."""

import typer

from benchmarks.step_memory.measuring import run

if __name__ == "__main__":
    typer.run(run)
