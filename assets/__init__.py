"""The Dagster code location: definitions only, one module a stage.

Importing ``assets.definitions`` loads none of torch, trl, transformers, datasets and data_juicer.
"""
