"""The TRL trainer: every channel of the composer loss, and replicas that commit DiLoCo rounds."""
