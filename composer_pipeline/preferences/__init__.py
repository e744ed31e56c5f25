"""Canonical actions, agreement of teachers, preference pairs, hints, normalisation.

Import from the modules: ``preferences.agree`` (compare, vote), ``preferences.pairs``,
``preferences.hints`` and ``normalize.stage`` (the stages).
"""
