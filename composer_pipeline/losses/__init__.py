"""Losses of the composer: pure torch, no other import, usable in any trainer's environment.

``divergence`` (student against teacher), ``fused`` (the same from hidden states, without
logits), ``taid`` (its schedule), ``sdpo`` (reductions and clipping), ``preference`` (DPO,
SimPO, sequence log-probabilities). Nothing else in the library imports this room.
"""
