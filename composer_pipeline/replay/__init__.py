"""Teachers answer recorded states through OpenRouter, under an exact cost ceiling."""
