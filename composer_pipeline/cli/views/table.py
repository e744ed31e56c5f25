"""The command line's table: what stands in a cell is text, never markup.

Belongs here: the table that every command prints. Does not belong here: what is in it. ``rich``
reads ``[...]`` in a string as style: a prompt with ``[/api]`` ends in a traceback, and ``[slug]``
vanishes. ``rich.table.Table`` is therefore banned elsewhere in this room (``TID251``).
"""

from typing import Any

from rich.console import RenderableType
from rich.table import Table as _RichTable
from rich.text import Text


class Table(_RichTable):
    """A ``rich`` table whose strings, title and headers included, are shown as they are."""

    def __init__(self, *headers: Any, title: str | Text | None = None, **options: Any) -> None:
        heads = [Text(head) if isinstance(head, str) else head for head in headers]
        super().__init__(title=Text(title) if isinstance(title, str) else title, **options)
        for head in heads:
            self.add_column(head)

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Add a row; a string is text."""
        super().add_row(
            *(Text(cell) if isinstance(cell, str) else cell for cell in cells), **options
        )
