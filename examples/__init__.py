"""Runnable examples of the library, and the demo."""
