"""Bytes to records: whose logs a file holds, its lines, and what one record says.

Does not belong here: how records relate to each other (``traces.graph``).
"""
