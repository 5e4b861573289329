"""What processes of `tests.forked` have loaded when they start."""

import tests.conftest  # noqa: F401
