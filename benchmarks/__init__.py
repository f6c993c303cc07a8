"""Scripts that measure jaxrl, each with `--json FILE` and `--quick`, and the runner of `jaxrl bench`."""
