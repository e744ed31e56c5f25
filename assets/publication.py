"""The dataset on the Hub, and its checks.

The token is ``HF_TOKEN`` or the client's stored login.
"""

import json
from collections.abc import Iterator
from typing import Any

import dagster as dg
from pydantic import Field

from assets.failures import one_sentence
from assets.pages import OWNERS, explained, figures, records
from assets.resources import LakeResource, PublicationResource
from composer_pipeline.errors import InputError
from composer_pipeline.lake.schema import SCHEMA_VERSION


class PublishConfig(dg.Config):
    """Where to publish. The token comes from ``HF_TOKEN``, never from here."""

    repo: str = Field(
        default="",
        description="OWNER/NAME of the dataset repository; COMPOSER_PUBLISH_REPO if empty.",
    )
    private: bool = Field(default=True, description="Private repository; false publishes it.")
    dry_run: bool = Field(default=False, description="Plan and check, but commit nothing.")
    allow_simulated: bool = Field(
        default=False,
        description="Publish rows of simulated teachers too, as COMPOSER_PUBLISH_SIMULATED does;"
        " the card states it.",
    )


@dg.asset(
    group_name="preferences",
    kinds={"huggingface"},
    owners=OWNERS,
    deps=["training_dataset"],
    code_version=str(SCHEMA_VERSION),
    output_required=False,
    retry_policy=dg.RetryPolicy(
        max_retries=3, delay=60, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS
    ),
)
@explained
@one_sentence
def published_dataset(
    config: PublishConfig,
    lake: LakeResource,
    publication: PublicationResource,
) -> Iterator[dg.MaterializeResult[None] | dg.AssetObservation]:
    """The dataset as one commit on the Hugging Face Hub, private by default.

    Without a repository the asset is skipped.
    """
    from composer_pipeline.publishing.gates import PublishRefused
    from composer_pipeline.publishing.publish import publish

    repo = config.repo or publication.repo
    if not repo:
        dg.get_dagster_logger().info(
            "No repository is configured (COMPOSER_PUBLISH_REPO): nothing is published."
        )
        return
    try:
        report = publish(
            lake.open(),
            repo,
            private=config.private,
            dry_run=config.dry_run,
            allow_simulated=config.allow_simulated or publication.simulated,
        )
    except (InputError, PublishRefused) as error:  # a retry would fail the same way
        raise dg.Failure(str(error), allow_retries=False) from error
    if report.dry_run:  # nothing was published, so nothing is materialised
        yield dg.AssetObservation("published_dataset", metadata=_metadata(repo, report))
        return
    yield dg.MaterializeResult(metadata=_metadata(repo, report))


def _metadata(repo: str, report: Any) -> dict[str, Any]:
    names = dict.fromkeys([*report.rows, *report.added, *report.removed])
    diff = [
        {
            "config and split": name,
            "rows": report.rows.get(name, 0),
            "added": report.added.get(name, 0),
            "removed": report.removed.get(name, 0),
        }
        for name in names
    ]
    files = [{"file": path, "change": how} for path, how in report.changes.items()]
    return {
        "repo": repo,
        "commit": report.commit or "none",
        "tag": report.tag or "none",
        "dry_run": report.dry_run,
        **figures(
            "published_dataset",
            {
                "dagster/row_count": sum(report.rows.values()),
                "changed": report.changed,
                "files": len(report.files),
            },
        ),
        "rows": dg.MetadataValue.json(report.rows),
        **({"diff": records(diff)} if diff else {}),
        **({"changes": records(files)} if files else {}),
        **({"link": dg.MetadataValue.url(report.url)} if report.url else {}),
    }


# -- checks --------------------------------------------------------------------


def _last(context: dg.AssetCheckExecutionContext) -> dict[str, Any]:
    """Return the metadata of the last publication; empty for none and for a dry run."""
    event = context.instance.get_latest_materialization_event(dg.AssetKey("published_dataset"))
    if event is None or event.asset_materialization is None:
        return {}
    found = {name: value.value for name, value in event.asset_materialization.metadata.items()}
    return {} if found.get("dry_run") or found.get("commit", "none") == "none" else found


def _nothing() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=True, description="Nothing was published.")


@dg.asset_check(asset="published_dataset")
def published_revision(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """The commit is on the Hub, and its tag points to it."""
    from composer_pipeline.publishing.commit import published_refs

    last = _last(context)
    if not last:
        return _nothing()
    named = published_refs(last["repo"]).get(f"refs/tags/{last['tag']}", "nothing")
    return dg.AssetCheckResult(
        passed=named == last["commit"],
        metadata={"commit": last["commit"], "tag": last["tag"], "tag_names": named},
    )


@dg.asset_check(asset="published_dataset")
def published_rows(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """The Hub's Parquet files have as many rows as were published."""
    from composer_pipeline.publishing.commit import published_rows as counted

    last = _last(context)
    if not last:
        return _nothing()
    found = counted(last["repo"], last["commit"])
    wanted = last["rows"] if isinstance(last["rows"], dict) else json.loads(last["rows"])
    return dg.AssetCheckResult(
        passed=found == wanted,
        metadata={"rows": sum(found.values()), "published": sum(wanted.values())},
    )


@dg.asset_check(asset="published_dataset")
def published_loads(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """``datasets`` streams the first row of each configuration and split from the commit."""
    from composer_pipeline.publishing.commit import first_rows

    last = _last(context)
    if not last:
        return _nothing()
    columns = first_rows(last["repo"], last["commit"])
    return dg.AssetCheckResult(
        passed=set(columns) == set(last["rows"]) and all(columns.values()),
        metadata={"loaded": len(columns), "configurations_and_splits": len(last["rows"])},
    )


CHECKS = [published_revision, published_rows, published_loads]
