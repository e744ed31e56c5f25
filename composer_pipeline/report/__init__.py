"""A dataset version as one HTML file that a person shows to a colleague.

Counting is left to the rooms that own the numbers; here they get words, order and a page. Does not
belong here: the card of a publication (``publishing.card``).
"""
