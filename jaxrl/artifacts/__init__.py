"""Files of a run: checkpoints, ONNX files, metrics, the run folder."""
