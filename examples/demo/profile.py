"""The demo profile: the bundled sessions, a lake of their own, teachers on loopback.

A user's own lake is never touched by them.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from composer_pipeline.settings import Settings, recipes_dir

DEMO_LAKE = "lake-demo"
#: The bundled sessions are of four days, and no more will come.
LAST_DAY = "2026-11-19"
#: States of a kind that are evaluated: minutes, not measurement.
FEW_STATES = 6


def demo_settings(
    *, lake: str = "", teachers: str = "", sessions: str = "", max_usd: str = ""
) -> Settings:
    """Return the demo's settings; each argument replaces one of them."""
    from composer_pipeline.testing.samples import sample_sessions_dir

    recipes = recipes_dir()
    named = repositories_file(lake or DEMO_LAKE)
    return Settings(
        lake=lake or DEMO_LAKE,
        repositories=str(named) if named.is_file() and not sessions else "",
        sessions=sessions or str(sample_sessions_dir()),
        teachers=teachers or str(recipes / "teachers" / "demo.yaml"),
        normalize=str(recipes / "normalize" / "demo.yaml"),
        train=str(recipes / "train" / "demo.yaml"),
        max_usd=max_usd or "1.00",
        evaluate_per_kind=FEW_STATES,
        last_day="" if sessions else LAST_DAY,
    )


def repositories_file(lake: str) -> Path:
    """Return the file that names the sample repositories, beside the demo's lake."""
    return Path(f"{lake}-repositories", "repositories.yaml")


def to_env(settings: Settings) -> dict[str, str]:
    """Return the settings as environment variables, for a child process."""
    return {f"COMPOSER_{k.upper()}": str(v) for k, v in settings.model_dump().items() if v}


@contextmanager
def loopback(port: int = 0) -> Iterator[str]:
    """Run the loopback provider, point this process at it, and yield its URL."""
    from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
    from composer_pipeline.testing.personas import Script
    from composer_pipeline.testing.samples import answers, sample_sessions_dir

    key = secrets.token_hex(8)
    script = Script.from_sessions(sample_sessions_dir(), answers())
    with LoopbackOpenRouter(script=script, api_key=key, port=port) as server:
        before = {
            name: os.environ.get(name)
            for name in ("COMPOSER_OPENROUTER_URL", "COMPOSER_LOOPBACK_KEY")
        }
        os.environ.update(COMPOSER_OPENROUTER_URL=server.url, COMPOSER_LOOPBACK_KEY=key)
        try:
            yield server.url
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
