"""Publishing: the model card of an artifact, and its way to a hub."""
