"""`--env gymnasium:ID`: any environment that is registered with Gymnasium."""
