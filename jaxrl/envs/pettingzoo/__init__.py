"""`--env pettingzoo:MODULE`: parallel environments of PettingZoo, and those with turns through its own conversion."""
