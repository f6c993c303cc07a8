"""Makes the checks of `jaxrl doctor`: whether this machine, and one environment on it, are fit for training."""
