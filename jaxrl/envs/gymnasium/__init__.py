"""`--env gymnasium:ID`: serves any environment that is registered with Gymnasium."""
