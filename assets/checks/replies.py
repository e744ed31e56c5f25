"""Checks of what the teachers answered: how much is missing, and how much cannot be used.

Belongs here: bounds and wording. The counts are ``composer_pipeline.care.currency``'s.
"""

from collections.abc import Sequence

import dagster as dg

from assets.pages import records
from assets.resources import LakeResource, TeachersResource

#: Share of a teacher's replies that may be unusable before a person should look.
UNUSABLE = 0.25
WARN = dg.AssetCheckSeverity.WARN


@dg.asset_check(asset="preference_pairs")
def replies_cover_states(lake: LakeResource, teachers: TeachersResource) -> dg.AssetCheckResult:
    """Each teacher that was asked about a day has answered all of it.

    Not blocking: pairs are made of the families that answered. The night asks the others again.
    """
    from composer_pipeline.care import TRIES, missing_replies
    from composer_pipeline.errors import InputError
    from composer_pipeline.replay.teachers import TeacherSet

    try:
        asked = TeacherSet.load(teachers.file)
    except InputError as error:
        return dg.AssetCheckResult(passed=False, severity=WARN, description=str(error))
    found = missing_replies(lake.open(), asked)
    listed: list[dict[str, str | int]] = [
        {
            "teacher": teacher,
            "day": day,
            "missing": made.missing,
            "why": made.why,
            "nights": f"{made.tries} of {TRIES}",
        }
        for (teacher, day), made in sorted(found.items())
    ]
    names = ", ".join(sorted({teacher for teacher, _ in found}))
    total = sum(made.missing for made in found.values())
    return dg.AssetCheckResult(
        passed=not found,
        severity=WARN,
        metadata={"missing": total, **({"days": records(listed[:200])} if listed else {})},
        description=f"{total} replies of {names} are missing."
        if found
        else "Nothing that was asked is missing.",
    )


def build_reply_checks(reply_keys: Sequence[dg.AssetKey]) -> list[dg.AssetChecksDefinition]:
    """Return the checks of each teacher's replies."""

    def build(key: dg.AssetKey) -> dg.AssetChecksDefinition:
        @dg.asset_check(asset=key, name="replies_usable")
        def replies_usable(lake: LakeResource) -> dg.AssetCheckResult:
            """Few of the replies are unusable: refused, cut off or not readable."""
            from composer_pipeline.care import unusable_share

            share, count = unusable_share(lake.open(), key.path[-1])
            return dg.AssetCheckResult(
                passed=share <= UNUSABLE,
                severity=WARN,
                metadata={"unusable_share": share, "replies": count, "bound": UNUSABLE},
                description=f"{share:.1%} of {count} replies are unusable; the bound is"
                f" {UNUSABLE:.0%}.",
            )

        return replies_usable

    return [build(key) for key in reply_keys]
