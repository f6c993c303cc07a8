"""Runs the benchmarks of `jaxrl bench`, one process per script, and keeps, compares and follows their numbers."""
