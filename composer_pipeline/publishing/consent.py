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

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from composer_pipeline.config_file import read_model
from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake

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
