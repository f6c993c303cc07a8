"""`jaxrl tournament`: policies of runs play against each other."""
