"""Losses of the composer in pure torch: divergences, SDPO, TAID, DPO and SimPO."""
