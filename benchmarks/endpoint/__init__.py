"""What one endpoint does under load."""
