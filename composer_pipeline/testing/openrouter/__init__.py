"""A loopback OpenRouter with exact billing.

python -m composer_pipeline.testing.openrouter --port 8399 --faults 0.2 --lifetime 600
"""
