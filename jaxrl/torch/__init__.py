"""Reads, translates and writes ML-Agents' PyTorch checkpoints without torch."""
