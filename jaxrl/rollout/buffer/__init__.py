"""The trajectory buffer on the device, and the host's copy of its pages."""
