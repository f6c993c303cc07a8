"""What a run leaves behind: checkpoints, ONNX files, metrics, the run folder."""
