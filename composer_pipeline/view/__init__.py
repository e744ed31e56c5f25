"""The viewer: every state of a lake, its session, its answers and what came of it, in a browser."""
