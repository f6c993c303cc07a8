"""Scripts that measure jaxrl; those that `jaxrl bench` runs take `--json FILE` and `--quick`."""
