"""Claude Code session files to TraceStates: harvest, parse, redact, load.

Import from the modules: ``traces.harvest``, ``traces.parse``, ``traces.ingest`` and
``trace_states`` are the stages; ``redaction.text`` is used by every later room.
"""
