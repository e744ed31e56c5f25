"""Stage 1: session files to TraceStates.

Wings, in the order of the work: ``archive`` (raw bytes), ``reading`` (records), ``graph`` (turns),
``states`` (rows). ``ingest`` runs them all. Later rooms read ``composer_pipeline.states``.
"""
