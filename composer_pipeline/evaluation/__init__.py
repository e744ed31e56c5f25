"""Does a model act better than its base on sessions that it never saw?

``states`` is the frozen set and ``of_lake`` makes one of a lake; ``measure`` runs models over it,
``summary`` makes means and intervals, ``verdict`` says whether that may be published, and
``evaluate`` is the stage. Does not belong here: training (``training``), and publishing
(``publishing``).
"""
