"""Other readings of a text, in which a secret may hide: decoded, or with its lines joined.

Belongs here: decoding, and which part of the text each decoded character came from. Does not
belong here: judging what was decoded (``redaction.engine``).
"""
