"""The teacher file: which models are asked, where, and under which price and privacy terms.

Money in a teacher file is USD per **million** tokens; quote it (``"0.30"``) so that it is read
as a decimal. The API key is named here (``api_key_env``), never written here.
"""

import hashlib
import os
import re
from collections.abc import Iterable
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from composer_pipeline.config_file import read_model
from composer_pipeline.errors import InputError
from composer_pipeline.settings import recipe_file

#: Replaces ``endpoint.base_url`` of a *simulated* endpoint, whose port is only known once its
#: loopback server runs. A real endpoint never reads it: an environment variable must not be
#: able to send sessions somewhere else.
URL_VARIABLE = "COMPOSER_OPENROUTER_URL"
#: Share of the states that a control is asked about if its entry does not say.
CONTROL_SHARE = 0.03

PromptCache = Literal["chain", "longest_first", "none"]
Prompt = Literal["full", "window"]
SkipRule = Literal["todo", "named_read", "confirmation", "near_duplicate"]
_CacheControl = Literal["off", "5m", "1h"]
_Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]
_Variable = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]
_Price = Annotated[Decimal, Field(ge=0, le=10_000)]
_Seconds = Annotated[float, Field(ge=0, le=3600)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Endpoint(_Model):
    """Where the teachers are. ``name`` is part of every request's key, the URL is not."""

    name: _Name
    base_url: str
    #: ``null`` for a server of api ``openai`` that asks for no key.
    api_key_env: _Variable | None = "OPENROUTER_API_KEY"
    simulated: bool = False
    #: ``openai``: any server with OpenAI's chat completions (vLLM, a gateway). It gets none
    #: of OpenRouter's fields. Its replies name no cost, so ``max_price`` is taken as the
    #: price of every token; 0 is a price.
    api: Literal["openrouter", "openai"] = "openrouter"
    #: Variable with a key that may make keys. If it is given, each run makes a key of its own,
    #: limited to the run's ceiling, whose usage is the true bill of the run.
    provisioning_key_env: _Variable | None = None
    #: Whether the API key is used with this ledger only. Its usage is then the true bill.
    dedicated_key: bool = False
    #: How long the provider may keep replies so that a paid one can be fetched again
    #: after a crash. 0 costs duplicate bills after a crash, never overspend.
    recovery_cache_s: Annotated[int, Field(ge=0, le=86_400)] = 86_400

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _check_url(self.base_url, simulated=self.simulated)
        if self.provisioning_key_env and self.dedicated_key:
            raise ValueError("provisioning_key_env and dedicated_key exclude each other")
        if self.provisioning_key_env and self.provisioning_key_env == self.api_key_env:
            raise ValueError("provisioning_key_env and api_key_env name the same variable")
        if self.api == "openrouter" and self.api_key_env is None:
            raise ValueError("api openrouter needs api_key_env")
        named = "api_key_env" in self.model_fields_set or isinstance(self, OwnEndpoint)
        if self.api == "openai" and not named:
            raise ValueError("api openai needs api_key_env, the variable with its own key or null")
        if self.api == "openai" and (self.provisioning_key_env or self.dedicated_key):
            raise ValueError("only api openrouter reports the usage of a key")
        return self

    def key(self) -> str | None:
        """Return the API key of the environment; an InputError if it is needed and not set."""
        needed = not self.simulated and self.api == "openrouter"
        return _key_in(self.api_key_env, f"endpoint {self.name} needs an API key" if needed else "")

    def provisioning_key(self) -> str | None:
        """Return the key that makes keys; ``None`` if the file names none."""
        why = f"endpoint {self.name} names it as provisioning_key_env"
        return _key_in(self.provisioning_key_env, why)

    def url(self) -> str:
        """Return the base URL to use, without a trailing slash."""
        override = os.environ.get(URL_VARIABLE) if self.simulated else None
        if override:
            try:
                _check_url(override, simulated=True)
            except ValueError as error:
                raise InputError(f"environment variable {URL_VARIABLE}: {error}") from error
        return (override or self.base_url).rstrip("/")


class OwnEndpoint(Endpoint):
    """A server for one teacher alone: vLLM, Ollama, a company's gateway."""

    api_key_env: _Variable | None = None
    api: Literal["openai"] = "openai"


def _check_url(url: str, *, simulated: bool) -> None:
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


def _key_in(variable: str | None, needed: str) -> str | None:
    """Return the key in a variable; ``needed`` says why it must be set, if it must."""
    key = os.environ.get(variable, "").strip() if variable else ""
    if variable and needed and not key:
        raise InputError(f"environment variable {variable} is not set; {needed}")
    if not (key.isascii() and key.isprintable()) or " " in key:  # no HTTP header can carry it
        raise InputError(
            f"environment variable {variable} holds no key: a key is printable ASCII without"
            " spaces or line breaks"
        )
    return key or None


class MaxPrice(_Model):
    """The highest price of an endpoint that may answer, USD per million tokens."""

    # Sent to the router, and no part of a reply's key: changing it buys nothing again.

    prompt: _Price
    completion: _Price


class Provider(_Model):
    """OpenRouter's provider preferences; the defaults are the strict ones.

    They are part of every body and so of every reply's key, and are recorded with the replies.
    ``enforce_distillable_text: false`` is the explicit choice to ask models whose authors do not
    allow training on their outputs.
    """

    data_collection: Literal["deny", "allow"] = "deny"
    zdr: bool = True
    require_parameters: bool = True
    enforce_distillable_text: bool = True
    allow_fallbacks: bool = True
    only: list[str] | None = None
    ignore: list[str] | None = None
    quantizations: list[str] | None = None


def draw(state_id: str) -> int:
    """Return a state's place in a fixed random order of all states, below 2^64."""
    digest = hashlib.blake2b(state_id.encode(), digest_size=8, person=b"audit").digest()
    return int.from_bytes(digest, "big")


def sampled(state_id: str, share: float) -> bool:
    """Return True if a state is in the sample of a share of all states."""
    # The same states every time; a smaller sample is part of every larger one.
    return draw(state_id) < share * 2**64


class Teacher(_Model):
    """One model that answers states; each ``family`` has one vote."""

    name: _Name
    family: _Name
    model: str
    licence: str
    #: What a token costs at a server that states no cost; 0 is a price.
    price: MaxPrice | None = None
    #: The highest price at the file's endpoint; of an own endpoint it is the price.
    max_price: MaxPrice
    #: A server of this teacher alone; the file's endpoint if there is none.
    endpoint: OwnEndpoint | None = None
    #: Other names that this model answers by, besides ``model`` and its dated name.
    served_as: list[str] = []
    max_tokens: Annotated[int, Field(ge=16, le=200_000)] = 2048
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    context_length: Annotated[int, Field(ge=1024, le=10_000_000)] = 131_072
    concurrency: Annotated[int, Field(ge=1, le=1024)] = 8
    #: ``window``: a prompt that is longer than ``window_tokens``, tools included, is cut as
    #: training cuts it: the task, the latest reads of touched files, the last turns.
    prompt: Prompt = "full"
    window_tokens: Annotated[int, Field(ge=2048, le=10_000_000)] = 16_384
    #: How the provider caches prompts, which decides the order of a session's calls.
    #: ``chain``: in order, each prompt extends the one before. ``longest_first``: the
    #: provider caches prefixes by itself, so the longest prompt goes first and the shorter
    #: ones then read from it side by side. ``none``: no order.
    prompt_cache: PromptCache = "chain"
    #: Ask for prompt caching if a provider needs to be asked (Anthropic, Qwen), for five
    #: minutes or an hour. Writing to the cache costs more; the worst case counts it.
    cache_control: _CacheControl = "off"
    #: A control's replies never vote, whatever its family, and nothing is trained on them: they
    #: measure how often the agent's own model would have done something else (the noise floor),
    #: so it should be of the agent's family.
    control: Annotated[bool, Field(strict=True)] = False
    #: Share of the states that are asked, chosen by a hash of the state's id (:func:`sampled`),
    #: so every run asks about the same ones. The default of a control is 0.03: with the same
    #: ``selection.audit_share`` these are states that every teacher is asked about.
    ask_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    provider: Provider = Provider()

    @model_validator(mode="before")
    @classmethod
    def _derived(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if data.get("control") is True:
            data = {"ask_share": CONTROL_SHARE, **data}
        if data.get("price") is not None:
            return {**data, "max_price": data["price"]}
        if data.get("endpoint") is not None:
            raise ValueError("an own endpoint needs price: {prompt, completion}; 0 is a price")
        return data

    @field_validator("model")
    @classmethod
    def _pinned(cls, value: str) -> str:
        if not re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9_.:@/-]*", value):
            raise ValueError(f"{value!r} is not a model slug")
        if value.startswith("openrouter/") or value.endswith(("latest", ":nitro", ":online")):
            raise ValueError(f"{value!r} does not name one fixed model at its own price")
        return value

    @property
    def window(self) -> int | None:
        """The tokens to which a prompt is cut; ``None`` where it is not."""
        return self.window_tokens if self.prompt == "window" else None

    @model_validator(mode="after")
    def _window_fits(self) -> Self:
        if self.window and self.window + self.max_tokens > self.context_length:
            raise ValueError(
                f"window_tokens {self.window} and max_tokens {self.max_tokens} are more than"
                f" context_length {self.context_length}"
            )
        return self

    def asks(self, state_id: str) -> bool:
        """Return True if the teacher may be asked about a state: it is in ``ask_share``."""
        return self.ask_share == 1 or sampled(state_id, self.ask_share)


class Selection(_Model):
    """Which questions are worth their price; the default asks everything."""

    #: ``exact`` stops asking when the rest can no longer change the vote. ``student`` also
    #: stops when every answer so far agrees with the agent: cheaper, and it misses pairs.
    curtail: Literal["off", "exact", "student"] = "off"
    #: Share of the states, chosen by hash, that are asked in full all the same.
    audit_share: Annotated[float, Field(ge=0, le=1)] = 0.03
    #: Ask first where the trace shows that something went wrong.
    prioritise: bool = True
    #: Kinds of states that are not asked, except for the audit sample.
    skip: list[SkipRule] = []
    #: Ask about at most so many states, the most promising ones.
    max_states: Annotated[int, Field(ge=1)] | None = None

    @field_validator("curtail", mode="before")
    @classmethod
    def _off_is_a_word(cls, value: Any) -> Any:
        return "off" if value is False else value  # YAML 1.1 reads a bare off as false

    @property
    def active(self) -> bool:
        """Whether anything may be left out."""
        return self.curtail != "off" or bool(self.skip) or self.max_states is not None


class Defaults(_Model):
    """Values of :class:`Teacher` that every teacher of the file starts from."""

    max_tokens: int | None = None
    temperature: float | None = None
    context_length: int | None = None
    concurrency: int | None = None
    prompt: Prompt | None = None
    window_tokens: int | None = None
    prompt_cache: PromptCache | None = None
    cache_control: _CacheControl | None = None
    max_price: MaxPrice | None = None
    provider: Provider | None = None


class Limits(_Model):
    """Retries and timeouts. None of these can raise the cost above the ceiling."""

    attempts: Annotated[int, Field(ge=1, le=20)] = 5
    backoff_s: Annotated[float, Field(ge=0, le=600)] = 1.0
    backoff_cap_s: _Seconds = 60.0
    read_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 600.0
    drain_s: _Seconds = 60.0
    #: How old a lost call must be before it is asked for again: until its generation has
    #: ended at the provider, the same bytes would be bought a second time.
    recover_after_s: _Seconds = 120.0
    #: After the last call of a key, how long until its usage has every bill.
    sweep_grace_s: Annotated[float, Field(ge=0, le=86_400)] = 600.0
    #: Bodies held at once, in MiB; further calls wait.
    inflight_mib: Annotated[int, Field(ge=1, le=65_536)] = 256


class Projects(_Model):
    """Which projects may be shown to teachers: shell patterns over the state's project."""

    allow: list[str] = ["*"]
    exclude: list[str] = []

    def admits(self, project: str | None) -> bool:
        """Return True if states of ``project`` may be sent."""
        name = project or ""
        if any(fnmatchcase(name, pattern) for pattern in self.exclude):
            return False
        return any(fnmatchcase(name, pattern) for pattern in self.allow)


class TeacherSet(_Model):
    """A teacher file."""

    purpose: Literal["training", "evaluation"] = "training"
    endpoint: Endpoint
    limits: Limits = Limits()
    projects: Projects = Projects()
    defaults: Defaults = Defaults()
    selection: Selection = Selection()
    teachers: Annotated[list[Teacher], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        """Give the teachers the defaults, and the file an endpoint if every teacher has its own."""
        if not isinstance(data, dict) or not isinstance(teachers := data.get("teachers"), list):
            return data
        defaults = data.get("defaults")
        if isinstance(defaults, dict):
            merged = [_merge(defaults, t) if isinstance(t, dict) else t for t in teachers]
            data = {**data, "teachers": merged}
        own = [t["endpoint"] for t in teachers if isinstance(t, dict) and t.get("endpoint")]
        every = len(own) == len(teachers) > 0 and isinstance(own[0], dict)
        if data.get("endpoint") is None and every:
            data = {**data, "endpoint": {"api": "openai", "api_key_env": None, **own[0]}}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> "TeacherSet":
        names = [teacher.name for teacher in self.teachers]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"teachers: two teachers are named {twice[0]!r}")
        known = {self.endpoint.name: self.endpoint}
        metered = self.endpoint.dedicated_key or self.endpoint.provisioning_key_env
        for teacher in self.teachers:
            endpoint = self.endpoint_of(teacher)
            first = known.setdefault(endpoint.name, endpoint)
            if first.model_dump() != endpoint.model_dump():
                problem = f"two endpoints are named {endpoint.name!r}"
            elif teacher.endpoint and metered:
                problem = (
                    "an own endpoint excludes dedicated_key and provisioning_key_env, whose usage"
                    " does not include its bills"
                )
            else:
                problem = _misplaced(teacher, endpoint)
            if not problem and teacher.max_tokens >= teacher.context_length:
                problem = "max_tokens must be below context_length"
            if problem:
                raise ValueError(f"teachers: {teacher.name}: {problem}")
        return self

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "TeacherSet":
        """Read a teacher file.

        Raises:
            InputError: the file is missing, is not YAML, or has a bad or unknown field;
                the message names the file and the field.
        """
        return read_model(recipe_file(path, "teachers"), "teacher file", TeacherSet)

    @staticmethod
    def of(given: "TeacherSet | str | os.PathLike[str]") -> "TeacherSet":
        """Return the teachers that a caller means: a set, a file, or a shipped file's name."""
        return given if isinstance(given, TeacherSet) else TeacherSet.load(given)

    def select(self, names: list[str] | None) -> list[Teacher]:
        """Return the teachers named, in the file's order; all when ``None``.

        Raises:
            InputError: a name is not in the file.
        """
        if names is None:
            return list(self.teachers)
        known = {teacher.name for teacher in self.teachers}
        if unknown := sorted(set(names) - known):
            raise InputError(f"no teacher {unknown[0]!r}; known: {', '.join(sorted(known))}")
        return [teacher for teacher in self.teachers if teacher.name in names]

    def check_keys(self) -> None:
        """Raise an InputError if the environment lacks a key that the file needs."""
        self.endpoint.key()
        self.endpoint.provisioning_key()
        for endpoint in self.endpoints(self.teachers).values():
            endpoint.key()

    def endpoint_of(self, teacher: Teacher) -> Endpoint:
        """Return where a teacher is asked: at its own endpoint, or at the file's."""
        return teacher.endpoint or self.endpoint

    def endpoints(self, teachers: Iterable[Teacher]) -> dict[str, Endpoint]:
        """Return name -> endpoint of those teachers."""
        found = [self.endpoint_of(teacher) for teacher in teachers]
        return {endpoint.name: endpoint for endpoint in found}


def _misplaced(teacher: Teacher, endpoint: Endpoint) -> str:
    """Return what does not go together with the endpoint at which a teacher is asked."""
    if endpoint.api == "openai":
        return "only api openrouter has cache_control" if teacher.cache_control != "off" else ""
    if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]*/[a-zA-Z0-9][a-zA-Z0-9_.:-]*", teacher.model):
        return f"model: {teacher.model!r} is not an author/model slug"
    if teacher.price is not None:
        return (
            "price is for endpoints of api openai; here the router's price counts, up to max_price"
        )
    return ""


def _merge(defaults: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    merged = {key: value for key, value in defaults.items() if value is not None}
    for key, value in own.items():
        base = merged.get(key)
        if isinstance(base, dict) and isinstance(value, dict):
            value = {**base, **value}
        merged[key] = value
    return merged
