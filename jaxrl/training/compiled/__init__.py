"""The compiled loop: environment and learner in one program, many seeds. Read trainer.py first."""
