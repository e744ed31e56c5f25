"""Claude Code session files to TraceStates: harvest, parse, redact, load.

Import from the modules: ``traces.harvest``, ``traces.parse``, ``traces.ingest`` and
``traces.load`` are the stages; ``traces.redaction`` is used by every later room.
"""
