"""Plug-ins of other packages: one way to find them, for every kind of plug-in.

Belongs here: reading an entry-point group, loading and checking what it names. Does not
belong here: the protocols themselves (``traces.reading.sources``, ``training.trainer``).

What this library brings itself is passed as ``builtin`` and needs no entry point, so that a
checkout works without being installed again; a built-in's name cannot be taken over.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from composer_pipeline.errors import InputError

T = TypeVar("T")


@dataclass(frozen=True)
class Registry(Generic[T]):
    """All plug-ins of one kind.

    Attributes:
        group: the entry-point group; each entry names a class that takes no arguments.
        what: what such a plug-in is called in errors, for example ``trace source``.
        protocol: a runtime-checkable protocol that an instance must keep.
        builtin: name to class of those that need no entry point.
    """

    group: str
    what: str
    protocol: type[T]
    builtin: Mapping[str, type[T]]

    def names(self) -> list[str]:
        """Return the names: the built-in ones, then the others sorted. Loads nothing."""
        return [*self.builtin, *sorted(self._points())]

    def get(self, name: str, field: str = "") -> T:
        """Return a new instance of the plug-in of this name.

        Args:
            name: as in :meth:`names`.
            field: the field of a user's file that names it, for the error.

        Raises:
            InputError: there is none, it cannot be loaded, or it does not keep the protocol.
        """
        if name in self.builtin:
            return self.builtin[name]()
        point = self._points().get(name)
        if point is None:
            known = ", ".join(sorted(self.names()))
            raise InputError(f"{field and field + ': '}no {self.what} {name!r}; known: {known}")
        try:
            plugin = point.load()()
        except (ImportError, AttributeError, TypeError) as error:
            raise InputError(
                f"{self.what} {name!r} ({point.value}) cannot be loaded: {error}"
            ) from error
        if not isinstance(plugin, self.protocol):
            raise InputError(
                f"{self.what} {name!r} ({point.value}) does not keep the protocol"
                f" {self.protocol.__name__}"
            )
        return plugin

    def _points(self) -> dict[str, EntryPoint]:
        found = {point.name: point for point in entry_points(group=self.group)}
        return {name: point for name, point in found.items() if name not in self.builtin}
