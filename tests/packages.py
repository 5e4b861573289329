"""The packages of the project, and where they are."""

from __future__ import annotations

from pathlib import Path

PACKAGES = ("bertender", "distill", "export", "quantize", "serve")
ROOT = Path(__file__).parents[1]
