"""`--env pettingzoo:MODULE`: serves PettingZoo's parallel environments, and those with turns by its own conversion."""
