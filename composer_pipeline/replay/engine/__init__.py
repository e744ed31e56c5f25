"""Asking teachers and surviving anything: order, windows, retries, the run and its report.

Does not belong here: what a call may cost (``replay.provider``), the arithmetic of ceilings
(``replay.ledger``) and which states are worth asking (``replay.selection``).
"""
