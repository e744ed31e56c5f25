"""What maintainers run by hand; nothing of it is in the wheel."""
