"""`jaxrl dashboard`: a local page that follows the runs in a results folder."""
