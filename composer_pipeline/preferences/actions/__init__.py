"""When are two actions the same? Canonical forms, levels of equality, knowledge of files.

Does not belong here: votes over several actions (``preferences.agreement``).
"""
