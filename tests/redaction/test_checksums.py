"""Values with check digits go in any notation; numbers that only look like them stay."""

import base64
import hashlib
import json
import random
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from composer_pipeline.redaction.redact import find_secrets, redact_text, redact_value
from tests.redaction.labelled import WORDS

_RANDOM = random.Random(20261125)


def check(value: Any, kind: str, *secrets: str) -> Any:
    """The secrets are gone under ``kind``, and nothing more is found."""
    redacted, counts = redact_value(value)
    assert counts[kind] >= 1, (value, redacted)
    assert not any(secret in json.dumps(redacted, ensure_ascii=False) for secret in secrets)
    assert find_secrets(redacted) == []
    return redacted


def phrase(count: int) -> list[str]:
    bits = count * 32 // 3
    data = _RANDOM.randbytes(bits // 8)
    digest = bin(int.from_bytes(hashlib.sha256(data).digest(), "big"))[2:].zfill(256)
    whole = bin(int.from_bytes(data, "big"))[2:].zfill(bits) + digest[: bits // 32]
    return [WORDS[int(whole[at : at + 11], 2)] for at in range(0, len(whole), 11)]


@pytest.mark.parametrize("count", [12, 15, 18, 21, 24])
def test_seed_phrases_go_in_any_layout(count: int) -> None:
    words = phrase(count)
    long = [word for word in words if len(word) > 5]
    assert check("restore " + " ".join(words) + " please", "MNEMONIC", *long).endswith(" please")
    for value in (
        ", ".join(words),
        "\n".join(f"{n}. {word}" for n, word in enumerate(words, 1)),
        " ".join(f"{n}) {word}" for n, word in enumerate(words, 1)),
        " ".join(words[:7]) + "\n  " + " ".join(words[7:]),
        json.dumps({"log": json.dumps(words)}),
        {"words": words},
        "keys:\\n" + "\\n".join(words),
    ):
        check(value, "MNEMONIC", *long)


def test_words_without_the_checksum_stay() -> None:
    words = phrase(12)
    wrong = [*words[:-1], next(w for w in WORDS if not redact_text(" ".join([*words[:-1], w]))[1])]
    for text in (
        " ".join(wrong),
        " ".join(WORDS),
        "\n".join(WORDS),
        json.dumps(WORDS),
        " ".join(["abandon"] * 11 + ["about"]),
        "test " * 11 + "junk",
        "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor",
    ):
        assert redact_text(text) == (text, {})


def luhn(prefix: str) -> str:
    for digit in "0123456789":
        twice = [int(c) * (2 if n % 2 else 1) for n, c in enumerate(reversed(prefix + digit))]
        if sum(n - 9 if n > 9 else n for n in twice) % 10 == 0:
            return prefix + digit
    raise AssertionError


CARD, AMEX = luhn("453201512830387"), luhn("37876543210987")


@pytest.mark.parametrize(
    ("value", "secret"),
    [
        (f"card {CARD} exp 12/28", CARD),
        (f"paid with {CARD[:4]} {CARD[4:8]} {CARD[8:12]} {CARD[12:]} today", CARD[8:12]),
        (f"{CARD[:4]}-{CARD[4:8]}-{CARD[8:12]}-{CARD[12:]}", CARD[8:12]),
        ({"cardNumber": CARD, "cvc": "123"}, CARD),
        (f"number={CARD}&cvc=123", CARD),
        (f"Amex {AMEX[:4]} {AMEX[4:10]} {AMEX[10:]}", AMEX[4:10]),
    ],
)
def test_payment_cards(value: Any, secret: str) -> None:
    check(value, "CARD", secret)


# IBAN registry examples: ISO 13616.
@pytest.mark.parametrize(
    "iban",
    ["DE89370400440532013000", "GB29NWBK60161331926819", "NO9386011117947", "NL91ABNA0417164300"],
)
def test_ibans(iban: str) -> None:
    spaced = " ".join(iban[at : at + 4] for at in range(0, len(iban), 4))
    for value in (f"IBAN {spaced}.", f"to {iban},", {"iban": iban}, f"x\\n{iban}"):
        check(value, "IBAN", iban, spaced)


HEX = _RANDOM.randbytes(32).hex()
BYTES = ", ".join(str(n) for n in _RANDOM.randbytes(64))


@pytest.mark.parametrize(
    ("value", "secret"),
    [
        # Vectors of BIP-32, BIP-178 and NIP-19.
        ("5HueCGU8rMjxEXxiPuD5BDku4MkFqeZyd4dZ1jvhTVqvbTLvyTJ", "5HueCGU8"),
        ("KwdMAjGmerYanjeui5SHS7JkmpZvVipYvB2LJGU1ZxJwYvP98617", "KwdMAjG"),
        (
            "xprv9s21ZrQH143K3QTDL4LXw2F7HEK3wJUD2nW2nRk4stbPy6cq3jPPqjiChkVvvNKmPGJxWUtg6LnF5kejMRNNU3"
            "TGtRBeJgk33yuGBxrMPHi",
            "xprv9s21",
        ),
        ("nsec1vl029mgpspedva04g90vltkh6fvh240zqtv9k0t9af8935ke9laqsnlfe5", "nsec1vl0"),
        (f"new ethers.Wallet('0x{HEX}', provider)", HEX),
        (f"accounts: ['0x{HEX}'],", HEX),
        ({"crypto": {"ciphertext": HEX, "kdf": "scrypt", "mac": HEX[::-1]}}, HEX),
        (f"[{BYTES.replace(' ', '')}]", BYTES[:20].replace(" ", "")),
        (f"cat ~/.config/solana/id.json\n[{BYTES}]", BYTES[:20]),
        (f"Keypair.fromSecretKey(Uint8Array.from([{BYTES}]))", BYTES[:20]),
        (f"cat config/master.key\n{HEX[:32]}\n", HEX[:32]),
    ],
)
def test_keys_of_wallets_and_files(value: Any, secret: str) -> None:
    check(value, "SECRET_KEY" if "master" in str(value) else "PRIVATE_KEY", secret)


def test_keys_in_base64_of_der() -> None:
    keys: list[Any] = [
        rsa.generate_private_key(65537, 2048),
        ec.generate_private_key(ec.SECP256R1()),
        ed25519.Ed25519PrivateKey.generate(),
    ]
    for key in keys:
        for form in (PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL):
            if form is PrivateFormat.PKCS8 or key is not keys[2]:
                der = base64.b64encode(key.private_bytes(Encoding.DER, form, NoEncryption()))
                check(f'private_key: "{der.decode()}"', "PRIVATE_KEY", der.decode()[-40:])
        public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        text = base64.b64encode(public).decode()
        assert redact_text(text) == (text, {})


@pytest.mark.parametrize(
    ("value", "kind", "secret"),
    [
        ('pyotp.TOTP("QXRT4KZP5WNB2YHD")', "OTP_SEED", "QXRT4KZP"),
        ("2FA setup key: qxrt 4kzp 5wnb 2yhd", "OTP_SEED", "4kzp"),
        ("Authenticator key:\nQXRT4KZP5WNB2YHD7VJM3CFA6S", "OTP_SEED", "5WNB2"),
        ("Windows product key: VK7JG-NPHTM-C97JM-9MPGT-3V66T", "LICENSE_KEY", "C97JM"),
        (
            "Backup codes:\n1. ab12c-de34f\n2. q8w2e-5rt1y\n3. z6x3c-9vb0n\n4. u4i8o-1pa7s\n"
            "5. m2n3b-4v5c6",
            "RECOVERY_CODE",
            "z6x3c",
        ),
        ("recovery codes: 1234 5679\n8876 1232\n4455 9921\n3326 1132", "RECOVERY_CODE", "5679"),
        (
            'backup_codes = ["83745612", "19283746", "56473829", "10293847", "65748392"]',
            "RECOVERY_CODE",
            "65748392",
        ),
    ],
)
def test_seeds_and_codes(value: str, kind: str, secret: str) -> None:
    check(value, kind, secret)


# Published examples of each authority, or numbers with their check digits worked out by hand.
@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("SSN: 536-90-4399", "536-90-4399"),
        ("her social security number is 536 90 4399", "536 90 4399"),
        ("Steuer-ID: 86 095 742 719", "86 095 742 719"),
        ("Numéro de sécu: 255081416802538", "255081416802538"),
        ("assurée 2 55 08 14 168 025 38", "2 55 08 14 168 025 38"),
        ("DNI 12345678Z", "12345678Z"),
        ("NIE: X1234567L", "X1234567L"),
        ("o cliente 111.444.777-35 pagou", "111.444.777-35"),
        ("CNPJ 11.222.333/0001-81", "11.222.333/0001-81"),
        ("codice fiscale RSSMRA85T10A562S", "RSSMRA85T10A562S"),
        ("BSN 111222333", "111222333"),
        ("PESEL 44051401359", "44051401359"),
        ("personnummer 811228-9874", "811228-9874"),
        ("NI number AB 12 34 56 C", "AB 12 34 56 C"),
        ("passport no. 533380006", "533380006"),
    ],
)
def test_numbers_of_persons(text: str, number: str) -> None:
    check(text, "NATIONAL_ID", number)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("Phone: +49 170 8234569", "8234569"),
        ("call me at (415) 867-5309", "867-5309"),
        ({"phone": "0151 23486780"}, "23486780"),
        ("tel. 030 901820", "901820"),
        ("Contacts:\n+49 170 8234569\n", "8234569"),
        ("ring +44 20 7183 8750 now", "7183"),
        ("Téléphone : 06 12 34 56 79", "34 56"),
        ("Móvil: +34 612 345 679", "612 345"),
        ("whatsapp +5511998877665", "5511998877665"),
    ],
)
def test_telephone_numbers(value: Any, number: str) -> None:
    check(value, "PHONE", number)


@pytest.mark.parametrize(
    "text",
    [
        "order 4532015128303876 shipped",
        f"card {CARD[:-1]}{(int(CARD[-1]) + 1) % 10} exp 12/28",
        "card 4242424242424242, 4111 1111 1111 1111, 5555 5555 5555 4444 or 378282246310005",
        "took 1700000000000 ms, then 1732550400123456789 ns",
        "| 4539 1488 0343 6467 1234 |",
        "| 1234 5678 9012 3456 |",
        "DE89370400440532013001",
        "commit 7f3a9c1e5b2d8f4a6c0e9b7d5f3a1c8e6b4d2f0a",
        "block 0x063ccadae13639d990014be17327555fca2a3316561b44d8f41b199b24026056",
        "keccak256 root: 0x063ccadae13639d990014be17327555fca2a3316561b44d8f41b199b24026056",
        "color: #1a2b3c; v1.22.333-44; 00ef13bd-99a1-4001-a829-09985a069ab2",
        "pixels = [" + ", ".join(str(n % 256) for n in range(7, 400, 3)) + "]",
        "sha512 = [" + BYTES + "]",
        "[" + BYTES.rpartition(",")[0] + "]",
        "Keep your backup codes in a safe place and never share them with people you know",
        "const backupCodes = generateCodes(10); // recovery codes for the user",
        "serial number AAAA-BBBB-CCCC-DDDD",
        "two-factor AUTHENTICATION is REQUIRED",
        "ssn 123-45-6789 is an example, className 536-90-4399 none",
        "Steuer-ID 86095742718",
        "BSN 111222334, PESEL 44051401358, DNI 12345678A, 111.444.777-36",
        "passport.js 0.7.0 and passport-local 1.0.0",
        "phone: 555-0123, +1 555 555 0100, +15555550100, 123-456-7890",
        "phone_number_id: 12345678901",
        "mobile 192.168.100.100, tel 2024-01-15 10:30, cell 12345678",
        "@@ -1,2 +1,2 @@\n-1700000000000\n+1700000000001",
        "@@ -1,2 +1,3 @@\n 1 2\n+10 20 30 40 50\n+310 220 130 140",
        "x = 3 +1234567890",
    ],
)
def test_what_only_looks_like_them_stays(text: str) -> None:
    assert redact_text(text) == (text, {})


def test_a_key_of_a_wallet_has_its_checksum() -> None:
    """Bitcoin's own example of its wallet import format, and the same with another last letter."""
    key = "5KYZdUEo39z3FPrtuX2QbbwGnNP5zTd7yyr2SC1j299sBCnWjss"
    assert "PRIVATE_KEY" in redact_text(f"wif {key}")[1]
    assert "PRIVATE_KEY" not in redact_text(f"wif {key[:-1]}t")[1]


def test_codes_are_found_behind_each_of_two_words_that_are_near_each_other() -> None:
    text = "backup code" + " x" * 140 + " recovery code" + " y" * 90 + " a1b2c-d3e4f done"
    assert "a1b2c-d3e4f" not in redact_text(text)[0]
