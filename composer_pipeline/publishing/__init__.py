"""From normalised pairs to a published dataset: splits, training columns, card, commit."""

from composer_pipeline.publishing.dataset import build_dataset
from composer_pipeline.publishing.publish import publish

__all__ = ["build_dataset", "publish"]
