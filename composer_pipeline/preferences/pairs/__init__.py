"""A pair is made here: candidates, the rules that keep them, and why a state made none."""
