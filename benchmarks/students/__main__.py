"""`python -m benchmarks.students`; see `measuring`."""

import typer

from benchmarks.students.measuring import run

if __name__ == "__main__":
    typer.run(run)
