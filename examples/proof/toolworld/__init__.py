"""Toolworld: a world small enough to know the truth, recorded as real sessions."""
