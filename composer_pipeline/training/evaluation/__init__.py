"""Held-out evaluation: the stage, and the process that loads the model."""
