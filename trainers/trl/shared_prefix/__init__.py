"""One prefix, one forward: sequences with equal beginnings run through the model once."""
