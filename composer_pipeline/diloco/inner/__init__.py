"""A replica's private state, so that a kill costs a few steps and no moments.

Belongs here: its file (``file``), what every replica has in it (``parts``), and whether it fits
the log (``keeping``). Does not belong here: when it is written (``diloco.callback``), and what a
trainer adds of its own.
"""
