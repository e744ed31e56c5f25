"""Trainer plug-ins: one folder a backend, each run as ``python -m trainers.<name>``.

They import the library and ``dagster_pipes``, never ``dagster`` or ``assets``.
"""

import gc

# A start is mostly imports, whose objects stay: collecting them again and again is a fifth of it.
gc.set_threshold(20_000, *gc.get_threshold()[1:])
