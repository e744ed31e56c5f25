"""How good is the data? Statistics, rater agreement, separability, repeats, lost rows.

Does not belong here: rules that drop rows (``preferences.pairs``).
"""
