"""What the base model thinks of the rows, before any training: scores and the hint gate."""
