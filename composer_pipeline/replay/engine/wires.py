"""The connections of a run: one wire for each endpoint that its teachers are at.

Belongs here: which endpoint is opened, and with which key. Does not belong here: HTTP
(``replay.provider.client``) and keys made for a run (``replay.engine.run_key``).
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from composer_pipeline.replay.provider import Wire
from composer_pipeline.replay.teachers import Teacher, TeacherSet


@asynccontextmanager
async def open_wires(
    teacher_set: TeacherSet, teachers: Sequence[Teacher], secret: str | None
) -> AsyncIterator[dict[str, Wire]]:
    """Open the endpoints by name; the file's is always among them.

    Args:
        teacher_set: the teacher file.
        teachers: who is asked.
        secret: the key of the run, which only the file's endpoint sees; every other one sees
            its own alone.
    """
    main = teacher_set.endpoint
    connections = sum(teacher.concurrency for teacher in teachers)
    async with AsyncExitStack() as stack:
        wires = {}
        for name, endpoint in ({main.name: main} | teacher_set.endpoints(teachers)).items():
            wire = Wire(
                endpoint,
                secret if name == main.name else endpoint.key(),
                read_timeout_s=teacher_set.limits.read_timeout_s,
                connections=connections,
            )
            wires[name] = await stack.enter_async_context(wire)
        yield wires
