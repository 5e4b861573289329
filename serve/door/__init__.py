"""The door: what listens for HTTP and gRPC, and passes requests to an engine."""

import os

# read when gRPC is loaded: with a line for each failed handshake, anybody could fill the disk
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
