"""Float graphs in other runtimes against ONNX Runtime."""
