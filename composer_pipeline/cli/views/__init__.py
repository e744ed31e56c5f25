"""Everything the command line draws: one state, one pair, a plan, progress. rich lives here."""
