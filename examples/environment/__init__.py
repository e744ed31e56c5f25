"""On-policy GRPO against recorded sessions, served over OpenEnv."""
