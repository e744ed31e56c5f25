"""Trainer plug-ins: one folder a backend, each run as ``python -m trainers.<name>``.

They import the library and ``dagster_pipes``, never ``dagster`` or ``assets``.
"""
