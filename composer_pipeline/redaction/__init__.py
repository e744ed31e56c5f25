"""Finding and replacing secrets, names and places in texts and JSON values."""
