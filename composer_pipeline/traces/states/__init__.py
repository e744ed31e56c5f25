"""Trajectories to rows: stored messages, chains, states, and how an action ended.

Does not belong here: reading files, and the graph of a file.
"""
