"""The corpus, for templates that have to take real prompts."""

from tests.fixtures.sessions import corpus, unpacked

__all__ = ["corpus", "unpacked"]
