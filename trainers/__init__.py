"""Trainer plug-ins: one folder a backend, each run as ``python -m trainers.<name>``.

They import the library and ``dagster_pipes``, never ``dagster`` or ``assets``.
"""

import gc

# A start is mostly imports, whose objects stay: do not walk them again and again meanwhile.
gc.set_threshold(20_000, *gc.get_threshold()[1:])
