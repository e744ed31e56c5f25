"""Nights: one unit from harvest to a decision about tonight's model."""
