"""`jaxrl tournament`: lets policies of runs play against each other."""
