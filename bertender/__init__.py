"""bertender: a BERT-style encoder made into a small, fast, trustworthy endpoint.

The names of `__all__` are what other code may use. They are loaded when they are first asked for:
the server's own processes import this package and need none of them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertender.api import (
        bundle,
        calibrate,
        classify,
        compare,
        compress,
        deploy,
        distill,
        distill_general,
        export,
        finetune,
        import_model,
        load_task,
        open_model,
        pretrain,
        prune,
        quantize,
        run_recipe,
        score,
        serve,
        verify,
    )
    from bertender.core.artifact import Artifact
    from bertender.core.errors import BertenderError
    from bertender.scoring.scorer import Scorer
    from bertender.tasks.task import Task

# before anything imports ONNX Runtime, whose Linux wheel carries an uploader of usage data
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__all__ = [  # in the order of use, which the pages follow
    "Artifact",
    "Task",
    "BertenderError",
    "load_task",
    "import_model",
    "pretrain",
    "distill_general",
    "finetune",
    "distill",
    "prune",
    "export",
    "quantize",
    "bundle",
    "calibrate",
    "verify",
    "compare",
    "open_model",
    "score",
    "Scorer",
    "serve",
    "classify",
    "deploy",
    "compress",
    "run_recipe",
    "__version__",
]

__version__ = "0.1.0"

if not TYPE_CHECKING:  # a type checker would take any name for one of these

    def __getattr__(name: str) -> Any:
        """Import a name of `__all__` when it is asked for."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from bertender import api

        return getattr(api, name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
