"""Stage 3: replies to preference pairs and hints.

Wings: ``actions`` (when are two the same), ``agreement`` (votes), ``pairs``, ``hints``, ``export``,
``quality``. Importing one loads no other.
"""
