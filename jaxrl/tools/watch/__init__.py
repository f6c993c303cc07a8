"""`jaxrl watch`: makes a film of a game played by a policy."""
