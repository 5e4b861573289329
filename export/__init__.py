"""From a trained model to an ONNX graph that answers the same."""
