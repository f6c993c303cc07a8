"""What is stored: the trajectory buffer on the device, and the host's mirror of it."""
