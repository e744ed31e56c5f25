"""The fixtures of replaying tests: a lake with made-up states and teachers on loopback."""

from tests.fixtures.replaying import lake, serve, target, teacher_set
from tests.fixtures.sessions import corpus, unpacked

__all__ = ["corpus", "lake", "serve", "target", "teacher_set", "unpacked"]
