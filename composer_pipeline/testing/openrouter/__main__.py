"""``python -m composer_pipeline.testing.openrouter``."""

from composer_pipeline.testing.openrouter.command import main

main()
