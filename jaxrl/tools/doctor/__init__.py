"""Whether this machine, and one environment on it, are fit for training: what `jaxrl doctor` looks at."""
