"""The whole graph as a page: ``python -m tests.assets.graph_page > docs/graph.md`` writes it."""

from collections.abc import Iterable, Iterator

import dagster as dg

from assets.definitions import build_defs
from examples.demo.profile import demo_settings

HEAD = """# The graph

Every asset, check, job, schedule, sensor and pool, as Dagster has them with the demo's teachers.
Written by `python -m tests.assets.graph_page > docs/graph.md`; a test compares it with the
definitions.
"""


def page(defs: dg.Definitions | None = None) -> str:
    """Return the page."""
    defs = defs or build_defs(demo_settings())
    parts = [HEAD, "## Assets\n", *_assets(defs), "\n## Checks\n", *_checks(defs)]
    parts += ["\n## Jobs\n", *_jobs(defs), "\n## Schedules and sensors\n", *_instigators(defs)]
    return "\n".join(parts) + "\n"


def _table(head: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '/') or '-' for cell in row)} |"


def _line(text: str | None) -> str:
    return " ".join((text or "").split())


def _assets(defs: dg.Definitions) -> Iterator[str]:
    graph = defs.resolve_asset_graph()
    rows = []
    for key in sorted(graph.get_all_asset_keys()):
        node = graph.get(key)
        policy, retries = node.backfill_policy, node.assets_def.op.retry_policy
        rows.append(
            [
                f"`{key.to_user_string()}`",
                str(node.group_name),
                ", ".join(f"`{parent.to_user_string()}`" for parent in sorted(node.parent_keys)),
                "daily" if node.partitions_def else "",
                str(policy.max_partitions_per_run) if policy else "",
                ", ".join(sorted(node.pools or ())),
                str(node.code_version),
                str(retries.max_retries) if retries else "",
                str(node.tags.get("cost", "")),
            ]
        )
    head = ["asset", "group", "after", "partitions", "days a run", "pool", "code version"]
    yield from _table([*head, "retries", "cost"], rows)


def _checks(defs: dg.Definitions) -> Iterator[str]:
    graph = defs.resolve_asset_graph()
    rows = []
    for key in sorted(graph.asset_check_keys, key=lambda k: (k.asset_key.to_user_string(), k.name)):
        spec = graph.get_check_spec(key)
        does = "blocks" if spec.blocking else ""
        words = _line(spec.description)
        rows.append([f"`{key.name}`", f"`{key.asset_key.to_user_string()}`", does, words])
    yield from _table(["check", "on", "", "says"], rows)


def _jobs(defs: dg.Definitions) -> Iterator[str]:
    rows = []
    for job in sorted(defs.get_repository_def().get_all_jobs(), key=lambda job: job.name):
        if job.name.startswith("__"):
            continue
        keys = sorted(key.to_user_string() for key in job.asset_layer.executable_asset_keys)
        names = ", ".join(f"`{key}`" for key in keys)
        rows.append([f"`{job.name}`", names, _line(job.description)])
    yield from _table(["job", "assets", "does"], rows)


def _instigators(defs: dg.Definitions) -> Iterator[str]:
    repository = defs.get_repository_def()
    rows = []
    for each in sorted(repository.schedule_defs, key=lambda each: each.name):
        when, status = str(each.cron_schedule), each.default_status.value
        rows.append([f"`{each.name}`", when, str(each.job_name), status, _line(each.description)])
    for sensor in sorted(repository.sensor_defs, key=lambda sensor: sensor.name):
        when, status = f"every {sensor.minimum_interval_seconds} s", sensor.default_status.value
        rows.append([f"`{sensor.name}`", when, "", status, _line(sensor.description)])
    yield from _table(["name", "when (UTC)", "job", "at first", "does"], rows)


if __name__ == "__main__":
    print(page(), end="")
