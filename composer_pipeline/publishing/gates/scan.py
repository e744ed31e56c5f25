"""Is a value private? Asked of whole messages, with their keys, each distinct one once.

Belongs here: the two scanners, and what they have seen. Does not belong here: the formats of files
(``publishing.gates.files``) and the rules themselves (``redaction``).
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from composer_pipeline.redaction import (
    RedactionRules,
    active_rules,
    find_secrets,
    second_opinion,
    strings,
    user_names,
)

_ASKS = "a public release needs a second scanner"
#: Names of accounts that are folders of every machine: as a part of a path they name nobody.
_FOLDERS = frozenset(
    ("bin", "build", "data", "dev", "home", "lib", "opt", "src", "srv", "tmp", "usr", "var", "work")
)


def account_names() -> set[str]:
    """Return the user name of who publishes, as the home folder tells it."""
    return {name for name in user_names(f"{Path.home()}/") if name not in _FOLDERS}


class Scanner:
    """Remembers what is clean, by digest, over all files of one publication.

    Args:
        public: ask the second scanner too; everybody will be able to read the files.
        names: user names that must not stand in anything, besides those of the user's file.
        allow: what may stand in the card although it looks private: the contact.
    """

    def __init__(
        self, *, public: bool = False, names: Iterable[str] = (), allow: Iterable[str] = ()
    ) -> None:
        self._public = public
        self._names = frozenset(names)
        self._clean: set[bytes] = set()
        rules = active_rules()
        self._allowed = tuple(allow)
        self._card_rules = rules.model_copy(update={"allow": (*rules.allow, *self._allowed)})

    def of_json(self, source: str | bytes) -> list[str]:
        """Return the kinds of what is private in a JSON value; its keys tell what its values are.

        Raises:
            ValueError: it is no JSON.
            InputError: as :meth:`of_value`.
        """
        data = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else source
        return self._once(b"json", data, lambda: json.loads(source))

    def of_text(self, text: str, *, card: bool = False) -> list[str]:
        """Return the kinds of what is private in a text; in the card, the contact may stand.

        Raises:
            InputError: as :meth:`of_value`.
        """
        if card:
            return self.of_value(text, self._card_rules)
        return self._once(b"text", text.encode("utf-8", "surrogatepass"), lambda: text)

    def of_value(self, value: Any, rules: RedactionRules | None = None) -> list[str]:
        """Return the kinds of what is private in a text or a JSON value, remembering nothing.

        Raises:
            InputError: the redaction file is wrong, or a public release has no second scanner.
        """
        kinds = find_secrets(value, self._names, rules)
        if self._public and not kinds:
            found = (
                (place.kind, text[place.start : place.end])
                for text in strings(value)
                for place in second_opinion(text, _ASKS)
            )
            kinds = [kind for kind, secret in found if secret not in self._allowed]
        return kinds

    def _once(self, what: bytes, data: bytes, value: Callable[[], Any]) -> list[str]:
        digest = hashlib.blake2b(data, digest_size=16, person=what).digest()
        if digest in self._clean:
            return []
        kinds = self.of_value(value())
        if not kinds:
            self._clean.add(digest)
        return kinds
