"""A password that a sentence tells goes; a sentence about passwords stays as it is."""

import random
import string

import pytest

from composer_pipeline.redaction.redact import find_secrets, redact_text


def _some(count: int, seed: str) -> str:
    """Return letters of both cases, a sign and three digits; the same for the same seed."""
    drawn = random.Random(seed)
    letters = "".join(drawn.choice(string.ascii_letters) for _ in range(count - 6))
    return f"{letters}kQ{drawn.choice('!#&*')}{drawn.randrange(100, 1000)}"


TOLD = """
    The password for the staging box is {}.
    password is {}, ok?
    my pw: {}
    the admin password was changed to `{}` yesterday
    I forgot the password, try {} instead
    reset the password and set it to {}
    use login bob pw {} there
    user bob, password {}
    **Password:** {}
    the password: **{}**
    password -> {}
    pass: {}
    Passwort lautet {}
    Das Passwort für den Server ist {}.
    le mot de passe est {}.
    mdp : {}
    la contraseña es {}
    a senha é {}
    het wachtwoord is {}
    hasło to {}
    пароль: {}
    密码是 {}
    パスワードは「{}」
    login: mira / {}
    creds admin:{} for the box
    account: bob // {}
    credentials (staging): qa@acme.io / {}
    the api key for maps is {}
    they rotated it to {} on Monday
    payroll.zip opens with {}
    log in with qa and {} please
    mit qa und {} kommst du rein
    Kennwort ist seit heute {}
    connecte-toi avec le compte support et {}
    accedi con root e {} su collaudo
    entra con root y {} ahora
    acesso do painel: gestor e {}
    inloggen gaat met etl / {}
    zaloguj się jako serwis na {} i zrestartuj
    lösenordet är {}
    he restablecido la cuenta, ahora {}
    Dostęp do bazy: raport / {}
    ログインできません、パスは {} です
""".strip().splitlines()


@pytest.mark.parametrize("frame", TOLD)
@pytest.mark.parametrize("count", [9, 14])
def test_a_password_that_a_sentence_tells(frame: str, count: int) -> None:
    secret = _some(16 if "key" in frame else count, frame)
    redacted, counts = redact_text(frame.strip().format(secret))
    assert secret not in redacted, redacted
    assert counts
    assert redacted.endswith(frame.strip().partition("{}")[2])
    assert find_secrets(redacted) == []


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("I set the root password to 'sunshine' for now", "sunshine"),
        ("the passphrase is correct horse battery staple", "horse"),
        ('the passphrase is "correct horse battery staple"', "horse"),
        ('the wifi password is "blue elephants dance"', "elephants"),
        ("the password is hunter22", "hunter22"),
        ("the password is 48392017.", "48392017"),
        ("My PIN 4821 works", "4821"),
        ("PIN is 4821", "4821"),
        ("the door code is 482913", "482913"),
        ("Türcode: 4711", "4711"),
        ("the passcode for the alarm is 9934.", "9934"),
        ("code PIN : 4482", "4482"),
        ("SIM-PIN vom Testgerät: 289778", "289778"),
        ("the server room keypad takes 122718", "122718"),
        ("it just texted me 238625, be quick", "238625"),
        ("Dein Einmalcode 754982 ist gültig", "754982"),
        ("lösenordet är hpefd!474", "hpefd"),
        ("ログインできません、パスは JMHNH&208 です", "JMHNH"),
        ("they rotated the login to wlbbn*441 on Monday", "wlbbn"),
        ("what you need to type is: txmjrz mjklsls lxkhe zmpwy", "mjklsls"),
    ],
)
def test_words_and_pins(text: str, left: str) -> None:
    redacted, counts = redact_text(text)
    assert left not in redacted
    assert counts.total() == 1
    assert find_secrets(redacted) == []


ABOUT = """
    log in with Claude-Opus-4 or GPT-4o and sign in again
    <span class="css-42w9mkn ewg3uze0">Forgot password?</span>
    the login moved to src/Login_Form2.tsx and LoginForm_V2.test.ts
    login on Ubuntu-22.04 works, Python-3.12 prompts again
    it changed to maxSessionLanes*2 in the password view
    the login waits timeout*100 and acme#474 says why
    the authenticator ran 238625123 times, sms-123456-x
    you have to type in the name of the new file
    the password is hashed with bcrypt
    password is required
    set the token to null
    login: POST /api/v2/login
    the password is at least 12 characters
    pin: 3.2.1
    PIN the version to 1.2.3
    code: 404
    pass/fail 12/15
    login / logout
    the pass rate is 95%
    admin/users.py
    password: string
    the password is stored as PBKDF2-HMAC-SHA256
    password is "required"
    the password is `undefined` here
    the password is 'invalid'
    passwords are Argon2id hashes
    the token is JWT (RS256)
    password: hash2
    password is base64 encoded
    Das Passwort ist falsch
    Passwort muss mindestens 8 Zeichen haben
    le mot de passe est incorrect
    le mot de passe doit contenir 8 caractères
    la contraseña es obligatoria
    la contraseña debe tener 8 caracteres
    password to config.PASS2
    the secret is 32 bytes
    set password to $PASSWORD1
    password is v2.0.1-beta
    access: read / write
    user:group 1000:1000
    admin / user2
    status code 200101
    exit code is 100100
    pinned to 4821
    GPIO pin 12
    login as user1 / test
    - user: 3 / 15 passed
    access to node:18-alpine3.19
    password is password1
    password must contain 1 digit & 1 Upper2
    the PIN is 4 to 8 digits
    password is user.password1
    access log: src/auth2/login3.ts:42
    wrong password, try again in 30s
    credentials: include / same-origin
    ValueError: password cannot be longer than 72 bytes
    token = Base.url_encode64(:crypto.strong_rand_bytes(24))
""".strip().splitlines()


@pytest.mark.parametrize("text", [text.strip() for text in ABOUT])
def test_a_sentence_about_passwords_stays(text: str) -> None:
    assert redact_text(text) == (text, {})


# A sentence that tells a password, what has to be gone, and one of the same form that tells none.
FORMS = [
    ("pay/Tr@wler_54$ still works", "awler", "pay/Trawler_54 still works"),
    ("the old one was Qu@rtz-80!, grep for it", "rtz", "the old one was Quartz-80, grep for it"),
    ("Mira has Winter2024! and I have none", "Winter2024", "PyCon2024! And it was good"),
    ("| mira | Winter2019* | buyer |", "Winter2019", "| mira | Winter-2019 | buyer |"),
    ("they changed it to Paulchen1987, not me", "Paulchen", "they changed it to Release2024"),
    (
        "the passphrase is: anchor velvet quartz hammer",
        "velvet",
        "the phrase is: open the new file",
    ),
    (
        "wifi guest, key is tundra-velvet-quartz-orbit",
        "velvet",
        "network is host-only-with-default",
    ),
    (
        "open it with 'tundra-velvet-quartz-orbit'",
        "velvet",
        "open it with 'docker-compose-file-name'",
    ),
    ("the side entrance opens with 5045 after 7pm", "5045", "the side entrance opens with 5045 ms"),
    ("just enter 616535", "616535", "just enter items616535"),
    ("Die Tür geht mit 7576 auf", "7576", "Die Tür geht seit 2026 auf"),
    ("4462 wählen, dann Raute", "4462", "port:4462 wählen"),
    (
        "Zugangsdaten hab ich,\nkunde / meadow.Rocket912",
        "Rocket912",
        "Zugangsdaten hab ich,\nkunde / meadow.Rocket",
    ),
    ("accedi con bo / zephyr.Tundra583", "Tundra583", "login is zephyr.Tundra5"),
    (
        "vpn pw changed yesterday, now violin-orbit-harbor-24",
        "violin",
        "vpn pw changed, now open-the-new-file",
    ),
    ("SIM PIN required\n-> it's 842092", "842092", "SIM PIN required\n-> it's 842092%"),
    ("319750 is your code", "319750", "#319750 is your code"),
    ("门禁密码是510179,进门", "510179", "门禁密码是对的,进门"),
    ("端末のロックは 807891 で解除", "807891", "端末のロックは v807891 で解除"),
]


@pytest.mark.parametrize(("told", "gone", "lure"), FORMS)
def test_more_forms_of_telling(told: str, gone: str, lure: str) -> None:
    redacted, counts = redact_text(told)
    assert gone not in redacted
    assert counts
    assert redact_text(lure) == (lure, {})


NO_PASSWORDS = """
    see Owner/Repo#123 and acme/Log4j#12345, I18n#42
    On my phone the page shows Reykjavik&#39;s tides an hour early
    integrity sha512-C+PDVUwlAnkCcoADcF8n+uX45d7JjjmEIpPtoSaOX96xFOU2GXCzLkr4n63tC81y
    const x = Foo$Bar1 ^ Mask2;
    npm i Left-pad@2 and React-dom@18 now
    https://x.dev/a?Foo1=Bar2&Baz3=Qux4
    Is it Base64? Is it Utf8! Is it Python3?
    use Vec3*Mat4 and A1%B2, 50%, C++17!
    the mutex is unlocked: 4096 bytes
    unlock in 2026, alarm at 10:30, the door costs 1200 users
    knuth1984 and Vaswani2017 show that
    "login":"user","node_id":"MDQ6VXNlcjM1MTkzNA==","type":"User"
    the network alpha-beta-gamma-delta is `static-site-build-step`
""".strip().splitlines()


@pytest.mark.parametrize("text", [text.strip() for text in NO_PASSWORDS])
def test_signs_and_numbers_that_tell_nothing_stay(text: str) -> None:
    assert redact_text(text) == (text, {})
