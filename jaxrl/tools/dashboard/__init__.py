"""`jaxrl dashboard`: serves a local page that follows the runs in a results folder."""
