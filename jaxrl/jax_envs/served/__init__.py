"""JAX environments served by a player process, as a Unity build would be."""
