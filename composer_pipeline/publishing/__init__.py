"""From normalised pairs to a published dataset: splits, training columns, card, commit."""
