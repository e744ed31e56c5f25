"""The fixtures that these tests share with those of the package."""

from tests.conftest import _no_user_settings, root
from tests.fixtures.replaying import lake, serve, target, teacher_set

__all__ = ["_no_user_settings", "lake", "root", "serve", "target", "teacher_set"]
