"""What became of an agent's edits, from git: which added lines people kept, and for how long."""
