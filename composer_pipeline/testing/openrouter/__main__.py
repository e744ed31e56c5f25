"""``python -m composer_pipeline.testing.openrouter``."""

from composer_pipeline.testing.openrouter.server import main

main()
