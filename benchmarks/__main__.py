"""`python -m benchmarks NAME ...` runs a benchmark, `python -m benchmarks` lists them."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import typer

SUBJECTS = (
    *("models", "compress", "methods", "training", "pretraining", "pruning", "quantization"),
    *("gate", "runtimes", "serving", "soak", "bad_clients", "startup", "memory", "rivals"),
    "scoring",
)
TOOLS = ("tables", "figures", "house")


def main() -> None:
    """Run the subject or tool that the first argument names."""
    name = sys.argv[1].replace("-", "_") if len(sys.argv) > 1 else ""
    if name not in (*SUBJECTS, *TOOLS):
        for known in (*SUBJECTS, *TOOLS):
            print(f"{known.replace('_', '-'):14}{_summary(known)}")
        sys.exit(f"\nno benchmark {sys.argv[1]!r}" if name not in ("", "__help") else 0)
    # imported here, so that the list does not wait for PyTorch
    from bertender.core.progress import show_progress

    show_progress()
    module = importlib.import_module(f"benchmarks.{name}")
    app = typer.Typer(add_completion=False)
    app.command(help=module.__doc__)(module.run)
    app(args=sys.argv[2:], prog_name=f"python -m benchmarks {name.replace('_', '-')}")


def _summary(name: str) -> str:
    """Return the first line of a module's docstring."""
    text = (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").splitlines()[0]


if __name__ == "__main__":
    main()
