"""All that jaxrl knows of ML-Agents' PyTorch checkpoints: read, translated and written without torch."""
