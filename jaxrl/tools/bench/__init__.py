"""The benchmarks of `jaxrl bench`: their scripts run one process each; their numbers are kept, compared, followed."""
