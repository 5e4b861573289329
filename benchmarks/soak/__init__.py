"""Minutes below an endpoint's limit, and twice the limit."""
