"""What every ingest begins with, done once where the processes of the driver are forked from.

Without it a process on a busy machine spends its first seconds on imports and on compiling the
rules of redaction, and every kill would hit those.
"""

import os
import signal

from composer_pipeline.lake.place import bucket_lock
from composer_pipeline.lake.store import Lake
from composer_pipeline.redaction.redact import compiled_rules
from composer_pipeline.traces.ingest import ingest
from tests.fixtures.sessions import Script

__all__ = ["Lake", "Script", "ingest", "one_ingest"]

#: Seconds after which the lease of a killed holder is free here; users' is a minute, and a
#: hundred and twenty of those would be two hours.
LEASE_S = 1.0

compiled_rules()


def one_ingest(lake: str, folder: str, environment: dict[str, str], cpu_s: float) -> None:
    """Ingest a folder; runs in a process that may be killed.

    Args:
        lake: the lake.
        folder: what is ingested.
        environment: where a bucket is.
        cpu_s: the kernel ends the process after so many CPU seconds (a SIGPROF that nobody
            handles: as with SIGKILL, nothing of it runs any more); 0 for never.
    """
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    os.environ.update(environment)  # the server that forks may be older than the bucket
    bucket_lock.__wrapped__.__kwdefaults__["lease_s"] = LEASE_S  # type: ignore[attr-defined]
    ingest(Lake(lake), [folder])
