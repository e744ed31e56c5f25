"""The configurations of the published dataset, and where their files are.

Belongs here: which table of the lake a configuration is, and the path of a file in the
repository. Does not belong here: what a column means (``lake.tables``), what the card says.
"""

#: Configuration of the published dataset to table of the lake; the first is the default.
CONFIGS: dict[str, str] = {
    "pairs": "dataset_pairs",
    "pairs_8k": "dataset_pairs_8k",
    "groups": "dataset_groups",
    "hints": "dataset_hints",
    "sft": "dataset_sft",
    "successes": "dataset_successes",
    "replies": "dataset_replies",
    "drops": "dataset_drops",
}


def file_path(config: str, split: str, shard: int = 0, shards: int = 1) -> str:
    """Return the path of a split's file in the repository.

    A single file keeps its simple name whatever is in it; of several each says which it is.
    """
    part = "" if shards == 1 else f"-{shard:05d}-of-{shards:05d}"
    return f"data/{config}/{split}{part}.parquet"
