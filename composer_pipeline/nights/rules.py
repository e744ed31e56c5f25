"""The rules of nights, ``recipes/nights/*.yaml``: buffer, anchors, gate and canaries."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from composer_pipeline.config_file import read_model
from composer_pipeline.settings import recipe_file

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
#: A share of 0 or 1 would make the rule meaningless.
Part = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Buffer(_Model):
    """Which old rows a night mixes with its new ones.

    ``old_share`` of all rows are old, if there are enough. An old row is drawn with a weight that
    halves in ``half_life_days``. A session gives at most ``per_session`` states, and a project at
    most ``per_project`` of the old ones where there are several projects.
    """

    old_share: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.5
    half_life_days: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 14
    per_session: Count = 20
    per_project: Part = 0.5


class Anchors(_Model):
    """The frozen states on which no model may be worse, by more than ``margin``, than before.

    Of gains, the mistakes that earlier nights mended, no loss above ``gains_margin`` may be seen,
    and of few sessions none be certain. It need not be excluded: their reference is a model that
    was promoted for them, so that one as good has fewer right.

    Each kind has at most ``states``, of which a session gives at most ``per_session``. It grows
    with the held-out sessions of promoted nights until it is full, and is drawn anew when its
    oldest state is ``refresh_days`` old.
    """

    states: Count = 400
    per_session: Count = 3
    refresh_days: Count = 30
    margin: Part = 0.05
    gains_margin: Part = 0.1


class GateRules(_Model):
    """The test on new held-out states, at most ``states`` of them.

    ``alpha`` is the chance that any of ``nights`` tests promotes a model that is not better; each
    test has an equal part of it.
    """

    alpha: Part = 0.05
    nights: Count = 30
    states: Count = 200

    @property
    def level(self) -> float:
        """The level of one test."""
        return self.alpha / self.nights


class CanaryRules(_Model):
    """What of tonight's data holds the night, compared with the accepted nights before.

    ``rejected``, ``project`` and ``contradicted`` are rises of shares, ``labels`` and ``tools``
    total variation distances between distributions, ``usable`` a ratio. A comparison needs
    ``min_states`` and ten sessions on both sides.
    """

    rejected: Share = 0.25
    project: Share = 0.8
    usable: Share = 0.5
    labels: Share = 0.3
    tools: Share = 0.35
    contradicted: Share = 0.25
    min_states: Count = 20


class NightRules(_Model):
    """The rules of nights."""

    buffer: Buffer = Buffer()
    anchors: Anchors = Anchors()
    gate: GateRules = GateRules()
    canaries: CanaryRules = CanaryRules()

    @staticmethod
    def load(path: str | Path) -> "NightRules":
        """Read a file, or the shipped one of this name.

        Raises:
            InputError: the file is missing, is no YAML, or has a bad or unknown field.
        """
        return read_model(recipe_file(path, "nights"), "night rules", NightRules, empty=True)
