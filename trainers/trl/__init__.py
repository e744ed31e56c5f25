"""The TRL trainer: all three channels exactly, replicas that commit DiLoCo rounds.

``__main__`` prepares data and supervises, ``replica`` is one training process,
``composer`` is the trainer, ``batches`` makes tensors, ``checkpoint`` writes the result.
"""
