"""Whose sessions may leave, under which licence, and who says so: ``consent.yaml``.

Belongs here: the file, where it is looked for, and what it has to say for a public release. Does
not belong here: leaving rows out (``publishing.selection``) and the card's words.

The file is YAML::

    repositories: [shop, /home/user/tools/*]   # whose sessions may be published
    license: CC-BY-4.0                         # SPDX; or other, with the next two
    # license_name: Our own terms
    # license_link: https://example.org/terms
    contact: https://example.org/withdraw      # where a withdrawal is asked for
    agent_models: [claude-opus-4-5]            # whose words the dataset repeats, by name
    attested_by: Mira Example                  # who says that all this is so

A repository is named as ``sessions`` lists it: a glob of the working directory, or of its last
folder. Without ``--consent`` the file is ``consent.yaml`` beside the lake, else in the working
folder. A public release needs one; where there is one, only sessions of its repositories are in the
dataset, of a private release too.
"""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from composer_pipeline.config_file import read_model
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.eligibility import Reply
from composer_pipeline.preferences.pairs import drop, reply_age
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.preferences.vote import Vote

FILE = "consent.yaml"
_WHAT = "consent file"
_OTHER = "other"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _spdx(text: str) -> str:
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

    if text == _OTHER:
        return text
    try:
        return str(canonicalize_license_expression(text))
    except InvalidLicenseExpression as error:
        raise ValueError(
            f"{text!r} is no SPDX identifier; say other, and give license_name and license_link"
        ) from error


_Text = Annotated[str, Field(min_length=1, max_length=500)]


class Consent(_Model):
    """The content of a consent file."""

    repositories: Annotated[list[_Text], Field(min_length=1)]
    license: Annotated[str, AfterValidator(_spdx)]
    license_name: _Text | None = None
    license_link: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None
    contact: _Text
    agent_models: list[_Text] = []
    attested_by: _Text

    @model_validator(mode="after")
    def _other_has_a_name(self) -> "Consent":
        if (self.license == _OTHER) != bool(self.license_name and self.license_link):
            raise ValueError(
                "license_name and license_link go with license: other, and only with it"
            )
        return self

    def allows(self, project: str) -> bool:
        """Say whether sessions of a working directory may be published."""
        return any(_names(glob, project) for glob in self.repositories)

    @property
    def card_fields(self) -> dict[str, str]:
        """Return the fields of the card's YAML that say the licence."""
        said = {"license_name": self.license_name, "license_link": self.license_link}
        return {"license": self.license.lower(), **{k: v for k, v in said.items() if v}}


def find_consent(lake: Lake, path: str | Path = "") -> Consent | None:
    """Return the consent for a lake: of a file, or of that where it is looked for.

    Args:
        lake: every repository that the file names must be that of a session in it.
        path: the file; without one, :data:`FILE` beside the lake, else in the working folder.

    Returns:
        ``None`` where no file was named and there is none.

    Raises:
        InputError: the file is missing or wrong, or names a repository that the lake has no
            session of.
    """
    places = [Path(path)] if path else [Path(FILE)]
    if not path and lake.local:
        places.insert(0, Path(lake.root).parent / FILE)
    file = next((place for place in places if path or place.is_file()), None)
    if file is None:
        return None
    consent = read_model(file, _WHAT, Consent)
    projects = {project or "" for project in project_of(lake).values()}
    for glob in consent.repositories:
        if not any(_names(glob, project) for project in projects):
            raise InputError(
                f"{_WHAT} {file}, field repositories: lake {lake.url} has no session of {glob!r}"
            )
    return consent


def project_of(lake: Lake) -> dict[str, str]:
    """Return session id to its redacted working directory, that of its main trajectory."""
    rows = lake.rows("sessions", columns=["session_id", "agent_id", "project"])
    ordered = sorted(rows, key=lambda row: (row["agent_id"] or "") == "")
    return {row["session_id"]: row["project"] or "" for row in ordered}


def check_public(consent: Consent | None, models: Mapping[str, Any]) -> Consent:
    """Return the consent to a public release.

    Args:
        consent: of :func:`find_consent`.
        models: the agent's own models in the dataset, by name.

    Raises:
        InputError: there is none, or it does not acknowledge a model by name.
    """
    if consent is None:
        raise InputError(
            f"a public release needs {FILE} beside the lake or in the working folder, or --consent"
            " FILE: the repositories allowed, licence, contact, agent models, who attests"
        )
    for model in sorted(set(models) - set(consent.agent_models)):
        raise InputError(
            f"{_WHAT}, field agent_models: {model} wrote part of the dataset and is not named;"
            " name it there to acknowledge the terms of its author"
        )
    return consent


def _names(glob: str, project: str) -> bool:
    return any(fnmatchcase(name, glob) for name in (project, project.rpartition("/")[2]))


#: Source and terms of the agent's own action among the answers to a state.
AGENT = "agent"
#: Terms of an answer of which nobody recorded any.
UNKNOWN = "unknown"

Row = dict[str, Any]


class Answer(NamedTuple):
    """Who gave an answer. ``license`` is empty where the lake does not know it."""

    model: str
    license: str
    terms: str

    @staticmethod
    def of(reply: Reply) -> "Answer":
        """Return what is said of a reply."""
        return Answer(reply.model, reply.licence, reply.training_terms or UNKNOWN)

    @staticmethod
    def of_row(row: Row) -> "Answer":
        """Return what is said of a row of ``replies``."""
        return Answer(row["model"], row["licence"] or "", row["training_terms"] or UNKNOWN)


class Terms:
    """The rule on training terms, over the answers of a lake.

    Args:
        lake: where the replies are.
        rules: the preference recipe; its ``terms`` decide.
    """

    def __init__(self, lake: Lake, rules: PreferenceRules) -> None:
        self.accepted = tuple(rules.terms.accepted)
        self._lake = lake
        self._of_day = lru_cache(maxsize=1)(self._read)

    def _read(self, day: str) -> dict[tuple[str, str], Answer]:
        """Return (state, teacher) to the newest usable answer of a day."""
        columns = ["state_id", "status", "model", "licence", "training_terms", "created_at",
                   "request_hash"]  # fmt: skip
        rows = self._lake.rows("replies", days=[day], columns=columns)
        return {
            (row["state_id"], row["teacher"]): Answer.of_row(row)
            for row in sorted(rows, key=reply_age)
            if row["status"] == "ok"
        }

    def of_pairs(self, day: str, rows: Iterable[Row]) -> tuple[list[Row], list[Row]]:
        """Return the pairs of a day that stay, and the ledger rows of the others.

        Each that stays gets ``chosen_licenses`` and ``chosen_terms``, parallel to its
        ``chosen_models``; of several answers of one model the loosest terms are told.
        """
        answers = self._of_day(day)
        kept, drops = [], []
        for row in rows:
            nobody = Answer("", "", UNKNOWN)
            chosen = [
                answers.get((row["state_id"], name), nobody) for name in row["chosen_teachers"]
            ]
            if refused := self._refused(chosen):
                drops.append(self.drop(row, "dataset_pairs", "chosen", refused))
                continue
            by_model = {answer.model: answer for answer in sorted(chosen, key=self._looseness)}
            told = [by_model.get(model, nobody) for model in row["chosen_models"]]
            kept.append(
                {
                    **row,
                    "chosen_licenses": [answer.license for answer in told],
                    "chosen_terms": [answer.terms for answer in told],
                }
            )
        return kept, drops

    def of_group(
        self, state_id: str, replies: Sequence[Reply], outcome: Vote
    ) -> tuple[list[Reply], list[Row]]:
        """Return the teachers' answers to a state that stay, and the ledger rows of the others.

        None stays where the consensus itself may not; the answers of controls never do.

        Args:
            state_id: the state.
            replies: its usable replies.
            outcome: their vote.
        """
        row = {"state_id": state_id}
        if refused := self._refused([Answer.of(reply) for reply in outcome.members]):
            return [], [self.drop(row, "dataset_groups", "consensus", refused)]
        kept, drops = [], []
        for reply in replies:
            if reply in outcome.controls:  # bought to measure, not to train on
                continue
            if refused := self._refused([Answer.of(reply)]):
                table = f"dataset_groups:{reply.teacher}"
                drops.append(self.drop(row, table, "candidates", refused))
            else:
                kept.append(reply)
        return kept, drops

    def _refused(self, answers: Iterable[Answer]) -> list[Answer]:
        return [answer for answer in answers if answer.terms not in self.accepted]

    def _looseness(self, answer: Answer) -> int:
        return self.accepted.index(answer.terms)

    def drop(self, row: Row, table: str, field: str, refused: Sequence[Answer]) -> Row:
        """Return the ledger row of an answer, or a row, that must not be trained on."""
        return drop(
            row,
            f"3:terms:{table}",
            field,
            ", ".join(sorted({answer.model for answer in refused})),
            ", ".join(sorted({answer.terms for answer in refused})),
            ", ".join(self.accepted),
        )


def told_of(answers: Sequence[Answer]) -> dict[str, list[str]]:
    """Return the columns that a list of answers has beside it, each parallel to the list."""
    return {
        "models": [answer.model for answer in answers],
        "licenses": [answer.license for answer in answers],
        "terms": [answer.terms for answer in answers],
    }


def agent_answer(model: str | None) -> Answer:
    """Return what is said of the agent's own action."""
    return Answer(model or UNKNOWN, "", AGENT)
