"""How soon an endpoint responds, and its memory."""
