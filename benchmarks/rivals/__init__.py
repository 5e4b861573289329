"""Other libraries that run the same model, and bertender among them."""
