"""Configuration and data for PRIME-RL, which trains in an installation of its own."""
