"""A rehearsal of any teacher file: its models on the loopback server, at its prices, for nothing.

Belongs here: the models of a file, and the copy of it that asks the loopback server. Does not
belong here: serving (``testing.openrouter.server``) and what the models decide
(``testing.personas``).

Each model bills what the file's ``max_price`` allows, so a rehearsal costs at least what the real
run would, in simulated dollars. What the rehearsal does not know: whether the real service offers
the model at that price and under those privacy terms (``doctor --live`` asks).
"""

from itertools import cycle
from pathlib import Path

import yaml

from composer_pipeline.replay.teachers import TeacherSet
from composer_pipeline.testing.openrouter.models import SimulatedModel
from composer_pipeline.testing.personas import PersonaName

#: Teachers that vote take these in turn, so that some agree against the agent and some do not.
_VOTERS: tuple[PersonaName, ...] = ("careful", "steady", "contrarian")
_PER_TOKEN = 1_000_000


def models_of(teachers: TeacherSet) -> list[SimulatedModel]:
    """Return a simulated model for each model of a teacher file.

    A control repeats the agent's own action; so does every third of the others.
    """
    personas = cycle(_VOTERS)
    found: dict[str, SimulatedModel] = {}
    for teacher in teachers.teachers:
        persona = "contrarian" if teacher.control else next(personas)
        model = SimulatedModel(
            slug=teacher.model,
            persona=persona,
            prompt=teacher.max_price.prompt / _PER_TOKEN,
            completion=teacher.max_price.completion / _PER_TOKEN,
            context_length=teacher.context_length,
            distillable=not teacher.control,
        )
        found.setdefault(teacher.model, model)
    return list(found.values())


def write_rehearsal(teachers: TeacherSet, url: str, out: Path, *, key_variable: str) -> None:
    """Write a copy of a teacher file whose every question goes to the loopback server.

    The endpoint has a name of its own, so that no simulated reply passes for a paid one, and
    another variable for its key, so that no real key is sent to it.

    Args:
        teachers: the file.
        url: of the loopback server.
        out: the copy.
        key_variable: the environment variable with the loopback server's key.
    """
    body = teachers.model_dump(mode="json", exclude={"defaults"}, exclude_none=True)
    name = f"{teachers.endpoint.name[:50]}-rehearsal"
    recovery = teachers.endpoint.recovery_cache_s
    body["endpoint"] = {
        "name": name, "base_url": url, "simulated": True, "api_key_env": key_variable,
        "recovery_cache_s": recovery,
    }  # fmt: skip
    for teacher in body["teachers"]:
        teacher.pop("endpoint", None)
        teacher.pop("price", None)
    TeacherSet.model_validate(body)
    text = yaml.safe_dump(body, sort_keys=False, allow_unicode=True)
    out.write_text(f"# A rehearsal: simulated teachers, no money.\n{text}", encoding="utf-8")
