"""`python -m benchmarks.request_costs`; see `measuring`."""

import typer

from benchmarks.request_costs.measuring import run

if __name__ == "__main__":
    typer.run(run)
