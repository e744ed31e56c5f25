"""What gives a secret away, as data: a row each, and a test for each row.

Belongs here: tables. Does not belong here: how they are applied (``redaction.engine``,
``redaction.finders.structures``, ``redaction.finders.commands``).
"""
