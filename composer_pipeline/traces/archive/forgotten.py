"""Sessions that a person had forgotten: what no harvest takes again.

Belongs here: the list, which holds hashes of session ids and nothing else. Does not belong here:
forgetting (``care.forget``).

The files of a forgotten session may still be where Claude Code wrote them; without this list the
next harvest would archive them again.
"""

import hashlib
import json
from collections.abc import Iterable

from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake

FILE = "forgotten.json"


class Forgotten:
    """The forgotten sessions of a lake, as they are now.

    Raises:
        InputError: the list is damaged; nothing may be archived by a guess.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        try:
            self._hashes = set(json.loads(lake.get_bytes(FILE))["sessions"])
        except FileNotFoundError:
            self._hashes = set()
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"lake {lake.url}: {FILE} is damaged; put it back") from error

    def __contains__(self, session_id: str) -> bool:
        return _hash(session_id) in self._hashes

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, session_ids: Iterable[str]) -> None:
        """Put sessions on the list, durably."""
        self._hashes |= {_hash(session_id) for session_id in session_ids}
        text = json.dumps({"sessions": sorted(self._hashes)}, indent=1)
        self._lake.put_bytes(FILE, text.encode())


def _hash(session_id: str) -> str:
    # As the tables have it: half a surrogate pair is stored as U+FFFD.
    stored = session_id.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return hashlib.blake2b(stored.encode(), digest_size=16).hexdigest()
