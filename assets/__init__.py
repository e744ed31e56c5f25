"""The Dagster code location: definitions only, one module per stage.

Importing ``assets.definitions`` loads none of torch, trl, transformers, datasets and data_juicer.
"""
