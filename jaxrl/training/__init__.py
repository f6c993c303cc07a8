"""The two training loops and what both need: saving and loading, interrupts, the one recorder."""
