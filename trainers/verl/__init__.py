"""Trains with verl's FSDP2 engine, without Ray."""
