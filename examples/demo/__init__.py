"""``make demo`` and ``make dev``: the whole graph on the bundled sessions, without a key."""
