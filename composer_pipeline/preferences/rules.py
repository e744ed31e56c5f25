"""The preference recipe, ``recipes/preferences/*.yaml``."""

import hashlib
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from composer_pipeline.config_file import read_model
from composer_pipeline.settings import recipe_file, recipes_dir

Weight = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Hindsight(_Model):
    """Weights of pairs by the outcome of the agent's action; 0 drops the pair."""

    student_ok: Weight = 0.5
    student_bad: Weight = 1.5


class Contamination(_Model):
    """What happens to sessions on a benchmark's repository, by strength of the evidence."""

    evidence: Literal["drop", "flag"] = "drop"
    by_name: Literal["drop", "flag"] = "flag"
    files: list[str] = []


class Split(_Model):
    """The share of the repositories, or groups of sessions, that no model is trained on.

    Without ``by``, repositories are held out where there are five or more.
    """

    validation_share: Annotated[Share, Field(lt=1)] = 0.2
    by: Literal["repository", "session"] | None = None


class Terms(_Model):
    """Which answers may be trained on, by the training terms of their providers."""

    accepted: Annotated[
        list[Literal["enforced", "declared", "unknown", "not enforced"]], Field(min_length=1)
    ] = ["enforced", "declared"]


class Separability(_Model):
    """The bound of the separability check, and how much data a measurement needs."""

    max_auc: Annotated[float, Field(ge=0.5, le=1, allow_inf_nan=False)] = 0.7
    min_pairs: Annotated[int, Field(ge=10)] = 50
    min_sessions: Annotated[int, Field(ge=2)] = 5
    folds: Annotated[int, Field(ge=2, le=20)] = 5


class NearDuplicates(_Model):
    """When two pairs count as near-duplicates: Jaccard of word 5-grams."""

    threshold: Annotated[Share, Field(gt=0)] = 0.8
    tail_chars: Annotated[int, Field(ge=100, le=100_000)] = 2000


class JudgeRule(_Model):
    """The paid judge of whether two actions mean the same (level L3), and its ceiling."""

    teacher: str
    max_usd: Annotated[Decimal, Field(gt=0, le=1_000_000, allow_inf_nan=False)]


#: What refuses a dataset; of a made-up world, whose sides are few, a proof accepts all.
Gate = Literal["style", "lengths", "variety", "anywhere", "checks"]
GATES: list[Gate] = list(get_args(Gate))


class PreferenceRules(_Model):
    """A preference recipe: which pairs are kept, and the bounds of their checks.

    ``min_survival`` is the share of its lines that must be alive for an action of the agent to be
    a success, where git knows it. ``contested`` is what happens to pairs whose rejected side git
    kept.
    """

    min_survival: Share = 0.5
    contested: Literal["flag", "drop"] = "flag"
    max_pairs_per_session: Annotated[int, Field(ge=1)] | None = 50
    own_pairs: bool = True
    hindsight: Hindsight = Hindsight()
    contamination: Contamination = Contamination()
    split: Split = Split()
    terms: Terms = Terms()
    separability: Separability = Separability()
    near_duplicates: NearDuplicates = NearDuplicates()
    semantic_judge: JudgeRule | None = None
    accept: list[Gate] = []

    @staticmethod
    def load(path: str | Path) -> "PreferenceRules":
        """Read a recipe; the files that it names become absolute paths.

        Raises:
            InputError: the file is missing, is no YAML, or has a bad or unknown field.
        """
        file = recipe_file(path, "preferences")
        rules = read_model(file, "preference recipe", PreferenceRules, empty=True)
        files = [str((file.parent / name).absolute()) for name in rules.contamination.files]
        named = rules.contamination.model_copy(update={"files": files})
        return rules.model_copy(update={"contamination": named})

    def digest(self) -> str:
        """Return a hash of the rules and the contents of the benchmark lists, wherever they are."""
        found = hashlib.blake2b(digest_size=6)
        nowhere = self.contamination.model_copy(update={"files": []})
        found.update(self.model_copy(update={"contamination": nowhere}).model_dump_json().encode())
        for file in (bundled_benchmarks(), *map(Path, self.contamination.files)):
            found.update(b"\0" + (file.read_bytes() if file.is_file() else b""))
        return found.hexdigest()


#: A recipe, a file, or the name of a shipped one; the defaults when ``None``.
Rules = PreferenceRules | str | Path | None


def rules_of(given: Rules) -> PreferenceRules:
    """Return the recipe that a caller means."""
    if isinstance(given, PreferenceRules):
        return given
    return PreferenceRules() if given is None else PreferenceRules.load(given)


def bundled_benchmarks() -> Path:
    """Return the path of the list of benchmarks that is always used."""
    return recipes_dir() / "preferences" / "benchmarks.yaml"
