"""What is wrong, before it costs something: the environment, and the provider for cents."""

from composer_pipeline.doctor.environment import run_checks
from composer_pipeline.doctor.live import run_live

__all__ = ["run_checks", "run_live"]
