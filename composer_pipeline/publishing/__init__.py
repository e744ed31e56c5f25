"""From normalised pairs to a published dataset, and from a run to a published model."""
