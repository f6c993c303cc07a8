"""Booking of the environments' agents in fixed rows of the trajectory buffer. Numpy only."""
