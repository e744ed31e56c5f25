"""Which table of the lake feeds which channel.

Belongs here: names. Does not belong here: reading (``training.data.build``).
"""

from collections.abc import Iterable

#: Channel to the table that has one row for each of its rows.
TABLE_OF = {
    "grpo": "dataset_groups",
    "sdpo": "dataset_hints",
    "dpo": "dataset_pairs",
    "sft": "dataset_groups",
}
#: Channel to the tables that are looked up besides.
_ALSO = {"sdpo": ("dataset_groups",)}


def tables_of(channels: Iterable[str]) -> list[str]:
    """Return the tables whose content decides the rows of the channels, sorted."""
    return sorted({t for c in channels for t in (TABLE_OF[c], *_ALSO.get(c, ()))})
