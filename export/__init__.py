"""From a trained model to an ONNX graph with the same outputs."""
