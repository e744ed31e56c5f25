"""What trainers share: rows, the policy and its teachers, channels, ranks, checkpoints. No TRL."""
