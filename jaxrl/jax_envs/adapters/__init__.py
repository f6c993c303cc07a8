"""Environments of other packages (JaxMARL, gymnax) as JAX environments."""
