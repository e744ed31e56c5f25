"""Where teachers are asked: addresses, keys, and servers of one's own.

Belongs here: the typed form of an endpoint and its checks, and keys read from the
environment. Does not belong here: who is asked (``replay.teachers``) and HTTP
(``replay.provider``).

A key is named here (``api_key_env``), never written here.
"""

import os
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from composer_pipeline.errors import InputError

#: Replaces ``endpoint.base_url`` of a *simulated* endpoint, whose port is only known
#: once its loopback server runs. A real endpoint never reads it: an environment
#: variable must not be able to send sessions somewhere else.
URL_VARIABLE = "COMPOSER_OPENROUTER_URL"


_Variable = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]


class Endpoint(BaseModel):
    """Where the teachers are. ``name`` is part of every request's key, the URL is not."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]
    base_url: str
    #: ``null`` for a server of api ``openai`` that asks for no key.
    api_key_env: _Variable | None = "OPENROUTER_API_KEY"
    simulated: bool = False
    #: ``openai``: any server with OpenAI's chat completions (vLLM, a gateway). It gets none
    #: of OpenRouter's fields. Its replies name no cost, so ``max_price`` is taken as the
    #: price of every token; 0 is a price.
    api: Literal["openrouter", "openai"] = "openrouter"
    #: Variable with a key that may make keys. Where it is set, each run makes a key of its
    #: own, limited to the run's ceiling, whose usage is the true bill of the run.
    provisioning_key_env: _Variable | None = None
    #: Whether the API key is used with this ledger only. Its usage is then the true bill.
    dedicated_key: bool = False
    #: How long the provider may keep replies so that a paid one can be fetched again
    #: after a crash. ``off`` costs duplicate bills after a crash, never overspend.
    recovery_cache_s: Annotated[int, Field(ge=0, le=86_400)] = 86_400

    @model_validator(mode="after")
    def _reachable_as_declared(self) -> Self:
        check_url(self.base_url, simulated=self.simulated)
        if self.provisioning_key_env and self.dedicated_key:
            raise ValueError("provisioning_key_env and dedicated_key exclude each other")
        if self.provisioning_key_env and self.provisioning_key_env == self.api_key_env:
            raise ValueError("provisioning_key_env and api_key_env name the same variable")
        if self.api == "openai" and "api_key_env" not in self.model_fields_set:
            raise ValueError("api openai needs api_key_env, the variable with its own key or null")
        if self.api == "openrouter" and self.api_key_env is None:
            raise ValueError("api openrouter needs api_key_env")
        if self.api == "openai" and (self.provisioning_key_env or self.dedicated_key):
            raise ValueError("only api openrouter tells the usage of a key")
        return self

    def key(self) -> str | None:
        """Return the API key from the environment.

        ``None`` only for a simulated endpoint, or one of api ``openai``, which may need none.

        Raises:
            InputError: the variable is not set, or holds what is no key; the message names it.
        """
        if self.api_key_env is None:
            return None
        found = key_in(self.api_key_env)
        if found is None and not self.simulated and self.api == "openrouter":
            raise InputError(
                f"environment variable {self.api_key_env} is not set;"
                f" endpoint {self.name} needs an API key"
            )
        return found

    def provisioning_key(self) -> str | None:
        """Return the key that makes keys; ``None`` where the file names none.

        Raises:
            InputError: the variable is not set, or holds what is no key; the message names it.
        """
        name = self.provisioning_key_env
        if name is None:
            return None
        found = key_in(name)
        if found is None:
            raise InputError(
                f"environment variable {name} is not set; endpoint {self.name}"
                " names it as provisioning_key_env"
            )
        return found

    def url(self) -> str:
        """Return the base URL to use, without a trailing slash.

        Raises:
            InputError: the environment variable names no loopback address.
        """
        override = os.environ.get(URL_VARIABLE) if self.simulated else None
        if override:
            try:
                check_url(override, simulated=True)
            except ValueError as error:
                raise InputError(f"environment variable {URL_VARIABLE}: {error}") from error
        return (override or self.base_url).rstrip("/")


def check_url(url: str, *, simulated: bool) -> None:
    """Check that a base URL is where such an endpoint may be.

    Raises:
        ValueError: a simulated endpoint outside this machine, or a real one without TLS.
    """
    parts = urlsplit(url)
    loopback = parts.hostname in ("127.0.0.1", "localhost", "::1")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not an http or https URL")
    if parts.username or parts.password or parts.query:
        raise ValueError("the URL must not carry credentials or a query")
    if simulated and not loopback:
        raise ValueError(f"a simulated endpoint must be on this machine, not {parts.hostname}")
    if parts.scheme == "http" and not loopback:
        raise ValueError(f"http without TLS is only allowed on this machine, not {parts.hostname}")


class OwnEndpoint(Endpoint):
    """A server of one's own for one teacher: vLLM, Ollama, a company's gateway.

    It speaks OpenAI's chat completions and gets none of OpenRouter's fields.
    """

    api_key_env: _Variable | None = None
    api: Literal["openai"] = "openai"

    @model_validator(mode="before")
    @classmethod
    def _key_is_optional(cls, data: object) -> object:
        return {"api_key_env": None, **data} if isinstance(data, dict) else data


def key_in(variable: str) -> str | None:
    """Return the key in an environment variable; ``None`` where it is not set or empty.

    Raises:
        InputError: it holds what no HTTP header can carry; the message names the variable.
    """
    key = os.environ.get(variable, "").strip()
    if not key:
        return None
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise InputError(
            f"environment variable {variable} holds no key: a key is printable ASCII without"
            " spaces or line breaks"
        )
    return key
