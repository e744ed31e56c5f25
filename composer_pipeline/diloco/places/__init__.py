"""Where replicas run: one port to start, watch and end a process, and what implements it.

``port`` is the port, ``local`` starts processes of this machine, ``hf_jobs`` jobs of Hugging Face,
``kubernetes_jobs`` Jobs of a cluster, ``modal_sandboxes`` sandboxes of Modal. Does not belong here:
when a replica is started again and when a run is over (``diloco.supervisor``), and what it does
(``trainers``). No torch.
"""
