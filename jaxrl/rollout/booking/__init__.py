"""Who sits where: agents of the environments, and the fixed rows of the trajectory buffer. Numpy only."""
