"""Self-play without a loop: ratings, the pool of earlier selves, who learns when, and a game of all of them. No JAX."""
