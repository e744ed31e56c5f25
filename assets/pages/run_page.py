"""Numbers of a run, on the run: as tags in the list of runs, and as a line of its log.

Belongs here: what holds for a whole run however many days it has. Does not belong here: numbers
of a day (``pages.table_page``), which would be repeated on each of them.
"""

from collections.abc import Mapping

import dagster as dg

PREFIX = "composer/"


def tell_run(
    context: dg.AssetExecutionContext | dg.OpExecutionContext, numbers: Mapping[str, object]
) -> None:
    """Write numbers of a run into its tags and its log; what is ``None`` was not measured."""
    known = {name: f"{value:g}" if isinstance(value, float) else str(value)
             for name, value in numbers.items() if value is not None}  # fmt: skip
    context.log.info("; ".join(f"{name} {value}" for name, value in known.items()))
    if context.instance.has_run(context.run_id):
        tags = {f"{PREFIX}{name}": value for name, value in known.items() if value}
        context.instance.add_run_tags(context.run_id, tags)
