"""The outer log: who contributed what to which round, and what was committed. No torch.

Layout below ``runs/<run_id>/`` of the store::

    spec.json                                  create once
    probe.json                                 create once; proves that create is exclusive
    inputs.json inputs/<sha16>-<name>          what a replica elsewhere needs (``inputs``)
    slots/<slot>/<attempt>.json                create-exclusive: one start of a slot (``slots``)
    members/<slot>/<attempt>.json              heartbeat of one start of a slot
    rounds/<r>/delta/<slot>-<sha16>.safetensors    of recent rounds (``fragments.collect``)
    rounds/<r>/contrib/<slot>.json             create-exclusive: one contribution a slot
    rounds/<r>/commit.json                     create-exclusive: the only truth about a round
    state/<r>-<sha16>.safetensors              parameters and outer momentum after some rounds

Round 0 is the initial state: its first writer wins and everyone adopts it.
"""

import datetime as dt
import hashlib
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from composer_pipeline.diloco.spec import ALL, RUN_ID, DiLoCoSpec, Fragment
from composer_pipeline.diloco.store import ObjectStore, Pieces, no_exclusive_creation
from composer_pipeline.errors import ComposerError, InputError

#: Reads of one object before it counts as corrupt, and the pause between them.
READ_TRIES = 3
READ_PAUSE_S = 0.1


class OuterLogError(ComposerError):
    """The log cannot be followed: no quorum, or its objects are lost or damaged."""


class CorruptObject(ComposerError):
    """An object's bytes are not those of its record."""


class Included(msgspec.Struct, frozen=True):
    """A delta that a commit merged, with its weight.

    ``steps`` optimizer steps led to it, of ``seconds`` each; 0 where not counted or measured. It
    took ``upload_s`` seconds to store.
    """

    slot: int
    key: str
    sha256: str
    size: int
    weight: float
    tokens: int
    attempt: int
    norm: float = 0.0
    steps: int = 0
    seconds: float = 0.0
    upload_s: float = 0.0


class Rejected(msgspec.Struct, frozen=True):
    """A contribution that a commit left out, and why."""

    slot: int
    reason: str


class Commit(msgspec.Struct, frozen=True):
    """The truth about one round. ``by`` is the slot that wrote it.

    ``state_key`` is empty where the whole state was not written (``is_snapshot``). ``fragment`` is
    that of its deltas; it is left out of the bytes where they are of all that is trained.
    """

    round: int
    included: tuple[Included, ...]
    rejected: tuple[Rejected, ...]
    base_sha: str
    state_sha: str
    state_key: str
    state_size: int
    by: int
    tokens: int = 0
    fragment: Fragment = ALL

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots whose delta was merged."""
        return tuple(part.slot for part in self.included)

    @property
    def why(self) -> dict[int, str]:
        """Why deltas were left out, by slot."""
        return {part.slot: part.reason for part in self.rejected}

    @property
    def reasons(self) -> str:
        """Why deltas were left out, in one sentence."""
        return "; ".join(f"replica {slot}: {why}" for slot, why in self.why.items())

    @property
    def bytes(self) -> int:
        """The size of the merged deltas."""
        return sum(part.size for part in self.included)

    @property
    def empty(self) -> bool:
        """Whether the round merged nothing; False for the initial state."""
        return self.round > 0 and not self.included


class Contribution(msgspec.Struct, frozen=True):
    """What one slot offers for one round; written after its delta object.

    ``withheld`` says why there is no object, so that nobody waits for this slot. ``steps``,
    ``seconds`` and ``upload_s`` are those of :class:`Included`.
    """

    round: int
    slot: int
    attempt: int
    key: str
    sha256: str
    size: int
    base_sha: str
    tokens: int = 0
    withheld: str = ""
    steps: int = 0
    seconds: float = 0.0
    upload_s: float = 0.0

    def included(self, weight: float, norm: float) -> Included:
        """Return the entry of a commit that merges this contribution."""
        return Included(
            self.slot, self.key, self.sha256, self.size, weight, self.tokens, self.attempt, norm,
            self.steps, self.seconds, self.upload_s,
        )  # fmt: skip


def contribution_key(round_: int, slot: int) -> str:
    """Return the key of a slot's contribution to a round."""
    return f"rounds/{round_}/contrib/{slot}.json"


class Heartbeat(msgspec.Struct, frozen=True):
    """A heartbeat's content. Liveness is its last-modified time, by the store's clock."""

    slot: int
    attempt: int
    round: int
    beats: int
    wasted_tokens: int = 0


class EmptyRounds(OuterLogError):
    """More rounds merged nothing than the spec allows."""


def require_rounds(run_id: str, spec: DiLoCoSpec, commits: Iterable[Commit]) -> None:
    """Raise ``EmptyRounds`` where more commits merged nothing than the spec allows."""
    empty = [commit for commit in commits if commit.empty]
    if len(empty) > spec.max_empty_rounds:
        rounds = ", ".join(str(commit.round) for commit in empty)
        raise EmptyRounds(
            f"run {run_id}: {len(empty)} rounds merged nothing ({rounds}), where max_empty_rounds"
            f" allows {spec.max_empty_rounds}; the last one: {empty[-1].reasons or 'no delta'}"
        )


_Record = TypeVar("_Record", Commit, Contribution)
_Read = TypeVar("_Read")


def _sha256(data: bytes | bytearray | Pieces) -> str:
    return data.sha256 if isinstance(data, Pieces) else hashlib.sha256(data).hexdigest()


class OuterLog:
    """One run in one store."""

    def __init__(self, store: ObjectStore, run_id: str) -> None:
        self.store, self.run_id = store, run_id
        #: What listings have shown, because later ones may lack it.
        self._members: set[str] = set()
        self._contributions: dict[int, dict[int, tuple[Contribution, dt.datetime]]] = {}

    @classmethod
    def open(cls, url: str, run_id: str) -> "OuterLog":
        """Open the log of ``run_id`` below a folder or URL; nothing is written."""
        if not RUN_ID.fullmatch(run_id):
            raise InputError(
                f"run id {run_id!r} must be letters, digits, '.', '_', '-' (at most 128)"
            )
        return cls(ObjectStore(url, f"runs/{run_id}"), run_id)

    # -- the agreement ---------------------------------------------------------------------

    def probe(self) -> None:
        """Check that creating a key twice fails, which the whole protocol rests on."""
        self.store.create("probe.json", b"{}")
        if self.store.create("probe.json", b"{}"):
            raise no_exclusive_creation(self.store.url)

    def spec(self) -> DiLoCoSpec | None:
        """Return the run's spec, or None for a run that has not started."""
        data = self.store.get("spec.json")
        return None if data is None else DiLoCoSpec.from_json(data, f"{self.run_id}/spec.json")

    def agree(self, spec: DiLoCoSpec) -> None:
        """Write the spec if the run has none; otherwise refuse one that differs."""
        if self.store.create("spec.json", spec.model_dump_json(indent=1).encode()):
            return
        there = self.spec()
        difference = there.difference(spec) if there else "it is missing"
        if difference:
            raise InputError(f"spec.json of run {self.run_id} does not fit: {difference}")

    # -- members ---------------------------------------------------------------------------

    def beat(self, heartbeat: Heartbeat) -> None:
        """Write the heartbeat of one attempt of a slot."""
        key = f"members/{heartbeat.slot}/{heartbeat.attempt}.json"
        self.store.put(key, msgspec.json.encode(heartbeat))

    def members(self, having: str = "") -> dict[tuple[int, int], dt.datetime]:
        """Return ``{(slot, attempt): time of its last heartbeat by the store's clock}``."""
        found = {entry.key: entry.last_modified for entry in self.store.list("members", having)}
        for key in self._members - found.keys():  # removed, or left out by this listing
            if (when := self.store.modified(key)) is not None:
                found[key] = when
        self._members = set(found)
        names = {key: key.removesuffix(".json").split("/")[1:] for key in found}
        return {(int(names[key][0]), int(names[key][1])): when for key, when in found.items()}

    # -- contributions ---------------------------------------------------------------------

    def put_delta(self, round_: int, slot: int, data: bytes | Pieces) -> tuple[str, str]:
        """Store an encoded delta; return its key and SHA-256. Idempotent."""
        digest = _sha256(data)
        key = f"rounds/{round_}/delta/{slot}-{digest[:16]}.safetensors"
        self.store.put(key, data)
        return key, digest

    def contribute(self, contribution: Contribution) -> bool:
        """Write a contribution; return False where the slot already has one for the round."""
        key = contribution_key(contribution.round, contribution.slot)
        return self.store.create(key, msgspec.json.encode(contribution))

    def contribution(self, round_: int, slot: int) -> Contribution | None:
        """Return what a slot offers for a round, or None; without a listing."""
        key = contribution_key(round_, slot)
        data = self.store.get(key)
        return None if data is None else _decode(data, Contribution, key)

    def contributions(
        self, round_: int, having: str = ""
    ) -> tuple[dict[int, Contribution], dt.datetime | None]:
        """Return the round's contributions by slot, and when the first of them was written."""
        known = self._contributions.setdefault(round_, {})
        for entry in self.store.list(f"rounds/{round_}/contrib", having):
            slot = int(entry.key.rpartition("/")[2].removesuffix(".json"))
            if slot not in known and (offer := self.contribution(round_, slot)) is not None:
                known[slot] = offer, entry.last_modified
        first = min((when for _, when in known.values()), default=None)
        return {slot: offer for slot, (offer, _) in known.items()}, first

    # -- commits and states ----------------------------------------------------------------

    def commit(self, round_: int) -> Commit | None:
        """Return the commit of a round, or None while there is none."""
        key = f"rounds/{round_}/commit.json"
        data = self.store.get(key)
        return None if data is None else _decode(data, Commit, key)

    def try_commit(self, commit: Commit) -> bool:
        """Commit a round; return False where another replica was first (harmless)."""
        key = f"rounds/{commit.round}/commit.json"
        return self.store.create(key, msgspec.json.encode(commit))

    def commits(self) -> list[Commit]:
        """Return all commits in the order of rounds, the initial state (round 0) included."""
        last = self.last_round()
        found = [commit for r in range(last + 1) if (commit := self.commit(r)) is not None]
        if len(found) <= last:
            rounds = [commit.round for commit in found]
            raise OuterLogError(f"run {self.run_id} has commits for rounds {rounds}: some are lost")
        return found

    def last_round(self) -> int:
        """Return the last committed round; 0 for the initial state, -1 for an empty log."""
        keys = [entry.key for entry in self.store.list("rounds")]
        rounds = (int(key.split("/")[1]) for key in keys if key.endswith("/commit.json"))
        last = max(rounds, default=-1)
        while self.commit(last + 1) is not None:  # a listing may be stale
            last += 1
        return last

    def put_state(self, round_: int, data: bytes | Pieces) -> tuple[str, str]:
        """Store an encoded state; return its key and SHA-256. Idempotent."""
        digest = _sha256(data)
        key = f"state/{round_}-{digest[:16]}.safetensors"
        self.store.put(key, data)
        return key, digest

    def read(self, key: str, digest: str, size: int) -> bytearray:
        """Return an object as recorded; raises ``CorruptObject`` after ``READ_TRIES`` reads."""

        def look() -> tuple[int, str, bytearray] | None:
            data = self.store.fetch(key)
            return None if data is None else (len(data), _sha256(data), data)

        return _as_recorded(key, digest, size, look)

    def verify(self, key: str, digest: str, size: int) -> None:
        """Check that an object is as recorded, without holding it; raises as :meth:`read`."""

        def look() -> tuple[int, str, None] | None:
            found = self.store.digest(key)
            return None if found is None else (*found, None)

        _as_recorded(key, digest, size, look)


def _as_recorded(
    key: str, digest: str, size: int, look: Callable[[], tuple[int, str, _Read] | None]
) -> _Read:
    reason = ""
    for attempt in range(READ_TRIES):
        if attempt:
            time.sleep(READ_PAUSE_S)
        found = look()
        if found is None:
            reason = "is missing"
        elif found[0] != size:
            reason = f"has {found[0]} bytes instead of {size}"
        elif found[1] != digest:
            reason = "has another SHA-256 than its record"
        else:
            return found[2]
    raise CorruptObject(f"{key} {reason}")


def _decode(data: bytes, kind: type[_Record], key: str) -> _Record:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise OuterLogError(f"{key} is not a {kind.__name__} record: {error}") from None
