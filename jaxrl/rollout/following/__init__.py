"""Episodes that somebody follows one by one, on the host. Numpy only."""
