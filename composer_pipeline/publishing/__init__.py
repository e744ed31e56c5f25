"""From normalised pairs to a published dataset, and from a run to a published model."""

from composer_pipeline.publishing.dataset import build_dataset
from composer_pipeline.publishing.gates import PublishRefused
from composer_pipeline.publishing.model import publish_model
from composer_pipeline.publishing.publish import publish
from composer_pipeline.publishing.read_back import first_rows, published_refs, published_rows

__all__ = [
    "PublishRefused",
    "build_dataset",
    "first_rows",
    "publish",
    "publish_model",
    "published_refs",
    "published_rows",
]
