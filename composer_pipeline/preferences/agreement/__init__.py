"""Do teachers agree? Who may vote, the vote, its rows, the paid judge of meaning.

Does not belong here: which votes become pairs (``preferences.pairs``).
"""
