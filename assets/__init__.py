"""The Dagster code location: definitions only, one module a stage, no logic.

Logic lives in ``composer_pipeline``; a module here turns one stage into assets with
metadata. Importing ``assets.definitions`` loads none of torch, trl, transformers,
datasets, data_juicer and ray.
"""
