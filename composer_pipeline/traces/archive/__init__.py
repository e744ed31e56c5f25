"""The raw bytes of session files, kept before anything looks at them.

Does not belong here: what the bytes mean (``traces.reading``).
"""
