"""DiLoCo: replicas that train apart and merge through an outer log on an object store."""
