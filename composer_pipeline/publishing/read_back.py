"""A publication looked at again, by whoever asks later.

Belongs here: what is on the Hub at a commit. Does not belong here: the comparison that publishing
itself makes (``publishing.hub.check``).
"""

from composer_pipeline.publishing.hub import Hub, rows_at, token_of


def published_refs(repo: str, *, endpoint: str | None = None) -> dict[str, str]:
    """Return every ref of a dataset repository to its commit."""
    with _asked(repo, endpoint) as hub:
        return hub.refs()


def published_rows(repo: str, commit: str, *, endpoint: str | None = None) -> dict[str, int]:
    """Return the rows of each configuration and split of a commit, from its Parquet footers."""
    with _asked(repo, endpoint) as hub:
        return rows_at(hub, commit)


def first_rows(repo: str, commit: str) -> dict[str, list[str]]:
    """Return the columns of the first row of each configuration and split, as ``datasets`` has it.

    It streams, so little is loaded. ``datasets`` asks the Hub that ``HF_ENDPOINT`` names.
    """
    from datasets import get_dataset_config_names, load_dataset

    token = token_of("HF_TOKEN", dry_run=False)
    found = {}
    for config in get_dataset_config_names(repo, revision=commit, token=token):
        for split, rows in load_dataset(
            repo, config, revision=commit, token=token, streaming=True
        ).items():
            found[f"{config}/{split}"] = sorted(next(iter(rows)))
    return found


def _asked(repo: str, endpoint: str | None) -> Hub:
    return Hub(repo, token_of("HF_TOKEN", dry_run=False), endpoint, "dataset")
