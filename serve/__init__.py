"""Endpoints: model repositories, the Triton server that runs them, and the client."""
