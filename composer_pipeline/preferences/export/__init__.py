"""Columns that trainers take: DPO, KTO, SFT, SDPO, and pairs against a model's own actions."""

from composer_pipeline.preferences.export.write import export

__all__ = ["export"]
