"""Runs environments in worker processes behind one `send` and `recv`. Numpy only."""
