"""Which scope a run shares with others, read from its tags.

Belongs here: the names of tags, Dagster's and ours. Does not belong here: ceilings and what is
charged to them (``composer_pipeline.replay.ledger``).

A ceiling that a person has typed holds for everything that this one click starts: the chunks of
a backfill, whatever is executed again, and what the daemon retries.
"""

from collections.abc import Callable, Mapping

import dagster as dg

#: The scope of a run; a run that is executed again inherits the tag.
SCOPE_TAG = "composer/ceiling_scope"
#: What a run has spent, in USD; written as it goes on and when it ends.
COST_TAG = "composer/cost_usd"
#: The scope whose ceiling ended a run, where one did.
REACHED_TAG = "composer/ceiling_reached"

_BACKFILL, _ROOT_BACKFILL = "dagster/backfill", "dagster/root_backfill_id"
_ROOT_RUN = "dagster/root_run_id"

#: The tags of a run by its id; ``None`` where the run is gone.
TagsOf = Callable[[str], Mapping[str, str] | None]


def shared_scope(run_id: str, tags: Mapping[str, str], tags_of: TagsOf) -> str:
    """Return the scope that a run shares with all that one click has started.

    A backfill that is executed again belongs to the first one. Dagster takes the backfill's tags
    from a run that is executed again after its backfill has ended, so the first run is asked.

    Args:
        run_id: the run.
        tags: its tags.
        tags_of: looks up the tags of the first run of a chain of executions.
    """
    if scope := _backfill(tags):
        return scope
    root = tags.get(_ROOT_RUN)
    if not root:
        return f"root:{run_id}"
    first = tags_of(root)
    if first is None:  # deleted: what it told its successors stands
        return tags.get(SCOPE_TAG, f"root:{root}")
    return _backfill(first) or f"root:{root}"


def _backfill(tags: Mapping[str, str]) -> str:
    backfill = tags.get(_ROOT_BACKFILL) or tags.get(_BACKFILL)
    return f"backfill:{backfill}" if backfill else ""


def scope_of_run(context: dg.AssetExecutionContext) -> str:
    """Return the scope of the run that asks, and note it on the run for those that follow."""
    instance, run = context.instance, context.run

    def tags_of(run_id: str) -> Mapping[str, str] | None:
        found = instance.get_run_by_id(run_id)
        return None if found is None else found.tags

    scope = shared_scope(run.run_id, run.tags, tags_of)
    # What was inherited from the run before is not this one's.
    told = {SCOPE_TAG: scope, COST_TAG: "not known yet", REACHED_TAG: "no"}
    instance.add_run_tags(run.run_id, told)
    return scope
