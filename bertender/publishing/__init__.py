"""Publishing: an artifact's model card, and pushing it to a hub."""
