"""Where replicas run: one port to start, watch and end a process, and what implements it.

``port`` is the port, ``local`` starts processes of this machine, ``hf_jobs`` jobs of Hugging Face,
``kubernetes_jobs`` Jobs of a cluster, ``modal_sandboxes`` sandboxes of Modal. Does not belong here:
when a replica is started again and when a run is over (``diloco.supervisor``), and what it does
(``trainers``). No torch.
"""

from composer_pipeline.diloco.places.hf_jobs import HfJobs
from composer_pipeline.diloco.places.kubernetes_jobs import KubernetesJobs
from composer_pipeline.diloco.places.local import LocalCommand, ReplicaCommand
from composer_pipeline.diloco.places.modal_sandboxes import ModalSandboxes
from composer_pipeline.diloco.places.port import Job, Place, sentence

__all__ = [
    "HfJobs",
    "Job",
    "KubernetesJobs",
    "LocalCommand",
    "ModalSandboxes",
    "Place",
    "ReplicaCommand",
    "sentence",
]
