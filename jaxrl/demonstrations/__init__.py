"""Demonstrations: recordings of an expert at the task, as Unity's `.demo` files. No JAX here."""

from jaxrl.demonstrations.reading import Demonstration, decisions, read, remembered
from jaxrl.demonstrations.records import DemonstrationError
from jaxrl.demonstrations.writing import Pair, write

__all__ = ["Demonstration", "DemonstrationError", "Pair", "decisions", "read", "remembered", "write"]
