"""Training: recipes, token windows, rewards, the trainer protocol and run folders; no torch."""
