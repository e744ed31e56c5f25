"""The YAML before the card: what the Hub and ``load_dataset`` read.

Belongs here: licence, size, configurations and their features. Does not belong here: prose.
"""

from typing import Any

import yaml

from composer_pipeline.publishing.card.facts import Facts, configurations
from composer_pipeline.publishing.dataset import Build, dataset_info
from composer_pipeline.publishing.splits import SPLITS

_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


def size_category(rows: int) -> str:
    """Return the Hub's size category of a number of rows."""
    return next((name for bound, name in _SIZES if rows < bound), "1M<n<10M")


def _path(build: Build, config: str, split: str) -> str:
    """Return the path of a split's file, or what all its files are called."""
    paths = [f.path for f in build.files if (f.config, f.split) == (config, split)]
    return paths[0] if len(paths) == 1 else f"data/{config}/{split}-*.parquet"


def front_matter(repo: str, build: Build, facts: Facts, licence: dict[str, str]) -> str:
    """Return the YAML with the lines around it.

    Args:
        repo: ``owner/name``.
        build: whose features and counts ``load_dataset`` compares with what it loads.
        facts: the numbers of the files.
        licence: ``license``, and where it is ``other`` its name and link.
    """
    tags = ["dpo", "preference", "agent-traces", "tool-use", "trl", "datasets", "composer-pipeline"]
    front: dict[str, Any] = {
        **licence,
        "language": ["en", "code"],
        "pretty_name": repo.split("/")[1],
        "size_categories": [size_category(facts.of("pairs"))],
        "task_categories": ["text-generation"],
        "tags": tags + (["simulated"] if facts.simulated else []),
        "configs": [
            {
                "config_name": config,
                **({"default": True} if config == "pairs" else {}),
                "data_files": [
                    {"split": split, "path": _path(build, config, split)}
                    for split in SPLITS
                    if facts.rows.get((config, split))
                ],
            }
            for config in configurations(facts)
        ],
        "dataset_info": dataset_info(build),
    }
    return "---\n" + yaml.safe_dump(front, sort_keys=False, allow_unicode=True) + "---"
