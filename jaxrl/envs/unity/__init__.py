"""Runs a Unity build or the Editor as an environment: launch, handshake, messages to arrays. Numpy only."""
