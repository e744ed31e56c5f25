"""Whom to ask next, and when enough has been asked. It knows no money and no HTTP."""
