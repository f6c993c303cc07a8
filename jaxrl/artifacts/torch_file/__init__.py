"""PyTorch's files of arrays, read and written without PyTorch."""
