"""Episodes that are followed one by one, on the host. Numpy only."""
