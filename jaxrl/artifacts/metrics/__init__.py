"""Statistics on their way out: tags and aggregation, TensorBoard, console, progress bar, timers."""
