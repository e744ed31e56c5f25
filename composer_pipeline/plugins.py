"""Plug-ins of other packages, found through entry points."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from composer_pipeline.errors import InputError

T = TypeVar("T")


@dataclass(frozen=True)
class Registry(Generic[T]):
    """All plug-ins of one kind."""

    #: The entry-point group; each entry names a class that takes no arguments.
    group: str
    #: What such a plug-in is called in errors, for example ``trace source``.
    what: str
    #: A runtime-checkable protocol that an instance must implement.
    protocol: type[T]
    #: Name -> class of those that need no entry point; they cannot be replaced.
    builtin: Mapping[str, type[T]]
    #: Name -> class of those that the running program added.
    registered: dict[str, type[T]] = field(default_factory=dict)

    def register(self, name: str, plugin: type[T]) -> None:
        """Add a plug-in of a script or notebook, before the first use of this registry."""
        if name in self.names():
            raise InputError(f"{self.what} {name!r} is known already")
        self._checked(plugin(), name, plugin.__qualname__)
        self.registered[name] = plugin

    def names(self) -> list[str]:
        """Return the names: the built-in ones, then the others sorted. Loads nothing."""
        return [*self.builtin, *sorted({*self.registered, *self._points()})]

    def get(self, name: str, field: str = "") -> T:
        """Return a new instance of the plug-in of this name."""
        if plugin := self.builtin.get(name) or self.registered.get(name):
            return plugin()
        point = self._points().get(name)
        if point is None:
            known = ", ".join(sorted(self.names()))
            raise InputError(f"{field and field + ': '}no {self.what} {name!r}; known: {known}")
        try:
            found = point.load()()
        except (ImportError, AttributeError, TypeError) as error:
            raise InputError(
                f"{self.what} {name!r} ({point.value}) cannot be loaded: {error}"
            ) from error
        return self._checked(found, name, point.value)

    def _checked(self, plugin: object, name: str, value: str) -> T:
        if not isinstance(plugin, self.protocol):
            raise InputError(
                f"{self.what} {name!r} ({value}) does not implement the protocol"
                f" {self.protocol.__name__}"
            )
        return plugin

    def _points(self) -> dict[str, EntryPoint]:
        found = {point.name: point for point in entry_points(group=self.group)}
        return {name: point for name, point in found.items() if name not in self.builtin}
