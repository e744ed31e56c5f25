"""Runnable examples: four files for users of the library, and the demo (``make demo``)."""
