"""Where a ledger is kept: what a database must offer, its tables, SQLite and PostgreSQL.

Does not belong here: what may happen to an attempt (``replay.ledger.rules``).
"""
