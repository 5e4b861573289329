"""`python -m benchmarks.float_parity`; see `measuring`."""

import typer

from benchmarks.float_parity.measuring import run

if __name__ == "__main__":
    typer.run(run)
