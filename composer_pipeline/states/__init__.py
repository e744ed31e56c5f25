"""Trace states: the type, loading them, and previews of tables."""
