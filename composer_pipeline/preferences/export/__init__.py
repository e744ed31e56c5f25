"""Columns that trainers take: DPO, KTO, SFT, SDPO, and pairs against a model's own actions."""
