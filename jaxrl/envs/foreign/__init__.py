"""Environments that others wrote for Python, stepped by the host loop: what Gymnasium's and PettingZoo's share."""
