"""The folder of a run: what makes it the same run, its lock, its events, what it was made of.

``identity`` and ``content`` say when a finished run may be used again, ``folder`` keeps two
processes out of one folder, ``events`` is ``metrics.jsonl``, ``card`` the README of a checkpoint.
"""
