"""The model that is trained: loading it, running it, letting it answer, and its teachers."""
