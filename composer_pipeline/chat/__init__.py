"""A state as a chat request: messages, tools and replies in the shape that models speak.

Shared by replay, preferences and publishing.
"""
