"""What a round does to tensors, and what they are as bytes: the same bits on every machine.

Belongs here: the outer step (``outer``), what a delta's numbers become (``codecs``), safetensors
bytes (``encoding``), the arithmetic that a spec asks for (``merging``), and which parameters one
round merges (``fragments``). Pure functions on CPU tensors. Does not belong here: which deltas
those are (``diloco.rounds``, ``diloco.replica``) and where their bytes lie (``diloco.log``).
"""
