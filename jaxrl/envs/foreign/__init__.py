"""Common parts of Gymnasium's and PettingZoo's environments, which others wrote for Python, in the host loop."""
