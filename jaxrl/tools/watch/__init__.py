"""`jaxrl watch`: a game played by a policy, as a film."""
