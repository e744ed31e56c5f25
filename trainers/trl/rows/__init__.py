"""Rows on their way into a forward: which, in what order, in which micro-batch."""
