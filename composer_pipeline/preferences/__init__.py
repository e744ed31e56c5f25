"""Preferences: comparing actions, votes, pairs, hints and the quality of the data."""
