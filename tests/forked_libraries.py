"""What processes of `tests.forked` have loaded when they start."""

import bertender.commands.recipe_commands
import tests.conftest  # noqa: F401
