"""What follows from the commits alone, the same for everybody who has read them.

Belongs here: the state they lead to (``following``), which states are kept and how any is made
again (``snapshots``), which changes are too large (``norm_guard``), and how many steps a slot
makes (``pace``). Does not belong here: when a round is ready and who commits it
(``diloco.replica``), and arithmetic (``diloco.tensors``).
"""
