"""States."""
