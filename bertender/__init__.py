"""bertender: a BERT-style encoder made into a small, fast, trustworthy endpoint."""

import os

# before anything imports ONNX Runtime, whose Linux wheel carries an uploader of usage data
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__all__ = ["__version__"]

__version__ = "0.1.0"
