"""Resources: where the lake, the sessions, the teachers and the recipes are.

``OPENROUTER_API_KEY`` and ``HF_TOKEN`` are read from the environment by the code that sends them,
so they are in no run configuration and no log.
"""

from decimal import Decimal, InvalidOperation
from pathlib import Path

import dagster as dg

from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.settings import Settings, recipes_dir
from composer_pipeline.traces.discover import session_folders


def amount_of(given: object, name: str) -> Decimal:
    """Return an amount in USD, given as a number or as text."""
    wrong = f"{name}: {given!r} is not an amount in USD"
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise InputError(wrong)
    try:
        return Decimal(str(given).strip())
    except InvalidOperation as error:
        raise InputError(wrong) from error


class LakeResource(dg.ConfigurableResource[Lake]):
    """The Parquet lake: a folder or any fsspec URL (``COMPOSER_LAKE``)."""

    url: str = "lake"

    def open(self) -> Lake:
        """Return the lake."""
        return Lake(self.url)


class SessionsResource(dg.ConfigurableResource[None]):
    """The folder of sessions (``COMPOSER_SESSIONS``); empty for those of every agent here."""

    path: str = ""

    def paths(self) -> list[Path]:
        """Return the folders to harvest."""
        return session_folders(self.path)


class RepositoriesResource(dg.ConfigurableResource[None]):
    """The file of repositories that git is asked in (``COMPOSER_REPOSITORIES``), if there is one.

    A repository that sessions worked in, and that is where it was, need not be named.
    """

    file: str = ""

    def folders(self) -> tuple[str, ...]:
        """Return the folders that the file names."""
        from composer_pipeline.survival.stage import read_repositories

        return read_repositories(self.file)


class TeachersResource(dg.ConfigurableResource[None]):
    """The teacher file, the ledger's path and the default ceiling of a run.

    A ledger on PostgreSQL is set by ``COMPOSER_LEDGER``: its URL may contain a password and is
    therefore in no resource.
    """

    file: str
    ledger: str = ""
    max_usd: str = "1.00"

    def ceiling(self, override: object = "") -> Decimal:
        """Return the ceiling of a run in USD."""
        chosen = self.max_usd if override in ("", None) else override
        return amount_of(chosen, "max_usd")


class RecipesResource(dg.ConfigurableResource[None]):
    """The preference, data-juicer, training and night recipes, and the folder of training runs.

    An evaluation takes ``evaluate_per_kind`` states of each kind (``COMPOSER_EVALUATE_PER_KIND``);
    0 is all.
    """

    normalize: str
    train: str
    run_root: str
    preferences: str = str(recipes_dir() / "preferences" / "default.yaml")
    nights: str = str(recipes_dir() / "nights" / "default.yaml")
    evaluate_per_kind: int = 0

    def rules(self) -> PreferenceRules:
        """Return the preference recipe."""
        return PreferenceRules.load(self.preferences)


class PublicationResource(dg.ConfigurableResource[None]):
    """The repository on the Hub, whether to publish nightly, and whether to allow simulated rows.

    ``COMPOSER_PUBLISH_REPO``, ``COMPOSER_PUBLISH_NIGHTLY`` and ``COMPOSER_PUBLISH_SIMULATED``;
    without a repository nothing is published. ``models`` is that of the nights' models
    (``COMPOSER_MODEL_REPO``).
    """

    repo: str = ""
    models: str = ""
    nightly: bool = False
    simulated: bool = False


class RetentionResource(dg.ConfigurableResource[None]):
    """How many days Dagster keeps runs (``COMPOSER_KEEP_RUNS_DAYS``); 0 keeps them for ever."""

    keep_days: int = 0


def default_resources(settings: Settings) -> dict[str, object]:
    """Return the resources of the code location, from the environment's settings."""
    return {
        "lake": LakeResource(url=settings.lake),
        "sessions": SessionsResource(path=settings.sessions),
        "repositories": RepositoriesResource(file=settings.repositories),
        "teachers": TeachersResource(
            file=settings.teachers,
            ledger="" if "://" in settings.ledger else settings.ledger,
            max_usd=settings.max_usd,
        ),
        "recipes": RecipesResource(
            normalize=settings.normalize,
            train=settings.train,
            run_root=str(settings.run_root),
            preferences=settings.preferences,
            nights=settings.nights,
            evaluate_per_kind=settings.evaluate_per_kind,
        ),
        "publication": PublicationResource(
            repo=settings.publish_repo,
            models=settings.model_repo,
            nightly=settings.publish_nightly,
            simulated=settings.publish_simulated,
        ),
        "retention": RetentionResource(keep_days=settings.keep_runs_days),
        "pipes": dg.PipesSubprocessClient(),
    }
