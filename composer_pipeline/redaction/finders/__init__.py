"""What looks at a text and says where something private stands: no table, but code.

Belongs here: finders of assignments, commands, structures and persons. Does not belong here:
replacing what was found (``redaction.engine``).
"""
