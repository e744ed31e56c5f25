"""How the steps of a run are executed, by the setting ``COMPOSER_EXECUTOR``.

Belongs here: the names and what they stand for. Where runs themselves are started is the
instance's business (``run_launcher`` in dagster.yaml), so neither is fixed in code.
"""

import dagster as dg

from composer_pipeline.errors import InputError

#: A step of ours waits for the network or starts a process of its own, so few at once are enough.
MOST_STEPS = 4


def executor_of(name: str) -> dg.ExecutorDefinition:
    """Return an executor: ``in_process``, ``multiprocess``, or ``k8s`` (a job for each step).

    Raises:
        InputError: no executor has the name, or the extra ``deploy`` is not installed.
    """
    if name == "in_process":
        return dg.in_process_executor
    if name == "multiprocess":
        preload = {"forkserver": {"preload_modules": ["assets.definitions"]}}
        return dg.multiprocess_executor.configured(
            {"max_concurrent": MOST_STEPS, "start_method": preload}
        )
    if name == "k8s":
        try:
            from dagster_k8s import k8s_job_executor
        except ImportError as error:
            raise InputError("COMPOSER_EXECUTOR=k8s needs the extra `deploy`") from error
        return k8s_job_executor.configured({"max_concurrent": MOST_STEPS})
    raise InputError(f"COMPOSER_EXECUTOR: {name!r} is none of in_process, multiprocess, k8s")
