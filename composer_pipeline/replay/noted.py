"""What a teacher's replies to a day were bought with, and how many of them are missing.

Belongs here: inputs and parameters by name, and the note that a run leaves for each teacher and
day. Does not belong here: comparing notes with now (``care.currency``), and whether a night asks
again (``care.nights``).

Only a run that asked about all of a day leaves notes: a few states or sessions say nothing of a
day. A ceiling that refused, an endpoint that nobody could reach and a run that was interrupted are
no fault of a teacher: they count no try.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import msgspec

from composer_pipeline.lake import Lake
from composer_pipeline.lake.notes import Made, Origin, Stamps, look, note, notes_of
from composer_pipeline.replay.provider import settings_sent
from composer_pipeline.replay.questions import Questions
from composer_pipeline.replay.teachers import Teacher, TeacherSet
from composer_pipeline.versions import CONVERTER_VERSION


def replies_origin(teacher_set: TeacherSet, teacher: Teacher, day: str) -> Origin:
    """Return what a teacher's replies to a day are bought with.

    Its parameters are those that decide what is asked: a price cap is none of them.
    """
    endpoint = teacher_set.endpoint_of(teacher)
    sent = settings_sent(teacher, endpoint.name, api=endpoint.api)
    settings = {
        "converter": CONVERTER_VERSION,
        "model": teacher.model,
        "ask_share": f"{teacher.ask_share:g}",
        "selection": teacher_set.selection.model_dump_json(exclude_defaults=True),
        "projects": teacher_set.projects.model_dump_json(exclude_defaults=True),
        **{name: str(value) for name, value in sent.items()},
    }
    return Origin(
        "replies",
        {"teacher": teacher.name, "day": day},
        [(table, {"day": day}) for table in ("states", "messages", "chains")],
        settings,
    )


class Notes:
    """The notes of one run, begun before it asks anything.

    Args:
        lake: has the states.
        questions: of the run.
        days: the days that are asked about, whole.
    """

    def __init__(self, lake: Lake, questions: Questions, days: Sequence[str]) -> None:
        self._lake = lake
        self._day_of = {state.state_id: state.day for state in questions.states}
        stamps = Stamps(lake)
        self._made: list[tuple[Origin, Made]] = []
        for day in days:
            for teacher in questions.teachers:
                origin = replies_origin(questions.teacher_set, teacher, day)
                self._made.append((origin, look(origin, stamps)))

    def write(
        self,
        figures: Mapping[str, Mapping[str, Mapping[str, int]]],
        asked: Collection[tuple[str, str]],
        settled: Mapping[tuple[str, str], int],
        whys: Mapping[str, str],
        *,
        tried: Collection[str],
    ) -> None:
        """Note for each teacher and day what is missing, and that it was tried.

        Args:
            figures: day -> teacher -> counts of its partition; ``unknown`` replies may be lost.
            asked: (state_id, teacher) of the run's questions.
            settled: (teacher, day) -> how many of them need not be asked again.
            whys: teacher -> why a question of it has no reply.
            tried: the teachers that were asked and could have answered.

        Raises:
            StorageError: the lake is not writable.
        """
        before = notes_of(self._lake, "replies") if self._made else {}
        had = Counter((teacher, self._day_of[state_id]) for state_id, teacher in asked)
        for origin, made in self._made:
            teacher, day = origin.keys["teacher"], origin.keys["day"]
            lost = figures.get(day, {}).get(teacher, {}).get("unknown", 0)
            missing = max(had[teacher, day] - settled.get((teacher, day), 0), lost)
            old = before.get(origin.name)
            tries = old.tries if old is not None and _what(old) == _what(made) else 0
            if missing:
                made = msgspec.structs.replace(
                    made,
                    missing=missing,
                    tries=tries + (teacher in tried),
                    why=whys.get(teacher, "the run ended before it was asked"),
                )
            note(self._lake, origin, made)


def _what(made: Made) -> tuple[dict[str, str], dict[str, str]]:
    """Return the hashes of the inputs, and the settings."""
    return {name: digest for name, (_, digest) in made.inputs.items()}, made.settings
