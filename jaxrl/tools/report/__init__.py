"""`jaxrl report`: learning curves, tables and time of runs in one file."""
