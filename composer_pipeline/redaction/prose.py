"""Passwords and PINs that sentences tell: ``the password for X is ...``, ``login: bob / ...``."""

import re
from collections.abc import Callable, Iterator
from functools import partial

from composer_pipeline.redaction.finders import Finder, ascii_lower
from composer_pipeline.redaction.secrets import Finding, is_given_secret, is_random, listed

_ABOUT = (
    r"(?: (?:for|of|on|to|at|in|für|von|vom|der|des|zum|zur|de|del|della|du|para|per|pour|voor|van|do|da|na|для|от)"
    r"(?: [\w.@'/-]{1,40}){1,4}?)?"
)
_VERB = r"(?: (?:is|are|was|to|ist|lautet|est|es|é|è|jest|är|on|это)(?: now| still| jetzt| ahora| maintenant)?:? | ?[是は为]\s?)"
_SIGN = r" ?(?::|->|=>|→|–|—|：)(?:\*\*)?\s?"
_VALUE = r"(?:(?P<q>\\*[\"'`]|\*\*|[“„«「])(?P<quoted>(?:(?!(?P=q))[^\n\"'`“”»」]){4,80})(?:(?P=q)|[“”»」])|(?P<bare>[^\s\"'`<>\[\]{}|\\()]{4,100}))"
# What is none: names of algorithms and formats, units, files, paths, code, versions.
_NONE = re.compile(
    r"(?i)(?:v|sha|md|[hrep]s|aes|rsa|utf|oauth|base|argon|pbkdf|b?s?crypt|http|ip|x|ed|ec|step|phase|part|level|option|python|node|uint|int|str|bytes?)[-_]?"
    r"\d[\d._-]*(?:[-_./]?[a-z]{0,8}(?:[-_./]?[a-z]{0,4}\d{0,4}){0,2})?"
    r"|\d+[a-z]+|[\w-]+(?:\.[\w-]+)*\.[a-z]{2,5}|(?:\.{0,2}|~|[\w.-]+)/.*|.*(?:://|=>|==|\w\.[a-z_]+\.[a-z_]).*|[^a-z]+"
)
_STATE = re.compile(
    r"(?i)(?:in|not |un)?(?:valid|correct|set|known|defined|safe|used|changed)|wrong|missing|expired|weak|strong|short|long|hashed|encrypted"
    r"|.*\b(?:a|an|the|in|is|to|of|and|or|not|for|with|at|by|from|on|as|be|it|too|least|password|token|key|field|string)\b.*"
)


_PLACEHOLDER = re.compile(r"\[secret_[a-z0-9_]+_[0-9a-f]{4}\]")


def _told(text: str) -> str:
    """Return a text of the same length in lower case, without the words of placeholders."""
    return _PLACEHOLDER.sub(lambda match: "#" * len(match[0]), ascii_lower(text))


def _is_word(value: str) -> bool:
    """Judge a bare word: letters, and two digits or a digit and a sign."""
    digits, signs = re.findall(r"\d", value), re.findall(r"[^\w./:-]", value.rstrip("!?"))
    return bool(digits) and len(digits + signs) > 1 and _is_signed(value)


def _is_signed(value: str) -> bool:
    telling = re.search(r"[0-9!@#$%^&*]", value) and not re.search(r"\s", value)
    return bool(telling) and is_given_secret(value, 6) and not _NONE.fullmatch(value)


def _is_mixed(value: str) -> bool:
    """Judge a word that nothing but a name stands before."""
    signs = re.search(r"[!@#$%^&*+?~]", value.rstrip("!?"))
    return _is_word(value) and bool(
        signs or (re.search("[a-z]", value) and re.search("[A-Z]", value))
    )


def _is_phrase(value: str) -> bool:
    return is_given_secret(value, 6) and value[:1].isalpha() and not _STATE.fullmatch(value)


def _is_made_of_words(value: str) -> bool:
    """Judge words in a row: no sentence, no slug, as some are none of English or code."""
    words = re.split(r"[\s-]+", value)
    unknown = [word for word in words if word not in listed("words.txt")]
    least = min(map(len, words[:-1])) > 3 and not any(word in _JOINS for word in words)
    return least and len(unknown) * 2 >= len(words)


def _is_number(value: str) -> bool:
    return value.isdecimal() and len(value) in range(6, 13) and is_given_secret(value)


# A sentence of a script without spaces goes on behind a value.
_OTHER_SCRIPT = re.compile(r"[\u3000-\u9fff\uac00-\ud7af\uff01-\uffee]")
_JOINS = frozenset(
    """
    with that this from your have will when then than what which into each only must does been were
    they them there here some more most also just
    """.split()  # noqa: SIM905  a line of words instead of a column
)
_Judge = Callable[[str], bool]


def _any_of(*judges: _Judge) -> _Judge:
    return lambda value: any(judge(value) for judge in judges)


#: What may follow a telling word, and what its quoted and its bare values have to be.
_Row = tuple[str, _Judge, _Judge]
_PASSWORD: tuple[_Row, ...] = (
    (rf"{_ABOUT}{_VERB}{_VALUE}", _any_of(_is_signed, _is_phrase), _any_of(_is_word, _is_number)),
    (rf"{_ABOUT}{_SIGN}{_VALUE}", _is_word, _is_word),
    (rf"(?:(?<=pass:)|(?<=pass is)) ?{_VALUE}", _is_word, _is_word),
    (r"[^.\n;\"]{0,60}?\b(?:use|try|with|as|(?:it|set|reset|changed?|updated?) to|it's|it is|verwende|nimm|auf|utilise[zr]?|usa|prueba|par)"
     rf":? {_VALUE}", _is_signed, _is_mixed),
    (rf" {_VALUE}", _is_word, _is_mixed),
    (rf"(?<=phrase){_ABOUT}(?: is|:) (?P<bare>[a-z]+(?:[ -][a-z]+){{3,9}})(?=[.\n]|$)", bool, _is_phrase),
)  # fmt: skip
_TOKEN: tuple[_Row, ...] = (
    (rf"{_ABOUT}(?:{_VERB}|{_SIGN}(?:(?<=\s)|(?<=->))){_VALUE}", is_random, is_random),
)
_LOGIN: tuple[_Row, ...] = (
    (
        rf"\b[^\n\"]{{0,24}}?[ \t:(][\"'`]?(?:[\w.@+-]{{2,60}}|\[\w+\])[\"'`]?(?: ?// ?| / |:| \| ){_VALUE}",
        _is_word,
        _is_mixed,
    ),
)
_PIN: tuple[_Row, ...] = (
    (rf"(?:[- ]?(?:code|number))?{_ABOUT}(?:{_VERB}|{_SIGN}|(?-i:(?<=PIN)) | takes | required[^\n\d]{{0,20}}\n?[^\n\d]{{0,12}}\bit's )(?P<q>\\*[\"'`]|\*\*)?(?P<bare>\d{{4,8}})(?![\w-]|\.\d|%)", bool, bool),
)  # fmt: skip
_OTP: tuple[_Row, ...] = (
    (r"[^\n\d]{0,60}?(?<![\w.#-])(?P<bare>\d{6}|\d{3}[ -]\d{3})(?![\w-]|\.\d|%)", bool, bool),
)
_SPACED = r"[a-z]{3,9}(?:(?(q)(?: |\n ?)| )[a-z]{3,9}){3,9}|"
_PHRASE = rf"{_SPACED}[a-zäöüß]{{4,10}}(?:-[a-zäöüß]{{4,10}}){{2,6}}(?:-\d{{1,3}}|-[a-z]{{4,10}})"
_TYPED: tuple[_Row, ...] = (
    (
        rf"(?:[^\n\"'`]{{0,20}}? is|in)?:? (?P<q>\\*[\"'`“])?(?P<bare>{_SPACED[:-1]})(?=\\*[\"'`”.,\n]|$| \()",
        _is_phrase,
        _is_phrase,
    ),
    (
        rf"[^\n]{{0,60}}?(?:\b(?:is|was|now|ist|with|mit|say|put|it|and|und|steht|type)|(?<=with)|(?<=type)|:|\()[:\s>]{{1,8}}(?<=[\s(])(?P<q>\\*[\"'`“])?(?P<bare>{_PHRASE})(?=\\*[\"'`”.,)\n]|$| \(| ein)",
        _is_made_of_words,
        _is_made_of_words,
    ),
    (
        rf"[^\n]{{0,60}}?(?:\(|:\s{{1,4}}(?:\w+\s+)?)(?P<q>\\*[\"'`“])?(?P<bare>{_PHRASE})(?=\\*[\"'`”.,)\n]|$| \()",
        _is_made_of_words,
        _is_made_of_words,
    ),
)


def _find(
    kind: str, words: list[str], rows: list[tuple[re.Pattern[str], _Judge, _Judge]], text: str
) -> Iterator[Finding]:
    lowered, found = _told(text), dict[int, Finding]()
    for word in words:
        at = lowered.find(word)
        while at >= 0:
            begins = (
                not re.match(r"[\w/.-]", text[max(0, at - 1) : at]) or text[at - 2 : at] == "\\n"
            )
            for pattern, quoted, bare in rows if begins else ():
                if match := pattern.match(text, at + len(word)):
                    group = "quoted" if match.groupdict().get("quoted") else "bare"
                    value, start = match[group], match.start(group)
                    if group == "bare":
                        value = _OTHER_SCRIPT.split(value)[0].rstrip(".,;:?")
                        value = value if re.search(r"[^\w!]", value) else value.rstrip("!")
                    if (quoted if group == "quoted" else bare)(value):
                        found.setdefault(start, Finding(start, start + len(value), kind))
            at = lowered.find(word, at + 1)
    yield from sorted(found.values(), key=lambda finding: finding.start)


# fmt: off
#: Words near which a word of mixed characters is a password: of passwords, of logging in, of opening.
_TELLS = {
    "strong": "passw|passphrase|creds|creden|login|log in |logs in |logged in|sign in|unlock",
    "strong/opened": "one was|used to be|my account|signed in|get in with|gets you in|rotated|changed to|changed it|'s from|reset to|opens with|it asks|when asked|prompted|prompts for|basic auth|security question|keepass|wifi|wi-fi|wlan|keypad"
    "|pw |pw:|pwd |pass |md5 is|md5 key|psk |shared secret|passcode",
    "strong/foreign": "kennwort|mot de passe|mdp |contraseña|contrasena|clave |senha|wachtwoord|ww |hasło|hasłem|haslo|lösenord|adgangskode|passord|salasana|şifre|sifre|parola|heslo|jelszó|парол|Парол|κωδικ|密码|密碼|パスワード|비밀번호"
    "|geändert|zurückgesetzt|alte war|ancien |réinitialis|restablec|reimpost|redefini|resetow|återställ|nulstil|gereset|accès |toegang|dostęp|přístup|åtkomst|adgang |パスは|비번|mật khẩu|kata sandi|पासवर्ड|كلمة|zugang|identifiants|inlogg|logg |melde dich|anmelden|einloggen|kommst du|kommt man|connecte|connexion|entra |entrar|inicia|acceso|accedi|acesso|zaloguj|logga in|log ind|kirjaudu"
    "|giriş|přihlas|войти|зайти|логин|ログイン|登录|登入|로그인",
}
_STRONG = re.compile(
    r"(?<!id\":\")(?:(?<![\w/.@$#%\\\[-])|(?<=admin/)|(?<=root/)|(?<=user/))[A-Za-z0-9](?:[\w!#$%&*+.=?@^~-]{6,38})[\w!#$%&*+=?^~](?![\w/(@\\%-]|\.\w)"
)
# fmt: on
_LOOKS = re.compile(
    r"(?i)[a-z]+(?:[-_.][a-z]+)*[-_.]?v?\d+(?:\.\d+)+.*|[a-z-]+\d|[A-Z]+-\d+|.*\.[a-z]{2,5}\d?|x-.*|[a-z]\w*[*+%]\d(?:[+-]\d+)?|.*(?:password|token|login|auth).*|\d+[a-z]+|[\d.]+-\w+|.*\d{4}-\d\d-\d\d.*|[a-z_]+(?:\.[a-z_]+)+\d?"
)


_YEAR = re.compile(r"[A-Z][a-z]{3,}(?:19|20)\d\d")
_CODE = re.compile(
    r"[;{(]$|=>|[\w\]]\(.*\)|^\s*(?:const|let|var|def|class|func|fn|import|export|return|assert)\b|^\s*[\w.\[\]]+ ?[+-]?= ?"
)
_TOLD_BELOW = re.compile(
    r"[^\n.,;]{0,40}:[ \t]*\n\s*|[^\n.;]{0,60},?[ \t]*\n(?=[\w.@-]{2,40} / )|(?: is| ist| est| es)?[ \t]*\n\s*"
)


def _is_strong(value: str) -> bool:
    """Judge a word by itself: capitals, small letters, digits, and a sign or digits within."""
    if not all(re.search(kind, value) for kind in ("[A-Z]", "[a-z]", "[0-9]")):
        return False
    signs = re.search(r"[!#$%&*+=?@^~_-]|[a-z]\d+[A-Za-z].*\d|^[a-z]+\.[A-Z][a-z]{3,}\d{3}$", value)
    return (
        bool(signs)
        and not re.search(r"%[0-9A-F]{2}|=$|&#\d|^sha\d{1,3}[-:]", value)
        and not re.fullmatch(
            r"MD[A-Za-z0-9]{2}[6wxyz].*|(?:msg|toolu|req)_01\w+", value
        )  # ids of APIs
        and not _LOOKS.fullmatch(value)
        and _is_signed(value)
    )


def _is_name_and_year(value: str) -> bool:
    return bool(_YEAR.fullmatch(value)) and value[:-4].lower() not in listed("words.txt")


def _is_one_case(value: str) -> bool:
    """Judge letters of one case that are no word, a sign, and digits: ``hpefd!474``."""
    match = re.fullmatch(r"([A-Z]{4,}|[a-z]{4,})[!$%&*^]\d{3,}", value)
    return match is not None and match[1].lower() not in listed("words.txt")


def _find_strong(words: list[str], text: str) -> Iterator[Finding]:
    lowered, found, plain = _told(text), dict[int, Finding](), text.isascii()
    for word in words if not plain else filter(str.isascii, words):
        at = lowered.find(word)
        while at >= 0:
            begin = max(text.rfind("\n", 0, at) + 1, at - 60)
            told = _TOLD_BELOW.match(text, at + len(word))
            stop = text.find("\n", told.end() if told else at) % (len(text) + 1)
            if re.search("[0-9]", text[begin : min(stop, at + 90)]):
                for match in _STRONG.finditer(text, begin, min(stop, at + 90)):
                    line = text[begin:stop].partition("\n")[0]
                    judges = (_is_strong, _is_name_and_year, _is_one_case)
                    if any(judge(match[0]) for judge in judges) and not _CODE.search(line):
                        found[match.start()] = Finding(*match.span(), "PROSE_PASSWORD")
            at = lowered.find(word, max(at + 1, min(stop, at + 60)))
    yield from sorted(found.values(), key=lambda finding: finding.start)


# fmt: off
_SIGNED_AT = re.compile(r"[!@#$%^&*?](?<=[A-Za-z0-9_-].)(?!\*\*)(?=[\w!@#$%^&*?)\],;.\"'`\s]|$)")
_BEFORE_SIGN = re.compile(r"(?:(?<![\w!#$%&*+=?@^~<>{}\\.$/-])|(?<=[\s(][a-z]/)|(?<=[\w-]{2}/))[A-Za-z0-9][\w!#$%&?@^~+-]*$")
_BEHIND_SIGN = re.compile(r"(?:[\w!#$%&?@^~+-]|\*(?!\*)){1,30}(?![\w\\(<={}]|[.:]\w)", re.ASCII)
#: What stands before a word at the end of a line whose last sign may end the sentence.
_GIVEN_BEFORE = re.compile(r"(?:[-–—:/|,→>=+(\t]|\b(?:is|to|with|try|was|use|it's|nimm|ist|es|det|mit|con|avec|com)|[是は는])\s*$")
_COUNTED = re.compile(r"(?P<stem>[\w-]+)[#@]v?\d+")
# fmt: on


def _is_disguised(value: str) -> bool:
    """Judge a word by itself: signs or digits stand within it as no language or code has them."""
    if not _is_strong(value) or re.search(
        r"\*\*|[&?]\w+=|%\d|^\w+@(?:[a-z]+\d*-)*[a-z]+-?\d*$", value
    ):
        return False
    signs = re.findall(r"[!@#$%^&*?]", value)
    within = re.findall(r"(?<=[A-Za-z])\d(?=[a-z])", value)
    counted = _COUNTED.fullmatch(value)
    return (
        bool(signs)
        and (not counted or len(within) > 1)
        and (len(signs) + len(within) > 1 or _YEAR.fullmatch(value[:-1]) is not None)
    )


def _find_disguised(text: str) -> Iterator[Finding]:
    """Yield words such as ``H@mm3r_54$`` or ``Winter2024!`` wherever a sentence has them."""
    done = 0
    for sign in _SIGNED_AT.finditer(text):
        if (at := sign.start() - 1) < done:
            continue
        before = _BEFORE_SIGN.search(text, max(0, at - 30), at + 1)
        behind = before and _BEHIND_SIGN.match(text, at + 1)
        if not before or not behind:
            continue
        start, end = before.start(), behind.end()
        done = end
        if text[end - 1] in "!?":
            ends = re.match(r"\s*$|\s*\n|\s+[A-Z]", text[end : end + 9])
            begin = max(text.rfind("\n", 0, start) + 1, start - 9)
            if ends and not _GIVEN_BEFORE.search(text, begin, start):
                end -= 1
        line = text[text.rfind("\n", 0, start) + 1 : end]
        if _CODE.search(line) or re.search(r"\b(?:echo|printf) ", line):
            continue
        if len(text[start:end]) > 7 and _is_disguised(text[start:end]):
            yield Finding(start, end, "PROSE_PASSWORD")


# fmt: off
#: What is opened with a number, and the words that say so: it has four to eight digits there.
_LOCKS = ("door|entrance|locker|lock screen|combination|key safe|key box|keypad|kiosk|alarm|unlock|intercom|moderator|host key|tür|entsperr|immeuble|portail|wifi|wi-fi|wlan|puerta|almacén|chiave|门禁|ロック|잠금|bloque"
          "|asks for|ask you for|just enter|eingeben|wählen|eintippen|tapes |tapez|pones |marcar|teclea|digita |adesso|your code|te demande|入力|입력")
_OPENS = re.compile(
    r"(?:\b(?:with|is|to|takes|enters?|it's|mit|ist|c'est|est|clé|es|è|é|adesso è|pones|marcar|tapes|tapez|digita|teclea|chiave è|,|:|(?<=key )box|locker)|[,:]|[は은는是을를])\\?[ \t]?$"
)
_OPENED = re.compile(r"(?:'s)? (?:is your|eingeben|wählen|eintippen|auf\b|入力|입력)|で(?:解除|開)")
_DIGITS = re.compile(r"(?<![\w.,:#$€£+*/=~-])(?:(?!(?:19|20)\d\d\b)\d{4}|\d{5,8})(?![\w%:/(=-]|[.,]\d|\s?(?:ms|px|s|[KMG]?B|times|bytes|items|users|lines|files|rows|tokens|requests|more|of|and up)\b)", re.ASCII)
# fmt: on


def _find_opening(words: list[str], text: str) -> Iterator[Finding]:
    """Yield numbers that open: ``the door opens with 5045``, ``just enter 616535``."""
    lowered, found = _told(text), dict[int, Finding]()
    for word in words if not text.isascii() else filter(str.isascii, words):
        at = lowered.find(word)
        while at >= 0:
            begin = max(text.rfind("\n", 0, at) + 1, at - 40)
            stop = text.find("\n", at, at + 90)
            for match in _DIGITS.finditer(text, begin, stop if stop >= 0 else at + 90):
                before = text[begin : match.start()]
                told = _OPENED.match(text, match.end()) or _OPENS.search(before)
                if told and not _CODE.search(before) and not re.search("[_{}<>=]", before):
                    found[match.start()] = Finding(*match.span(), "PIN")
            at = lowered.find(word, at + len(word))
    yield from sorted(found.values(), key=lambda finding: finding.start)


def _rule(
    name: str, kind: str, words: str, rows: tuple[_Row, ...], gate: str
) -> tuple[str, tuple[str, ...], Finder, str]:
    listed = words.split("|")
    compiled = [(re.compile(f"(?i:{pattern})"), quoted, bare) for pattern, quoted, bare in rows]
    literals = tuple(word[1:] if word[0].isupper() else word for word in listed)
    return (
        f"prose/{name}",
        literals,
        partial(_find, kind, listed, compiled),
        f"(?:{words.replace('pass:|pass is', 'pass')}){gate}",
    )


_LINE = r"(?:[^\\]|\\[^n])"
_IS = r"(?:is|are|was|to|ist|lautet|est|es|jest|now|still|jetzt|ahora|maintenant|on|\xc3.r?):? "
#: Id, literals, function and gate of each rule.
PROSE_FINDERS: tuple[tuple[str, tuple[str, ...], Finder, str], ...] = (
    _rule("password", "PROSE_PASSWORD",
          "password|passwort|passphrase|pass phrase|passcode|passwd|pass:|pass is|pw|pwd|kennwort|mot de passe|mdp|contraseña|contrasena|clave|senha|wachtwoord|hasło|haslo"
          "|lösenord|losenord|adgangskode|salasana|şifre|heslo|jelszó|пароль|Пароль|密码|密碼|パスワード|비밀번호", _PASSWORD,
          rf"(?:\*{{0,2}}[ :,]|\*{{0,2}}[^\x00-\x7f]){_LINE}*[0-9]|(?:password|passwort|phrase|passcode|kennwort|mot de passe|mdp|contrase..a|clave|senha|wachtwoord)"
          rf"\*{{0,2}} {_LINE}*(?:{_IS}|(?:use|try|with|as|auf|par) )[\\\"'`*]|phrase{_LINE}*(?: is|:) [a-z]"),
    *((f"prose/{name}", tuple(word[word[0].isupper() :] for word in words.split("|")), partial(_find_strong, words.split("|")), f"(?:{words})") for name, words in _TELLS.items()),
    ("prose/disguised", ("",), _find_disguised, r"[a-z0-9_-][!@#$%^&*?][a-z0-9_!@#$%^&*?-]*[0-9]|[0-9][a-z0-9_-]*[!@#$%^&*?]"),
    _rule("token", "PROSE_PASSWORD", "token|secret|api key|access key", _TOKEN, rf"(?:{_LINE}*(?: {_IS}|:\*{{0,2}}\s)|->){_LINE}{{0,4}}[^\s\\\"]*[0-9]"),
    _rule("login", "PROSE_PASSWORD", "login|log-in|creds|credentials|account|access|sign in|admin|zugang|zugangsdaten|identifiants|acceso|accesso|acesso|user|username", _LOGIN,
          rf"[^a-z0-9_]{_LINE}*[a-z0-9_.@+\]-]{{2}}[\"'`]?(?: ?// ?| / |:| \| )[^\s\\\"]*[0-9]"),
    _rule("pin", "PIN", "pin|sim-pin|puk|keypad|geheimzahl|digicode|passcode|door code|türcode|gate code|alarm code|entry code|access code|lock code|safe code|código de acceso|code de la porte|code pin", _PIN,
          r"(?:[^0-9\\]|\\n)*[0-9]{4}"),
    ("prose/opening", tuple(_LOCKS.split("|")), partial(_find_opening, _LOCKS.split("|")), rf"(?:{_LOCKS.replace(' |', '|')}).*(?:[^a-z0-9_./#-]|\\[nrt])[0-9][0-9][0-9][0-9]|[0-9][0-9][0-9][0-9][^a-z0-9_./]*(?:is your code|eingeben|wählen|eintippen|で解除|入力|입력)"),
    _rule("otp", "PIN", "authenticator|authentifizier|einmalcode|einmalpasswort|bestätigungscode|sicherheitscode|one-time|onetime|verification code|login code|security code|sms|texted|the text|6-digit|six-digit|otp|2fa|mfa"
          "|two-factor|code reçu|code de v|código|codice|kod sms|eenmalige|engångskod|engangskode", _OTP, r"[^0-9]*[0-9]{3}[ -]?[0-9]{3}"),
    _rule("typed", "PROSE_PASSWORD", "to type|type in|typing|unlock it|unlock with|unlocks with|unlocked it|words are|phrase|passphrase|passcode|opens with|open it with|security answer", _TYPED,
          r".*[a-z][a-z][a-z]+(?:(?: |\\n ?)[a-z][a-z][a-z]+(?: |\\n ?)[a-z][a-z][a-z]+(?: |\\n ?)[a-z][a-z][a-z]+|-[^\x00- \"-]+-[^\x00- \"-]+-[a-z0-9])"),
    _rule("slug", "PROSE_PASSWORD", "login for|wifi|wi-fi|wlan|network|connect|netz|router|pw |pwd |password|passwort", tuple((form.replace(_SPACED, ""), quoted, bare) for form, quoted, bare in _TYPED[1:]), r".*[a-z][a-z][a-z]-[^\x00- \"-]+-[^\x00- \"-]+-[a-z0-9]"),
)  # fmt: skip
