"""8-bit models: from an ONNX artifact to a smaller, faster one that answers nearly the same."""
