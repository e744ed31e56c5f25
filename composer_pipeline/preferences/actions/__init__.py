"""When two actions are the same."""
