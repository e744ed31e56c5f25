"""What a run's log tells a person: what it is doing (``overview``), and did (``history``).

Belongs here: figures that are read from the log alone, also after every process is gone. Does not
belong here: drawing them (``cli.views.replicas``, ``report.timeline``). Nothing is written. No
torch.
"""
