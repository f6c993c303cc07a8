"""The ONNX file that Unity loads: built, checked and compared with the policy."""
