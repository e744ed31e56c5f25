"""Bundled sample sessions, the scripts that write them, and what careful teachers would do."""
