"""The packages of the project, and those of npm that tests use, and where they are."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

PACKAGES = ("bertender", "distill", "export", "quantize", "serve")
ROOT = Path(__file__).parents[1]

NODE_MODULES = Path(
    os.environ.get("BERTENDER_NODE_MODULES", ROOT / "build" / "npm" / "node_modules")
)
"""Where npm has put transformers.js."""
HAS_NODE = (
    shutil.which("node") is not None and (NODE_MODULES / "@huggingface" / "transformers").is_dir()
)
needs_node = pytest.mark.skipif(
    not HAS_NODE,
    reason=f"no node, or no @huggingface/transformers in {NODE_MODULES}: set "
    "BERTENDER_NODE_MODULES",
)
needs_extensions = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_extensions") is None,
    reason="onnxruntime-extensions is not installed",
)
