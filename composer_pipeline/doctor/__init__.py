"""What is wrong, before it costs something: the environment, and the provider for cents."""
