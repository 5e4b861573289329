"""How often the gate is wrong."""
