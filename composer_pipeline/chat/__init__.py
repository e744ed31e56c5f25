"""A state as a chat request: messages, tools and replies in the shape that models speak.

Shared by replay, preferences and publishing. Belongs here: what a model is shown and how its
answer is read back. Does not belong here: whom to ask, what it costs, or HTTP.
"""
