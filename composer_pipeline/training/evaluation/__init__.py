"""Held-out evaluation: the stage, and the process that loads the model."""

from composer_pipeline.training.evaluation.evaluate import evaluate

__all__ = ["evaluate"]
