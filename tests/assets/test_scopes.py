"""Runs that belong together share one scope, whatever tags Dagster gave or took."""

import dagster as dg
import pytest

from assets.money import SCOPE_TAG, shared_scope
from assets.resources import TeachersResource
from composer_pipeline.errors import InputError

CHUNK = {"dagster/backfill": "bf1", "dagster/asset_partition_range_start": "2026-11-16"}
AGAIN = {"dagster/root_run_id": "first", "dagster/parent_run_id": "second"}


@pytest.mark.parametrize(
    ("tags", "first", "scope"),
    [
        ({}, None, "root:me"),
        (CHUNK, None, "backfill:bf1"),
        # A backfill that is executed again has a new name, and tells whose successor it is.
        (CHUNK | {"dagster/root_backfill_id": "bf0"}, None, "backfill:bf0"),
        (AGAIN, {}, "root:first"),
        # Its backfill has ended, so Dagster took the backfill's tags away.
        (AGAIN, CHUNK, "backfill:bf1"),
        # Retried while the backfill goes on: the tags are there.
        (AGAIN | CHUNK, CHUNK, "backfill:bf1"),
        # The first run was deleted; what it noted was inherited.
        (AGAIN | {SCOPE_TAG: "backfill:bf1"}, None, "backfill:bf1"),
        (AGAIN, None, "root:first"),
        # A run of its own, whose tags were copied by hand, is no successor.
        ({SCOPE_TAG: "backfill:bf1"}, None, "root:me"),
    ],
)
def test_the_scope_of_a_run(tags: dict[str, str], first: dict[str, str] | None, scope: str) -> None:
    assert shared_scope("me", tags, {"first": first}.get) == scope


def test_dagsters_names_of_tags() -> None:
    from dagster._core.storage import tags

    assert tags.BACKFILL_ID_TAG in CHUNK
    assert tags.ROOT_BACKFILL_ID_TAG == "dagster/root_backfill_id"
    assert {tags.ROOT_RUN_ID_TAG, tags.PARENT_RUN_ID_TAG} == set(AGAIN)
    # What Dagster drops when it executes a run again is not our tag.
    assert SCOPE_TAG not in tags.TAGS_TO_MAYBE_OMIT_ON_RETRY


@pytest.mark.parametrize(("given", "usd"), [("1.5", "1.5"), (1.5, "1.5"), (2, "2"), ("", "7")])
def test_max_usd_is_a_number_or_its_text(given: object, usd: str) -> None:
    assert str(TeachersResource(file="t", max_usd="7").ceiling(given)) == usd


@pytest.mark.parametrize("given", ["much", True, [1], {"usd": 1}])
def test_what_is_no_amount_is_told(given: object) -> None:
    with pytest.raises(InputError, match="max_usd"):
        TeachersResource(file="t", max_usd="7").ceiling(given)


@pytest.mark.parametrize("given", ["0.25", 0.25])
def test_the_dialog_takes_both(given: object) -> None:
    from assets.replay import ReplayConfig

    @dg.op
    def ask(context: dg.OpExecutionContext, config: ReplayConfig) -> str:
        return str(TeachersResource(file="t").ceiling(config.max_usd))

    @dg.job
    def one() -> None:
        ask()

    config = {"ops": {"ask": {"config": {"max_usd": given}}}}
    assert one.execute_in_process(run_config=config).output_for_node("ask") == "0.25"
