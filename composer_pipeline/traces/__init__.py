"""Stage 1: archive session files, read their records, build the turn graph, write the tables."""
