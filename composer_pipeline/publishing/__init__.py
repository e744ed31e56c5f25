"""From normalised pairs to a published dataset, and from a run to a published model."""

from composer_pipeline.publishing.card import (
    Facts,
    Source,
    facts_of,
    funnel,
    statistics_of,
    votes_by_tool,
)
from composer_pipeline.publishing.dataset import Build, build_dataset, check_statistics, read_build
from composer_pipeline.publishing.gates import PublishRefused
from composer_pipeline.publishing.model import publish_model
from composer_pipeline.publishing.publish import publish
from composer_pipeline.publishing.read_back import first_rows, published_refs, published_rows
from composer_pipeline.publishing.snapshot import take_files

__all__ = [
    "Build",
    "Facts",
    "PublishRefused",
    "Source",
    "build_dataset",
    "check_statistics",
    "facts_of",
    "first_rows",
    "funnel",
    "publish",
    "publish_model",
    "published_refs",
    "published_rows",
    "read_build",
    "statistics_of",
    "take_files",
    "votes_by_tool",
]
