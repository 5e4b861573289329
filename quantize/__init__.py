"""Quantization: from an ONNX artifact to a smaller, faster one with nearly the same outputs."""
