"""What a request costs beside its model."""
