"""Evaluation: a trained model against its base on states that training never saw."""
