"""Is the teacher file as the graph needs it?

Belongs here: the check that names file, line and field of a mistake. The graph is built without
its teachers then, so that one slip leaves every other asset, check and schedule in place.
"""

import dagster as dg

from assets.resources import TeachersResource
from composer_pipeline.errors import InputError


@dg.asset_check(asset="preference_pairs")
def teachers(teachers: TeachersResource) -> dg.AssetCheckResult:
    """The teacher file can be read; without it the graph has no ``teacher_replies``."""
    from composer_pipeline.replay.teachers import TeacherSet

    try:
        found = TeacherSet.load(teachers.file).teachers
    except InputError as error:
        return dg.AssetCheckResult(
            passed=False,
            metadata={"file": dg.MetadataValue.path(teachers.file)},
            description=f"{error}. Correct it, then reload the definitions.",
        )
    names = [teacher.name for teacher in found]
    return dg.AssetCheckResult(
        passed=True,
        metadata={"file": dg.MetadataValue.path(teachers.file), "teachers": len(names)},
        description=f"The file names {', '.join(names)}.",
    )
