"""Memory of training steps."""
