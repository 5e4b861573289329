"""The commands: each parses, builds a config, calls one function, and shows the result."""
