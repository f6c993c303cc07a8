"""The host loop: environments in processes of their own, one compiled call per message. Read loop.py first."""
