"""Whose sessions may be published, under which licence and on whose word: ``consent.yaml``.

The file is YAML::

    repositories: [shop, /home/user/tools/*]   # whose sessions may be published
    license: CC-BY-4.0                         # SPDX; or other, with the next two
    # license_name: Our own terms
    # license_link: https://example.org/terms
    contact: https://example.org/withdraw      # where to ask for a withdrawal
    agent_models: [claude-opus-4-5]            # models whose words the dataset repeats
    attested_by: Mira Example                  # who attests all this

A repository is a glob of the sessions' working directory, or of its last folder. Without
``--consent`` the file is ``consent.yaml`` beside the lake, else in the working folder. A public
release needs one; if there is one, only sessions of its repositories are in the dataset, even in a
private release.
"""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from composer_pipeline.config_file import read_model
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.eligibility import Reply
from composer_pipeline.preferences.pairs import OWN_SOURCES, drop
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.preferences.vote import Vote

FILE = "consent.yaml"
_KIND = "consent file"
_OTHER = "other"


def _spdx(text: str) -> str:
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

    if text == _OTHER:
        return text
    try:
        return str(canonicalize_license_expression(text))
    except InvalidLicenseExpression as error:
        raise ValueError(
            f"{text!r} is not an SPDX identifier; use other, with license_name and license_link"
        ) from error


_Text = Annotated[str, Field(min_length=1, max_length=500)]


class Consent(BaseModel):
    """The content of a consent file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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
        """Return True if sessions of a working directory may be published."""
        return any(_names(glob, project) for glob in self.repositories)

    @property
    def card_fields(self) -> dict[str, str]:
        """The licence as fields of the card's YAML."""
        fields = {"license_name": self.license_name, "license_link": self.license_link}
        return {"license": self.license.lower(), **{k: v for k, v in fields.items() if v}}


def find_consent(lake: Lake, path: str | Path = "") -> Consent | None:
    """Return the consent of a file, or of that beside the lake or in the working folder.

    ``None`` where no file was named and there is none. Every repository that the file names must
    be that of a session in the lake.
    """
    places = [Path(path)] if path else [Path(FILE)]
    if not path and lake.local:
        places.insert(0, Path(lake.root).parent / FILE)
    file = next((place for place in places if path or place.is_file()), None)
    if file is None:
        return None
    consent = read_model(file, _KIND, Consent)
    projects = {project or "" for project in project_of(lake).values()}
    for glob in consent.repositories:
        if not any(_names(glob, project) for project in projects):
            raise InputError(
                f"{_KIND} {file}, field repositories: lake {lake.url} has no session of {glob!r}"
            )
    return consent


def project_of(lake: Lake) -> dict[str, str]:
    """Return session id to its redacted working directory, that of its main trajectory."""
    rows = lake.rows("sessions", columns=["session_id", "agent_id", "project"])
    ordered = sorted(rows, key=lambda row: (row["agent_id"] or "") == "")
    return {row["session_id"]: row["project"] or "" for row in ordered}


def check_public(consent: Consent | None, models: Mapping[str, Any]) -> Consent:
    """Return the consent; raise InputError unless it covers a public release with these models."""
    if consent is None:
        raise InputError(
            f"a public release needs {FILE} beside the lake or in the working folder, or --consent"
            " FILE: the repositories allowed, licence, contact, agent models, who attests"
        )
    for model in sorted(set(models) - set(consent.agent_models)):
        raise InputError(
            f"{_KIND}, field agent_models: {model} wrote part of the dataset and is not named;"
            " name it there to acknowledge the terms of its author"
        )
    return consent


def _names(glob: str, project: str) -> bool:
    return any(fnmatchcase(name, glob) for name in (project, project.rpartition("/")[2]))


#: Source and terms of the agent's own action among the answers to a state.
AGENT = "agent"
#: Terms of an answer for which none were recorded.
UNKNOWN = "unknown"

Row = dict[str, Any]


class Answer(NamedTuple):
    """Who gave an answer. ``license`` is empty where the lake does not know it."""

    model: str
    license: str
    terms: str

    @staticmethod
    def of(reply: Reply) -> "Answer":
        """Return the origin of a reply."""
        return Answer(reply.model, reply.licence, reply.training_terms or UNKNOWN)

    @staticmethod
    def of_row(row: Row) -> "Answer":
        """Return the origin of a row of ``replies``."""
        return Answer(row["model"], row["licence"] or "", row["training_terms"] or UNKNOWN)


class Terms:
    """The rule on training terms."""

    def __init__(self, rules: PreferenceRules) -> None:
        self.accepted = tuple(rules.terms.accepted)

    def of_pair(self, row: Row, replies: Sequence[Reply]) -> tuple[Row | None, Row | None]:
        """Return a pair that may be trained on, or else its drop, given its state's replies.

        The pair gets ``chosen_licenses`` and ``chosen_terms``, parallel to its ``chosen_models``;
        of several answers of one model the loosest terms count.
        """
        if row.get("source") in OWN_SOURCES:
            models = row["chosen_models"]
            return {**row, "chosen_licenses": [""] * len(models),
                    "chosen_terms": [AGENT] * len(models)}, None  # fmt: skip
        answers, nobody = {r.teacher: Answer.of(r) for r in replies}, Answer("", "", UNKNOWN)
        chosen = [answers.get(name, nobody) for name in row["chosen_teachers"]]
        if refused := self._refused(chosen):
            return None, self.drop(row, "dataset_pairs", "chosen", refused)
        by_strictness = sorted(chosen, key=lambda answer: self.accepted.index(answer.terms))
        by_model = {answer.model: answer for answer in by_strictness}
        named = [by_model.get(model, nobody) for model in row["chosen_models"]]
        licenses, terms = [answer.license for answer in named], [answer.terms for answer in named]
        return {**row, "chosen_licenses": licenses, "chosen_terms": terms}, None

    def of_group(
        self, state_id: str, replies: Sequence[Reply], outcome: Vote
    ) -> tuple[list[Reply], list[Row]]:
        """Return a state's usable replies that may be trained on, and the drops of the others.

        None stays if the consensus itself may not; the answers of controls never do.
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

    def drop(self, row: Row, table: str, field: str, refused: Sequence[Answer]) -> Row:
        """Return the row of ``drops`` for an answer or a row that must not be trained on."""
        return drop(
            row,
            f"3:terms:{table}",
            field,
            ", ".join(sorted({answer.model for answer in refused})),
            ", ".join(sorted({answer.terms for answer in refused})),
            ", ".join(self.accepted),
        )


def answer_columns(answers: Sequence[Answer]) -> dict[str, list[str]]:
    """Return the columns that a list of answers has beside it, each parallel to the list."""
    return {
        "models": [answer.model for answer in answers],
        "licenses": [answer.license for answer in answers],
        "terms": [answer.terms for answer in answers],
    }
