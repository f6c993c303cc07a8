"""Runs the benchmark scripts of this folder for `jaxrl bench`: one process each, one table, one file of numbers."""

from benchmarks.runner.suite import run

__all__ = ["run"]
