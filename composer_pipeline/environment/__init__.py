"""Recorded sessions as an OpenEnv environment, with a client for TRL."""
