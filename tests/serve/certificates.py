"""A certificate of this machine, and a key for a caller."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SECRET = "0123456789abcdef" * 4
KEY = f"Bearer {SECRET}"
CERTIFICATE = (
    *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
    *("-keyout", "server.key", "-out", "server.pem", "-subj", "/CN=localhost"),
    *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
)


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for this machine that signs itself, and its key; skip without openssl."""
    if shutil.which(CERTIFICATE[0]) is None:
        pytest.skip("no certificate without openssl: `apt install openssl` on Debian")
    subprocess.run(CERTIFICATE, cwd=folder, check=True, capture_output=True)
    return folder / "server.pem", folder / "server.key"
