"""Nothing private leaves: one boundary, used by every room that stores, sends or publishes.

Belongs here: finding and replacing secrets, names and places in texts and JSON values.
Does not belong here: where texts come from or where they go.
"""
