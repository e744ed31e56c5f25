"""Where replicas run: processes of this machine, or jobs of a service that a recipe names."""
