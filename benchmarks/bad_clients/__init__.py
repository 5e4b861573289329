"""Good requests beside bad ones."""
