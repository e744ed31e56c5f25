"""``python -m composer_pipeline.cli``."""

from composer_pipeline.cli import main

main()
