"""`python -m benchmarks.quantization`; see `measuring`."""

import typer

from benchmarks.quantization.measuring import run

if __name__ == "__main__":
    typer.run(run)
