"""The fixtures of replaying tests: a lake with made-up states and teachers on loopback."""

from tests.fixtures.replaying import lake, serve, target, teacher_set

__all__ = ["lake", "serve", "target", "teacher_set"]
