"""Secrets and numbers of persons that check digits, or words beside them, give away.

The words of seed phrases are BIP-39's English ones, from the package ``mnemonic`` (MIT).
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import pairwise, product
from pathlib import Path

from composer_pipeline.redaction.finders import Finder, ascii_lower
from composer_pipeline.redaction.secrets import Finding, entropy, is_given_secret, listed

_WORD = re.compile(r"(?:\\[nrt])?([A-Za-z]+)")
_BETWEEN = re.compile(r"(?:\\[nrt]|[\s,.)|\"'\\*\d-])+")


@cache
def _words() -> dict[str, int]:
    words = Path(__file__).with_name("bip39.txt").read_text("utf-8").split()
    return {word: number for number, word in enumerate(words)}


def find_phrases(text: str) -> Iterator[Finding]:
    """Yield seed phrases: their words together where nothing but spaces is between them."""
    plain = text.replace("\\n", " ").replace("\\t", " ").replace("\\r", " ")
    if b"\1" * 12 not in bytes(map(_words().__contains__, re.findall("[a-z]+", plain))):
        return
    run: list[tuple[int, int]] = []
    for start, end in (*(m.span(1) for m in _WORD.finditer(text)), (0, 0)):
        known = text[start:end] in _words()
        if known and (not run or _BETWEEN.fullmatch(text, run[-1][1], start)):
            run.append((start, end))
            continue
        at = 0
        while at + 12 <= len(run) < 300:
            parts = (run[at : at + count] for count in (24, 21, 18, 15, 12))
            phrase = next((p for p in parts if _is_phrase([text[a:b] for a, b in p])), [])
            value, begin = " ".join(text[a:b] for a, b in phrase), -1
            for (before, stop), (after, _) in pairwise([*phrase, (-1, 0)]):
                begin = before if begin < 0 else begin
                if after < 0 or text[stop:after].strip(" "):
                    yield Finding(begin, stop, "MNEMONIC", value)
                    begin = -1
            at += len(phrase) or 1
        run = [(start, end)] if known else []


def _is_phrase(words: list[str]) -> bool:
    number, check = 0, len(words) // 3
    if len(words) < 12 or len(words) % 3 or len(set(words)) < 7 or words == sorted(words):
        return False  # too short, a test vector, a list of words
    for word in words:
        number = number << 11 | _words()[word]
    digest = hashlib.sha256((number >> check).to_bytes(check * 4, "big")).digest()
    return digest[0] >> 8 - check == number & (1 << check) - 1


_CODES_HEAD = re.compile(
    r"(?i)(?:(?:recovery|backup|scratch|rescue|emergency|one-time|2fa|mfa)[ _-]?codes?"
    r"|wiederherstellungscodes?|c[oó]d(?:e|igo)s? de (?:secours|r[eé]cup|respaldo))[^A-Za-z0-9\n]{0,8}"
)
_CELL = re.compile(r"(?:(?:\d{1,2}[.):]|[-*])[ \t]+)?(?P<code>[^\s,|\"'`\\]+(?: [^\s,|\"'`\\]+)*)")
_CODE = re.compile(r"(?=.{6})[A-Za-z0-9]{3,12}(?:[- ][A-Za-z0-9]{3,12}){0,11}")


def find_recovery_codes(text: str) -> Iterator[Finding]:
    """Yield the codes of a list under words such as "backup codes"; all are of one length."""
    for head in _CODES_HEAD.finditer(text):
        run: list[tuple[int, int]] = []
        for cell in _CELL.finditer(text, head.end(), head.end() + 1500):
            (start, end), first = cell.span("code"), (run or [cell.span("code")])[0]
            fits = _CODE.fullmatch(text, start, end) is not None
            if fits and end - start == first[1] - first[0]:
                run.append((start, end))
            elif len(run) >= 4:
                break
            else:
                run = [(start, end)] if fits else []
        codes = [text[start:end] for start, end in run]
        digits = sum(re.search(r"\d", code) is not None for code in codes)
        if sum(1 + code.count(" ") for code in codes) >= 5 and digits * 3 >= len(codes) * 2:
            yield from (Finding(start, end, "RECOVERY_CODE") for start, end in run)


_GROUPED = tuple(
    (re.compile(rf"(?i){near}"), re.compile(rf"(?<![\w-])(?:{value})(?![\w-])"))
    for near, value in (
        ("(?:recovery|backup|rescue|scratch|emergency|wiederherstellungs)[ -]?codes?|2fa recovery|// recovery|(?:works?|used?) (?:only )?once", r"(?=[a-z0-9]{4,6}-)(?:(?<=code )|(?=[a-z-]{0,12}[0-9]))(?=[0-9-]{0,12}[a-z])[a-z0-9]{4,6}-[a-z0-9]{4,6}"),
        ("bitlocker|manage-bde|numerical password|recoverypassword", r"(?:\d{6}-){7}\d{6}"),
        ("filevault|fdesetup|recovery|wiederherstellung|unlock|laptop locked|licen[cs]|activat|product ?key|serial|seat|slmgr|registr", r"(?:[A-Z0-9]{4,5}-){4,7}[A-Z0-9]{4,5}"),
        ("pairing|commission(?:ing|er)|setup ?code|setup ?qr|homekit", r"\d{4}-\d{3}-\d{4}|\d{3}-\d\d-\d{3}|MT:[A-Z0-9.-]{19,}"),
        (r"passwor[dt](?:[^A-Za-z]{1,9}|[^\"\n]*\n)(?=(?:[A-Za-z0-9]{4} ){5})", r"(?=(?:[A-Za-z0-9]{4} ){5})(?=[A-Za-z0-9 ]{0,26}[a-z][A-Z0-9])(?=[A-Za-z0-9 ]{0,26}[A-Z0-9][a-z]\w)(?:[A-Za-z0-9]{4} ){5}[A-Za-z0-9]{4}"),
        ("authenticator|second factor|2fa|two-factor|by hand|otp|setup key|enter (?:this|the) key", r"(?:[A-Z2-7]{4} ){3,7}[A-Z2-7]{4}"),
    )
)  # fmt: skip


_AROUND, _LONGEST = 220, 120  # how far a word may stand from a value; no value is longer
_NEAR = re.compile(
    "|".join(near.pattern.removeprefix("(?i)").partition("(?:[^A-Za-z]")[0] for near, _ in _GROUPED)
)


def find_grouped(text: str) -> Iterator[Finding]:
    """Yield codes of groups near words for them, before or behind: of recovery, licences, seeds."""
    found, spans = {}, list[list[int]]()
    for word in _NEAR.finditer(ascii_lower(text)):  # a word is found far faster than a value
        begin, end = max(0, word.start() - _AROUND - _LONGEST), word.end() + _AROUND + _LONGEST
        if spans and begin <= spans[-1][1]:
            spans[-1][1] = end
        else:
            spans.append([begin, end])
    for (near, value), (begin, end) in product(_GROUPED, spans):
        for match in value.finditer(text, begin, end):
            words = not listed("words.txt").isdisjoint(match[0].split("-"))
            if words or len(set(match[0])) < 6 or re.fullmatch(r"[X -]+|20\d\d-.*", match[0]):
                continue
            if near.search(text, max(0, match.start() - _AROUND), match.end() + _AROUND):
                found[match.start()] = Finding(*match.span(), "RECOVERY_CODE")
    yield from sorted(found.values(), key=lambda finding: finding.start)


# -- what else has to hold for a value; of a number only its digits ------------------------


def _numbers(text: str) -> list[int]:
    return [int(c) for c in text if c.isdigit()]


def _luhn(value: str) -> bool:
    digits = _numbers(value)[::-1]
    return sum(sum(divmod(d * 2, 10)) if n % 2 else d for n, d in enumerate(digits)) % 10 == 0


_TEST_CARDS = re.compile(
    r"0000|^(?:378282246310005|371449635398431|378734493671000|6011000990139424|30569309025904)"
)


def _is_card(value: str) -> bool:
    number = re.sub("[ -]", "", value)
    return _luhn(value) and len(set(number)) > 5 and not _TEST_CARDS.search(number)


#: The length of an IBAN by country.
_IBAN = dict(re.findall(r"(\D\D)(\d\d)",
    "AD24AE23AL28AT20AZ28BA20BE16BG22BH22BR29BY28CH21CR22CY28CZ24DE22DK18DO28EE20EG29ES24FI18FO18FR27GB22GE22GI23GL18GR27GT28HR21HU28IE22IL23IQ23IS26IT27JO30KW30KZ20"
    "LB28LC32LI21LT20LU20LV21LY25MC27MD24ME22MK19MR27MT31MU30NL18NO15PK24PL28PS29PT25QA29RO24RS22SA24SC31SE24SI19SK24SM27SV28TL23TN24TR26UA29VA22VG24XK20"))  # fmt: skip


def _is_iban(value: str) -> bool:
    iban = re.sub("[ -]", "", value)
    number = "".join(str(int(c, 36)) for c in iban[4:] + iban[:4])
    checked = _IBAN.get(iban[:2]) == str(len(iban)) and int(number) % 97 == 1
    return checked and "WEST123456" not in iban  # the standard's example


def _is_base58check(value: str) -> bool:
    number = 0
    for c in value:
        number = number * 58 + "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz".index(c)
    data = number.to_bytes(40, "big").lstrip(b"\0")
    return hashlib.sha256(hashlib.sha256(data[:-4]).digest()).digest()[:4] == data[-4:]


def _is_base32check(value: str) -> bool:
    data = base64.b32decode(value + "=" * (-len(value) % 8))
    return binascii.crc_hqx(data[:-2], 0) == int.from_bytes(data[-2:], "little")


def _is_random(value: str) -> bool:
    return entropy(value) >= 2.6 and is_given_secret(value)


def _is_bytes(value: str) -> bool:
    numbers = [int(n) for n in re.findall(r"\d+", value)]
    return len(numbers) in (32, 64) and max(numbers) < 256 and len(set(numbers)) > 16


def _is_seed(value: str) -> bool:
    seed = re.sub("[ -]", "", value)
    sure = bool(_numbers(seed)) or (seed.isupper() and len(seed) in (16, 26, 32, 52))
    return sure and entropy(seed) > 2.8


def _is_steuer_id(value: str) -> bool:
    *digits, check = _numbers(value)
    product = 10
    for digit in digits:
        product = ((digit + product) % 10 or 10) * 2 % 11
    return (11 - product) % 10 == check


def _is_brazilian(value: str) -> bool:
    digits = _numbers(value)
    for n in (len(digits) - 2, len(digits) - 1):
        weights = (i % (8 if len(digits) == 14 else 12) + 2 for i in range(n))
        rest = sum(w * d for w, d in zip(weights, digits[n - 1 :: -1], strict=True)) % 11
        if digits[n] != (0 if rest < 2 else 11 - rest):
            return False
    return len(set(digits)) > 2


def _is_weighted(weights: tuple[int, ...], modulus: int, value: str) -> bool:
    return sum(w * d for w, d in zip(weights, _numbers(value), strict=True)) % modulus == 0


def _is_nir(value: str) -> bool:
    number = value.replace(" ", "").replace("2A", "19").replace("2B", "18")
    return (int(number[:13]) + int(number[13:])) % 97 == 0


def _is_dni(value: str) -> bool:
    number = value[:-1].upper().translate(str.maketrans("XYZ", "012", "- "))
    return "TRWAGMYFPDXBNJZSQVHLCKE"[int(number) % 23] == value[-1].upper()


# Numbers of fiction: 555-0123, 555 as an area code, what British television shows; dates, IPs.
_NO_PHONE = re.compile(
    r"^\W*(?:1\W*)?(?:\d{3}\W*)?555\W*01\d\d|^\W*(?:1\W*)?555\W*\d{3}\W*\d{4}|123\W?4567|987\W?6543"
    r"|7700\W?900|20\W*7946\W?0|^(?:19|20)\d\d([-./])\d\d\1\d\d|^(?:\d{1,3}\.){3}\d{1,3}$"
)


def _is_phone(value: str) -> bool:
    digits = _numbers(value)
    grouped = not value.isdigit() or value[0] == "0" or len(digits) in (10, 11)
    return grouped and len(digits) in range(8, 16) and not _NO_PHONE.search(value)


# -- the rules ------------------------------------------------------------------------------

#: A kind, what stands before a value, the value, and whether it is one.
_Row = tuple[str, str, str, Callable[[str], bool]]
# Between a name and its value.
_JOIN = r"(?:\\*[\"'`]?\]?\s{0,3}(?:=>|->|[:=]| is)?\s{0,3}\(?\\*[\"'`]?)"
_B58 = "[1-9A-HJ-NP-Za-km-z]"
_WRAPPED = r"(?:[A-Za-z0-9+/]|\\?\r?\n[ \t]*|\\[nr])"
_CARD_WORDS = (
    r"(?:card|visa|amex|american express|maestro|diners|karte|carte|tarjeta|cart[aã]o|carta di"
    r"|(?<![a-z])(?:pan|cv[vc]2?|exp(?:iry|ires|iration)?|discover|cc(?:num)?)(?![a-z]))"
)
_ROWS: dict[str, tuple[_Row, ...]] = {
    "ahv": (("NATIONAL_ID", "", r"756\.\d{4}\.\d{4}\.\d\d", partial(_is_weighted, (1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1), 10)),),
    "wallet": (
        ("PRIVATE_KEY", "", "S[A-Z2-7]{55}(?:[A-Z2-7]{2})?", _is_base32check),
        ("PRIVATE_KEY", "", rf"[5KL9c]{_B58}{{50,51}}", _is_base58check),
        ("PRIVATE_KEY", "", rf"[xyztuvYZUV]prv{_B58}{{107,108}}|nsec1[02-9ac-hj-np-z]{{58}}", bool),
        ("PRIVATE_KEY", r"(?:priv(?:ate)?[ _-]?key|secret[ _-]?key|(?<![a-z])pk|(?:wallet|signer|key|hex|secret|account|keypair)\(|accounts:\s{0,3}\["
         rf"|deployer|minter){_JOIN}", "(?:0x)?[0-9a-fA-F]{64}", _is_random),
        ("PRIVATE_KEY", rf"ciphertext{_JOIN}", r"[0-9a-f]{64}(?=[\s\S]{0,600}kdf)", bool),
        ("PRIVATE_KEY", r"(?:id\.json|keypair|secret|private|solana|seed)[^\[\]]{0,80}\[\s{0,8}|\A\s{0,8}(?:\d{1,4}[\u2192\t])?\[\s{0,8}",
         r"\d{1,3}(?:\s{0,3},\s{0,12}\d{1,3}){31,63}(?=\s{0,8}\])", _is_bytes),
    ),
    # DER in base64: PKCS #8, #1 and #12, SEC 1; OpenSSH's own format; files such as `master.key`.
    "key": (
        ("PRIVATE_KEY", r"(?<!PRIVATE KEY-----)(?<!PRIVATE KEY-----\\n)(?<!PRIVATE KEY-----\n)",
         r"MII[A-Za-z0-9+/]{3,5}(?:IBA(?:DANBgkqhkiG9w0BAQEFAAS|AK[BC])|IBAz[A-Za-z0-9+/]{4,6}GCSqGSIb3DQEHA)"
         rf"{_WRAPPED}{{200,}}={{0,2}}|(?:MI[GH][A-Za-z0-9+/]{{1,3}}AgEAMB[AM]GByqGSM49AgEG|MC4CAQAwBQYDK2V[wu]BCIEI|MHcCAQEEI|MIGkAgEBBD"
         rf"|b3BlbnNzaC1rZXktdjEA){_WRAPPED}{{40,}}={{0,2}}", bool),
        ("SECRET_KEY", r"[a-z_-]\.key(?![a-z])[^\n]{0,80}\n(?:[ \t]*\d{1,4}[\u2192\t])?", "(?:[0-9a-f]{32,128}|[A-Za-z0-9+/]{43}=)", _is_random),
    ),
    "code": (
        ("OTP_SEED", r"(?<![a-z])(?:t?otp|2fa|mfa|two[- ]factor|authenticator)(?![a-z])[\s\S]{0,80}",
         "(?:[A-Z2-7]{16,64}|(?:[A-Z2-7]{4}[ -]){3,15}[A-Z2-7]{2,4}|(?:[a-z2-7]{4} ){3,15}[a-z2-7]{2,4})={0,6}", _is_seed),
        ("LICENSE_KEY", r"(?:licen[cs]e|serial|activation|product[ _-]?key|registration)[^\n]{0,60}",
         r"(?=[A-Z-]*\d[A-Z-]*\d)(?=[\d-]*[A-Z][\d-]*[A-Z])(?:[A-Z0-9]{4,8}-){3,7}[A-Z0-9]{4,8}", bool),
    ),
    "identity": tuple(("NATIONAL_ID", rf"(?<![a-z])(?:{words})(?![a-z])\D{{0,40}}", value, check) for words, value, check in (
        (r"(?:[a-z]+_)?ssn|social is|my social|social[ _-]?security(?:[ _-]?(?:number|no))?", r"(?!000|666|9)\d{3}[- ]?(?!00)\d\d[- ]?(?!0000)\d{4}",
         lambda value: len(set(value)) > 3 and value.replace("-", "") not in ("123456789", "078051120", "219099999")),
        (r"steuer[ -]?id(?:nr)?|idnr|(?:steuer)?-?identifikationsnummer|tax[ _]?id|tin", r"[1-9]\d ?\d{3} ?\d{3} ?\d{3}", _is_steuer_id),
        ("dni|nif|nie|documento|cliente?", r"(?:\d{8}|[XYZxyz]\d{7})[ -]?[A-Za-z]", _is_dni),
        ("cpf", r"\d{11}", _is_brazilian),
        ("bsn|burgerservicenummer|sofinummer", r"(?:\d{9}|\d{4}[ .]\d\d[ .]\d{3})", partial(_is_weighted, (9, 8, 7, 6, 5, 4, 3, 2, -1), 11)),
        ("nir|assur[ée]e?|s[ée]curit[ée] sociale|num[ée]ro de s[ée]cu|insee", r"[12] ?\d\d ?(?:0[1-9]|1[0-2]) ?(?:\d\d|2[AB]) ?\d{3} ?\d{3} ?\d\d", _is_nir),
        ("pesel", r"\d{11}", partial(_is_weighted, (1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1), 10)),
        ("personnummer|personnr|samordningsnummer", r"(?:19|20)?\d{6}[-+]?\d{4}", lambda value: _luhn(value.replace("-", "")[-10:])),
        (r"national insurance(?: (?:number|no))?|nino|ni (?:number|no)", "(?i:[A-CEGHJ-PR-TW-Z]{2} ?[0-9]{2} ?[0-9]{2} ?[0-9]{2} ?[A-D])", bool),
        (r"codice fiscale|cod\. ?fisc\.?", r"[A-Z]{6}\d\d[A-EHLMPR-T]\d\d[A-Z]\d{3}[A-Z]", bool),
        ("passport|reisepass(?:nummer)?|passeport|pasaporte|passaporto", r"(?=(?:[A-Z]*\d){5})[A-Z0-9]{7,9}", bool),
    )),
    "number": (
        ("NATIONAL_ID", "", r"\d{3}\.\d{3}\.\d{3}-\d\d|\d\d\.\d{3}\.\d{3}/\d{4}-\d\d", _is_brazilian),
        ("IBAN", "", r"[A-Z]{2}\d\d(?:[ -]?[A-Z0-9]{4}){2,7}(?:[ -]?[A-Z0-9]{1,3})?", _is_iban),
        ("CARD", r"(?<!\d )", r"(?:4\d|5[1-5]|2[2-7]|35|6\d)\d\d(?P<s>[ -])\d{4}(?P=s)\d{4}(?P=s)\d{4}(?! \d)|3[47]\d\d(?P<t>[ -])\d{6}(?P=t)\d{5}", _is_card),
        ("CARD", rf"{_CARD_WORDS}[\s\S]{{0,80}}", r"(?:4|5[1-5]|2[2-7]|3\d|6\d)\d{11,17}", _is_card),
        ("CARD", "", rf"(?:4|5[1-5]|2[2-7]|3\d|6\d)\d{{11,17}}(?=[\s\S]{{1,50}}(?i:{_CARD_WORDS}))", _is_card),
    ),
    "phone": (
        ("PHONE", r"(?<![a-z])(?:[a-z]+[_-])?(?:(?:tele|smart|cell)?phone|telefon|tel|t[ée]l[ée]phone|mobile?|cell|handy|portable|m[óo]vil|celular"
         r"|tel[ée]fono|telefone|cellulare|whatsapp|fax|sms|signal|call me|call us|text me|ring me|reach me|reach us)(?:[ _-]?(?:number|no|nr|num|nummer))?"
         rf"\.?(?:{_JOIN}| at | on | under | is at | to )\s?", r"\+?\(?\d[\d ()./-]{6,20}\d", _is_phone),
        # Not what a diff adds.
        ("PHONE", r"(?<!\n)", r"\+[1-9]\d{0,2}[ .-]?(?:\(\d{1,5}\)[ .-]?)?\d{1,5}(?:[ .-]?\d{2,5}){1,4}", _is_phone),
        ("PHONE", r"(?:\A|(?:\A|\n)[^\n+@ -][^\n]*\n)", r"\+[1-9]\d{0,2}[ .-](?:\(\d{1,5}\)[ .-]?)?\d{1,5}(?:[ .-]\d{2,8}){1,4}", _is_phone),
    ),
}  # fmt: skip


_Compiled = tuple[str, re.Pattern[str], re.Pattern[str], Callable[[str], bool]]


def _find(rows: Iterable[_Compiled], text: str) -> Iterator[Finding]:
    found = []
    for kind, before, value, check in rows:
        for match in value.finditer(text):
            begin = max(0, match.start() - 120)
            if check(match[0]) and before.search(text[begin : match.start()]):
                found.append(Finding(*match.span(), kind))
    yield from sorted(found, key=lambda finding: finding.start)


def _rule(name: str, literals: str, gate: str) -> tuple[str, tuple[str, ...], Finder, str]:
    rows = [
        (kind, re.compile(rf"(?i)(?:{before})(?:(?<![a-z0-9_.+-])|(?<=\\[nrt]))\Z"),
         re.compile(rf"(?:{value})(?![A-Za-z0-9_/]|[.@-]\w)"), check)
        for kind, before, value, check in _ROWS[name]
    ]  # fmt: skip
    return name, tuple(literals.split("|")), partial(_find, rows), gate


_EDGE = r"(?:[^a-z0-9]|\\[nrt])"
# No word of a phrase is `the`.
_LISTED = "(?:[a-z](?:[a-gi-z]|h[a-z])[a-z]{1,6}|shy)"
_PHONE = "phone|telefon|tel|tél|mobil|cell|handy|portable|móvil|movil|celular|whatsapp|fax|sms|signal|call me|call us|text me|ring me|reach me|reach us"
#: Id, literals, function and gate of each rule.
CHECKSUM_FINDERS: tuple[tuple[str, tuple[str, ...], Finder, str], ...] = (
    ("phrase", ("",), find_phrases, rf"(?-i:(?:{_LISTED}(?:\\[nrtu]|[ ,.)|\"'\\*0-9-])+){{11}}[a-z]{{3}})"),
    ("recovery", ("code", "digo"), find_recovery_codes,
     r"(?:recovery|backup|scratch|rescue|emergency|one-time|2fa|mfa)[ _-]?code|wiederherstellungscode|d(?:e|igo)s? de r?(?:\xc3|e|secours)"),
    _rule("ahv", "756.", r"756\.\d{4}\.\d{4}\.\d\d"),
    _rule("wallet", "",
          r"(?-i:[1-9A-HJ-NP-Za-km-z]{51}|S[A-Z2-7]{55})|[xyztuv]prv[1-9a-z]{20}|nsec1[02-9a-z]{20}"
          r"|(?:key|pk|deployer|minter|wallet|account|hex|signer|secret|keypair|ciphertext)[^a-z0-9]+(?:is )?[^a-z0-9]*(?:0x)?[0-9a-f]{16}|accounts:\s*\["
          r"|\[(?:\s*\d+\s*,){6}"),
    _rule("key", "ibadanbgkqhkig9w0baqefaas|ibaak|ibaz|byqgsm49|mc4caqawbqydk2v|mhccaqeei|migkagebbd|b3blbnnzac1rzxktdje|.key",
          r"ibadanbgkqhkig9w0baqefaas|mii[a-z0-9+/]{3,5}ibaak|ibaz[a-z0-9+/]{4,6}gcsqgsib3|byqgsm49|mc4caqawbqydk2v|mhccaqeei|migkagebbd"
          r"|b3blbnnzac1rzxktdje|\.key[^\\]*(?:\\[^n]){0,9}\\n[^a-z]{0,9}[0-9a-z+/]{32}"),
    _rule("code", "otp|2fa|mfa|factor|authenticator|licen|serial|activation|product|registration",
          rf"{_EDGE}(?:t?otp|2fa|mfa|two[- ]factor|authenticator)[^a-z].{{0,100}}(?:[a-z2-7]{{16}}|(?:[a-z2-7]{{4}}[ -]){{3}})"
          r"|(?:licen[cs]e|serial|activation|product[ _-]?key|registration).{0,70}(?:[a-z0-9]{4,8}-){3}[a-z0-9]{4}"),
    _rule("identity",
          "ssn|tin|cliente|client|dni|nif|nie|cpf|bsn|nir|nino|pesel|insee|social|steuer|idnr|identifikationsnummer|documento|tax|sofinummer|burgerservice|personn|samordning"
          "|insurance|ni n|pass|pasaporte|curit|assur|de s|fisc",
          rf"(?:{_EDGE}(?:[a-z]+_)?(?:ssn|tin|dni|nif|nie|cpf|bsn|nir|nino|pesel|insee)[^a-z]|social.?security|my social|social is|cliente?|steuer.?id|idnr|identifikationsnummer|documento|tax.?id"
          r"|sofinummer|burgerservice|personn(?:r|ummer)|samordning|insurance|ni n(?:o|umber)|curit|assur|de s(?:\xc3.|e)c|pass(?:port|eport|aporto)|reisepass|pasaporte)"
          r"[^0-9]{0,90}[0-9][0-9 .-]{5}|(?:pass(?:port|e|a)|reisepass|pasaporte)[^0-9]{0,60}\d[0-9a-z]{5}|fisc[^0-9]{0,60}[a-z]{6}\d\d[a-z]\d\d"),
    _rule("number", "",
          r"(?-i:[A-Z]{2}\d\d[ -]?[A-Z0-9]{4}[ -]?[A-Z0-9]{4})|\.\d{3}-\d\d|\.\d{3}/\d{4}-"
          r"|[2-6]\d{3}[ -]\d{4}[ -]\d{4}[ -]\d{4}|3[47]\d\d[ -]\d{6}[ -]\d{5}"
          rf"|{_EDGE}[2-6]\d{{11}}"),
    _rule("phone", f"{_PHONE}|+",
          rf"(?:{_PHONE})(?:[ _-]?n(?:um(?:ber|mer)?|[or]))?[^0-9a-z]*(?:(?:n|is|at|on|under|to)[^0-9a-z]+)*[0-9][0-9 ()./-]{{6}}|{_EDGE}\+[1-9][0-9 .()-]{{3}}"),
    ("grouped", ("recovery", "backup", "rescue", "scratch", "emergency", "wiederherstellung", "bitlocker", "manage-bde", "numerical", "filevault", "fdesetup", "unlock", "locked", "licen", "activat", "product key", "serial", "seat",
                 "slmgr", "registr", " once", "pairing", "commission", "setup", "homekit", "passwor", "authenticator", "factor", "2fa", "by hand", "otp", "setup key", "enter the key", "enter this key"), find_grouped,
     r"(?:recovery|backup|rescue|scratch|emergency|wiederherstellungs)[ -]?code|2fa recovery|// recovery|bitlocker|manage-bde|numerical password|recoverypassword|(?:filevault|fdesetup|recovery|wiederherstellung|unlock|locked|licen[cs]|activat|product ?key|serial|seat|slmgr|registr).*"
     r"[a-z0-9]{4,5}-[a-z0-9]{4,5}-[a-z0-9]{4,5}-[a-z0-9]{4,5}-|[a-z0-9]{4,5}-[a-z0-9]{4,5}-[a-z0-9]{4,5}-[a-z0-9]{4,5}-.*(?:filevault|fdesetup|recovery|wiederherstellung|unlock|licen[cs]|activat|product ?key|serial|seat|registr)"
     r"|(?:authenticator|second factor|2fa|two-factor|by hand|otp|setup key|enter (?:this|the) key|(?:works?|used?) (?:only )?once|pairing|commission(?:ing|er)|setup ?code|setup ?qr|homekit)|passwor[dt](?:(?:[^a-z]|\\[nrt])+|(?:[^\"\\]|\\t)*\\n)(?:[a-z0-9]{4} ){5}"),
)  # fmt: skip
