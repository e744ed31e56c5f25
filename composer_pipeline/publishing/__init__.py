"""From normalised pairs to a published dataset, and from a run to a published model."""

from composer_pipeline.publishing.dataset import build_dataset
from composer_pipeline.publishing.model import publish_model
from composer_pipeline.publishing.publish import publish

__all__ = ["build_dataset", "publish", "publish_model"]
