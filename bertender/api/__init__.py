"""The Python functions of bertender: paths or objects go in, artifacts or records come out.

Each runs the stage of its name with the settings of its command; an unknown setting is refused as
there. What takes seconds to load is imported inside of the functions: `classify` only asks.
"""

from __future__ import annotations

from bertender.api.making import (
    compress,
    distill,
    distill_general,
    export,
    finetune,
    import_model,
    load_task,
    pretrain,
    prune,
    quantize,
)
from bertender.api.measuring import compare, open_model, verify
from bertender.api.recipes import run_recipe
from bertender.api.serving import classify, deploy, serve

__all__ = [
    "classify",
    "compare",
    "compress",
    "deploy",
    "distill",
    "distill_general",
    "export",
    "finetune",
    "import_model",
    "load_task",
    "open_model",
    "pretrain",
    "prune",
    "quantize",
    "run_recipe",
    "serve",
    "verify",
]
