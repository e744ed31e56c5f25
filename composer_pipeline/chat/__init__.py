"""A state as a chat request: messages, tools, and replies read back as actions."""
