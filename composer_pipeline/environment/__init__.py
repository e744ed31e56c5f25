"""Recorded sessions as an environment: an episode goes on for as long as it is on the trace.

Belongs here: which part of a session can be replayed, what a step earns, the OpenEnv server and
its client for TRL. Does not belong here: when two actions are the same
(``preferences.actions``), the rewards of recorded answers (``training.rewards``), and training.
``server`` and ``client`` need the extra ``environment`` and are imported by their names.
"""
