"""Client of an endpoint: texts in, predictions out, over HTTP or gRPC.

A file a protocol (`http.py`, `grpc.py`), and one each for `Endpoint` and `AsyncEndpoint`.
"""
