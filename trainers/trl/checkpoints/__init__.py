"""Checkpoints: the one a run writes, the one it starts from, and merged weights.

A checkpoint holds nothing of the machine that wrote it: no path, no user name.
"""
