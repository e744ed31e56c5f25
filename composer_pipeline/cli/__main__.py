"""``python -m composer_pipeline.cli``."""

from composer_pipeline.cli.app import main

main()
