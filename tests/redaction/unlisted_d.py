"""A fourth set of planted secrets, names, hosts, numbers and decoys for measuring the redactor.

It was written blind: its author read neither the redactor, nor its documentation, nor what the other
sets hold or miss. Nothing in it is real: every value is made from ``random.Random(seed)``, persons and
words come from pools made up for this file, and no value is written out. A table's row reads
``place >> text``, where ``§`` is the value, ``~name~`` or ``~alphabet:length~`` is drawn, and ``⏎``
is a line's end; a place that starts with ``@`` is a file's name.
"""

from __future__ import annotations

import base64
import json
import re
import string
import unicodedata
from collections.abc import Callable
from random import Random

from tests.redaction.unlisted_a import Decoy, Plant
from tests.redaction.unlisted_b import luhn_digit

_ALPHABETS = {
    "d": string.digits,
    "hex": "0123456789abcdef",
    "HEX": "0123456789ABCDEF",
    "low": string.ascii_lowercase + string.digits,
    "upp": string.ascii_uppercase + string.digits,
    "AZ": string.ascii_uppercase,
    "az": string.ascii_lowercase,
    "alpha": string.ascii_letters,
    "b62": string.ascii_letters + string.digits,
    "b64": string.ascii_letters + string.digits + "+/",
    "url": string.ascii_letters + string.digits + "-_",
    "b32": "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567",
    "bech": "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L",
}
_SIGNS = "!#$%*+-_=?&"

_FIRST = (
    "Maelis Torvald Ysolde Bertil Anouska Rurik Fenna Casimir Liesbet Odalric Perpetua Jorunn Tibor "
    "Zofia Emeric Sunniva Wendelin Noemi Alarik Brunhild Ciriaco Dagny Evander Ghislain Hedvika Ilario "
    "Jelena Kasimira Leopoldine Milosz Nadja Ottokar Piroska Quirin Ragnhild Severin Tancredi Ulrika "
    "Viljami Wiebke Xaverine Yevgenia Zdenko Amaury Birgitta Corentin Dorotea Eskil"
).split()
_LAST = (
    "Vandermoor Kielbasinski Thornquist Abendschein Falkenrath Oosterwolde Brakenhjelm Lindqvarn Moulineau "
    "Petrasek Quintarelli Rautavuori Szerencsi Tremontaine Ullmark Vasconcillo Wintershagen Yardeleigh "
    "Zimmerloh Ardelean Bjørnevik Castelbarco Dobrzanek Eichstetter Fjellmark Grunewalder Halvarsen "
    "Iturbegaray Jankovics Kortenhorst Lavergnolle Mäkiharju Nordkvelle Obermoser Palazzeschi Rebolledano "
    "Schwanitzer Taveirinho Uhlenbrock Verhoogen Wolanczyk Xifreda Ylönheimo Zavadskis Buchenrieder "
    "Crowthwaite Drewnicki Ekenstamme"
).split()
_WORDS = (
    "harvest walrus copper lantern bramble juniper saddle marble thistle beacon cobalt meadow pepper "
    "falcon orchid tundra velvet canyon magnet rocket saffron glacier pumpkin hammock anchor cactus dolphin "
    "fiddle garnet hollow island jigsaw kettle lemon mosaic nectar oyster parrot quartz ripple sunset trumpet "
    "umbrella violin whisper yonder zephyr sonnenblume papillon girasol vlinder farfalla borboleta motyl "
    "fjaril wolke nuage nube wolk nuvola nuvem chmura moln"
).split()
_ORGS = (
    "norvexa kelstrand palomint dravenia ostrellis quillborn fennimar zelcorp tarvanta mossgate lumivar "
    "brixholm corvanto elmstead haldora inverlux jastrova korpina lindaro mervault nocturis opalith "
    "pretoria-labs quorvia rillstone saltmere thornby umbrava velluno westrava xandrel yarrowtech zintara "
    "arkmoor belvista cindral dunmarch evershaw fablight gorsehill"
).split()
_PROJECTS = (
    "billing-core ledger-sync mapforge payrelay stockview intake-api doc-render cart-engine audit-feed "
    "route-planner chat-bridge media-index price-oracle shop-front tax-helper mail-queue ride-match "
    "seat-booking claim-flow parcel-track menu-board grid-viewer crew-roster farm-stats lab-notes "
    "quiz-maker fleet-watch loan-desk rent-radar song-match trip-log vote-count wine-cellar yard-sale "
    "bike-share clinic-app energy-hub game-lobby hotel-admin invoice-bot"
).split()


def _ascii(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text.replace("ø", "o"))
    return "".join(char for char in plain if char.isascii() and char.isalnum()).lower()


def _chars(rng: Random, alphabet: str, length: int) -> str:
    return "".join(rng.choice(alphabet) for _ in range(length))


def _generated(rng: Random, length: int) -> str:
    """What a password manager makes: letters, digits and signs, a letter first."""
    body = [rng.choice(string.ascii_letters) for _ in range(length - 6)]
    body += [rng.choice(string.digits) for _ in range(3)] + [rng.choice(_SIGNS) for _ in range(2)]
    rng.shuffle(body)
    return rng.choice(string.ascii_letters) + "".join(body)


def _card(rng: Random) -> str:
    body = rng.choice(("45", "47", "48", "52", "53", "54")) + _chars(rng, string.digits, 13)
    return body + luhn_digit(body)


def _card_spaced(rng: Random) -> str:
    card = _card(rng)
    return " ".join(card[start : start + 4] for start in range(0, 16, 4))


def _amex(rng: Random) -> str:
    body = rng.choice(("34", "37")) + _chars(rng, string.digits, 12)
    card = body + luhn_digit(body)
    return f"{card[:4]} {card[4:10]} {card[10:]}"


def _iban(rng: Random) -> str:
    country, letters, digits = rng.choice(
        (("DE", 0, 18), ("NL", 4, 10), ("GB", 4, 14), ("FR", 0, 23), ("ES", 0, 20), ("BE", 0, 12))
    )
    bban = _chars(rng, string.ascii_uppercase, letters) + _chars(rng, string.digits, digits)
    number = int("".join(str(int(char, 36)) for char in bban + country + "00"))
    return f"{country}{98 - number % 97:02d}{bban}"


def _iban_spaced(rng: Random) -> str:
    iban = _iban(rng)
    return " ".join(iban[start : start + 4] for start in range(0, len(iban), 4))


def _birth(rng: Random) -> str:
    return f"{rng.randint(50, 99):02d}{rng.randint(1, 12):02d}{rng.randint(1, 28):02d}"


def _pesel(rng: Random) -> str:
    body = _birth(rng) + _chars(rng, string.digits, 4)
    total = sum(int(char) * (1, 3, 7, 9)[place % 4] for place, char in enumerate(body))
    return body + str(-total % 10)


def _personnummer(rng: Random) -> str:
    body = _birth(rng) + _chars(rng, string.digits, 3)
    return f"{body[:6]}-{body[6:]}{luhn_digit(body)}"


def _bsn(rng: Random) -> str:
    while True:
        body = rng.choice("123456789") + _chars(rng, string.digits, 7)
        check = sum(int(char) * (9 - place) for place, char in enumerate(body)) % 11
        if check < 10:
            return body + str(check)


def _dni(rng: Random) -> str:
    number = rng.randint(10_000_000, 79_999_999)
    return f"{number}{'TRWAGMYFPDXBNJZSQVHLCKE'[number % 23]}"


def _cpf(rng: Random) -> str:
    body = _chars(rng, string.digits, 9)
    for _ in range(2):
        total = sum(int(char) * (len(body) + 1 - place) for place, char in enumerate(body))
        body += str(total * 10 % 11 % 10)
    return f"{body[:3]}.{body[3:6]}.{body[6:9]}-{body[9:]}"


def _nir(rng: Random) -> str:
    body = (
        f"{rng.randint(1, 2)}{_birth(rng)[:4]}{rng.randint(10, 89)}{rng.randint(10**5, 10**6 - 1)}"
    )
    return f"{body}{97 - int(body) % 97:02d}"


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _jwt(rng: Random) -> str:
    head = json.dumps({"alg": "HS256", "typ": "JWT"}, separators=(",", ":"))
    body = json.dumps(
        {
            "sub": _chars(rng, _ALPHABETS["low"], 12),
            "iat": rng.randint(1_760_000_000, 1_790_000_000),
        }
    )
    parts = [base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in (head, body)]
    return ".".join([*parts, _chars(rng, _ALPHABETS["url"], 43)])


def _uuid(rng: Random) -> str:
    text = _chars(rng, _ALPHABETS["hex"], 32)
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{rng.choice('89ab')}{text[17:20]}-{text[20:]}"


def _private(rng: Random) -> str:
    last = f"{rng.randint(0, 254)}.{rng.randint(2, 254)}"
    return rng.choice(
        (f"10.{rng.randint(1, 254)}.{last}", f"172.{rng.randint(16, 31)}.{last}", f"192.168.{last}")
    )


_MAKERS: dict[str, Callable[[Random], str]] = {
    "word": lambda rng: rng.choice(_WORDS),
    "Word": lambda rng: rng.choice(_WORDS).capitalize(),
    "sign": lambda rng: rng.choice("!#$%*?&"),
    "tilde": lambda rng: "~",
    "key": lambda rng: "PRIVATE KEY",
    "year": lambda rng: str(rng.randint(1998, 2026)),
    "date": lambda rng: f"2026-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}",
    "clock": lambda rng: (
        f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}:{rng.randint(0, 59):02d}"
    ),
    "n": lambda rng: str(rng.randint(2, 99)),
    "nn": lambda rng: str(rng.randint(100, 999)),
    "uuid": _uuid,
    "jwt": _jwt,
    "b64login": lambda rng: _b64(f"{rng.choice(_WORDS)}-ci:{_generated(rng, 18)}"),
    "b64pass": lambda rng: _b64(_generated(rng, 20)),
    "ip": _private,
    "card": _card,
    "cards": _card_spaced,
    "amex": _amex,
    "iban": _iban,
    "ibans": _iban_spaced,
    "pesel": _pesel,
    "personnummer": _personnummer,
    "bsn": _bsn,
    "dni": _dni,
    "cpf": _cpf,
    "nir": _nir,
}

# ---------------------------------------------------------------- what is planted

_PROSE = r"""
== login-pair :: ~Word~~d:2~~sign~ || ~gen:14~ || ~word~~d:4~
chat >> you can get into staging with ~svc~-admin / §, it has the owner role
@NOTES.md >> ## Staging access⏎- https://staging.~org~.dev/admin⏎- admin@~org~.dev : §⏎- data is reset nightly
user message >> The seeded account for the e2e run is ops@~org~.io and the pw that goes with it is § - don't rotate it yet please
== changed-to :: ~Word~~Word~~d:2~ || ~gen:16~ || ~Word~-~year~~sign~
assistant message >> `ALTER ROLE` went through, so the password for `~svc~_rw` was changed to `§`. Restart the pods so they pick it up.
chat >> fyi I changed the grafana admin password to § because the old one was in the wiki
tool result >> {"type":"tool_result","content":"Note left in runbook: after the incident we switched the root password from the old one to § on all three nodes."}
== is-now :: ~Word~~d:3~~sign~ || ~gen:12~ || ~word~.~word~.~d:2~
chat >> heads up, wifi password in the office is now § (guest network stays the same)
@CHANGELOG.internal.md >> ### Ops⏎- the shared VPN password is now §, the previous one stops working on Friday
user message >> no wait, that's the wrong one, the db password is § now, try the migration again
== use-for :: ~Word~~sign~~d:4~ || ~gen:18~ || ~word~~Word~~d:2~
user message >> Use § for the keystore when gradle asks, both for the store and the key.
chat >> if it prompts you for sudo just type § and let the install script go on
@docs/setup.md >> 3. Start the importer.⏎4. When asked for the archive password, enter § and press return twice.
== chat :: ~Word~~d:2~~sign~~sign~ || ~gen:13~ || ~word~_~word~~d:3~
slack >> ~first~ 09:41⏎hey can someone send me the creds for the ~proj~ box⏎~first2~ 09:43⏎sure, deploy and then §⏎~first~ 09:44⏎works, thx
slack >> [~clock~] ~login2~: what was the mongo pass again?⏎[~clock~] ~login3~: §⏎[~clock~] ~login2~: ty
teams >> ~full2~: The demo tenant is up. Sign in as demo-owner, pass: § . Please delete this message after reading.
== commit :: ~Word~~d:4~ || ~gen:15~ || ~word~-~word~-~d:2~
git log >> commit ~hex:40~⏎Date:   Tue Mar 3 10:12:44 2026 +0100⏎⏎    seed: set admin password to § for local stack
git log --oneline >> ~hex:7~ hotfix: hardcode pass § until vault is back⏎~hex:7~ chore: bump deps
git show >> commit ~hex:40~⏎⏎    fix(login): stop accepting the old pw⏎⏎    The support team still typed § at the kiosk, which is the⏎    password from before the move.
== comment :: ~Word~~Word~~sign~~d:1~ || ~gen:14~ || ~word~~year~
@src/seed.ts >> // TODO remove before launch: backdoor login for QA is qa-lead with password §⏎await createUser("qa-lead", hash);
@settings.py >> DATABASES = load()  # on the old cluster you have to log in as reporting, pw §
@deploy.sh >> #!/usr/bin/env bash⏎# the jump box asks for a password -> §⏎set -euo pipefail
== review :: ~Word~~d:2~~sign~ || ~gen:16~ || ~word~~d:2~~word~
gh pr view --comments >> ~login2~ commented on lines 40-44⏎This still has our prod password in it (§). Please read it from the environment.
review json >> {"path":"app/db.go","line":~n~,"body":"nit: why is § hardcoded here? that's the password for the replica"}
chat >> reviewed your PR, looks good apart from line 12 where you committed the LDAP bind password, `§`
== ticket :: ~Word~~d:3~ || ~gen:17~ || ~Word~.~Word~.~d:2~
jira >> OPS-~nn~ Cannot log in to kiosk⏎Steps: 1. open /kiosk 2. enter user "floor2" and password "§" 3. press Enter⏎Expected: dashboard
zendesk >> Customer wrote: I set my password to § yesterday and today it says it is wrong, can you check please?
linear >> ~AZ:3~-~nn~: rotate SMTP credentials⏎The current one, §, was pasted in #general. Everyone who has it must assume it is burnt.
== readme :: ~Word~~d:2~~sign~ || ~gen:12~ || ~word~-~Word~-~d:3~
@README.md >> ### First login⏎Open http://localhost:3000 and log in with user `root` and password `§`.
@README.md >> | role | user | password |⏎|---|---|---|⏎| editor | ed1 | § |
@docs/onboarding.txt >> Your account is created on day one. The initial password for everybody in the team is § and must be replaced at first sign-in.
== one-time-code :: ~d:6~ || ~d:3~-~d:3~ || ~upp:4~-~upp:4~
user message >> it texted me a code: §. enter that on the npm 2fa prompt, quick, it runs out in a minute
terminal >> Your ~org~ verification code is §. It expires in 10 minutes. Never share it.
chat >> here's one of my github recovery codes so you can finish the login: §
== passphrase :: ~word~-~word~-~word~-~d:2~ || ~word~ ~word~ ~word~ ~word~ ~d:2~ || ~Word~~Word~~Word~~d:1~
user message >> the ssh key has a passphrase, it's "§" - add it to the agent first
@BACKUP.md >> Restore with `restic restore latest`. The repository passphrase is: §
chat >> gpg will ask you to unlock the signing key; the phrase is §
== pin :: ~d:4~ || ~d:6~ || ~d:8~
user message >> My YubiKey PIN is §, so you can run the signing step yourself
chat >> door to the server room opens with PIN § followed by the hash key
@docs/sim.md >> The modem needs the SIM unlocked before it registers. SIM PIN: § (three tries only).
== german :: ~Word~~d:2~~sign~ || ~gen:14~ || ~d:5~
chat >> Moin, das Passwort für den Testserver lautet jetzt §, bitte nicht weitergeben.
user message >> Melde dich mit dem Benutzer wartung und dem Kennwort § an und starte dann den Dienst neu.
ticket >> Die PIN für das Kartenterminal in Halle 3 ist §. Sie wurde gestern vom Lieferanten geändert.
== french :: ~Word~~d:4~ || ~gen:15~ || ~word~-~word~-~d:3~
chat >> Le mot de passe du serveur de recette est désormais §, pense à vider ton cache.
commit >> ~hex:7~ correctif : remplace le mdp admin par § dans le script d'amorçage
@LISEZMOI.md >> Pour se connecter, saisir l'identifiant `atelier` puis la phrase secrète « § ».
== spanish :: ~Word~~sign~~d:3~ || ~gen:13~ || ~d:6~
user message >> la contraseña de la base de datos es §, pruébala y dime si conecta
chat >> He cambiado la clave del panel a § porque la anterior ya la sabía todo el mundo
sms >> Tu código de verificación es §. No lo compartas con nadie.
== italian :: ~Word~~d:2~~sign~ || ~gen:12~ || ~d:5~
chat >> ciao, per entrare nel gestionale usa utente magazzino e password §
@note.txt >> La nuova parola d'ordine del router è § (quella vecchia non vale più).
user message >> il PIN della chiavetta di firma è §, inseriscilo quando lo chiede
== portuguese :: ~Word~~d:4~~sign~ || ~gen:16~ || ~word~~Word~~d:2~
chat >> a senha do ambiente de homologação agora é §, já avisei o pessoal
user message >> Entra com o usuário suporte e a senha § e vê se o relatório abre.
commit >> ~hex:7~ ajusta a palavra-passe do servidor de ficheiros para §
== dutch :: ~Word~~d:3~~sign~ || ~gen:14~ || ~d:4~
chat >> het wachtwoord van de acceptatieomgeving is gewijzigd in §, graag even testen
@LEESMIJ.md >> Log in als `beheer` met wachtwoord `§` en kies daarna Instellingen.
user message >> de pincode van het alarm in het datacenter is §, die heb je nodig als je vanavond gaat
== polish :: ~Word~~d:2~~sign~ || ~gen:15~ || ~word~-~word~-~d:2~
chat >> Hasło do serwera produkcyjnego to teraz §, stare już nie działa
user message >> zaloguj się jako operator, hasło: §, a potem uruchom migracje
ticket >> Klient ustawił hasło § i od tego czasu nie może wejść do panelu.
== swedish :: ~Word~~d:4~ || ~gen:13~ || ~d:6~
chat >> lösenordet till databasen är bytt till § från och med idag
user message >> Logga in med användaren drift och lösenord § så ser du felet.
sms >> Din engångskod är §. Ange den inom fem minuter.
== japanese :: ~Word~~d:3~~sign~ || ~gen:14~ || ~d:4~
chat >> 検証環境のパスワードは § です。社外には共有しないでください。
user message >> 管理者のパスワードを「§」に変更したので、もう一度ログインしてみて
@手順.md >> 2. 端末を起動し、暗証番号 § を入力します。
== chinese :: ~Word~~d:4~ || ~gen:15~ || ~d:6~
chat >> 数据库密码改成了 § ,你重新连一下试试
user message >> 用 deploy 这个账号登录,密码是§,登录后先看日志
sms >> 【~org~】您的验证码是 §,五分钟内有效,请勿告诉他人。
== korean :: ~Word~~d:2~~sign~ || ~gen:13~ || ~d:6~
chat >> 스테이징 서버 비밀번호는 § 입니다. 외부에 공유하지 마세요.
user message >> 관리자 암호를 § 로 바꿨으니까 다시 로그인해 봐
sms >> 인증번호는 [§] 입니다. 타인에게 알려주지 마세요.
"""

_NAMES = r"""
== git-log :: ~full~
git log >> commit ~hex:40~⏎Author: § <~dot~@~org~.com>⏎Date:   Mon Feb 9 14:02:11 2026 +0100⏎⏎    Retry uploads on timeout
git log --format >> $ git log -3 --format='%h|%an|%ar|%s'⏎~hex:7~|§|2 days ago|fix flaky retry⏎~hex:7~|~full2~|3 days ago|bump deps
git log --graph >> * ~hex:7~ - (HEAD -> main) drop legacy flag (5 hours ago) <§>⏎* ~hex:7~ - add cache layer (2 weeks ago) <~full2~>
== git-blame :: ~full~
git blame >> ~hex:8~ (§ 2026-01-14 09:33:20 +0100 41)     return total⏎~hex:8~ (~full2~ 2025-11-02 17:10:05 +0100 42) }
git blame --porcelain >> ~hex:40~ 12 12 1⏎author §⏎author-mail <~dot~@~org~.com>⏎author-time 1769000000⏎summary split the parser
git annotate >> ~hex:8~	(§	2026-03-01 11:20:09 +0000	7)const limit = 50;
== shortlog :: ~full~
git shortlog -sn >>    ~nn~  §⏎    ~n~  ~full2~⏎     1  dependabot[bot]
git shortlog >> § (2):⏎      Add retry to the uploader⏎      Remove dead branch
release notes >> ## Contributors⏎⏎Thanks to everyone who made this release: §, ~full2~ and ~full3~.
== trailer :: ~full~
commit >> Speed up cold start⏎⏎Co-authored-by: § <~login~@users.noreply.github.com>
commit >> net: fix refcount leak⏎⏎Reported-by: § <~dot~@~org~.org>⏎Signed-off-by: ~full2~ <~dot2~@~org~.org>
commit >> Pair: § and ~full2~⏎Pair-programmed-with: §⏎Change-Id: I~hex:40~
== github :: ~login~ || ~login~ || ~full~
gh pr list --json >> [{"author":{"id":"MDQ6VXNlcg==","is_bot":false,"login":"§"},"number":~nn~,"title":"Cache the index"}]
gh pr view >> title:	Cache the index⏎state:	OPEN⏎author:	§⏎labels:	perf⏎reviewers:	~login2~ (Requested)
gh api graphql >> {"data":{"viewer":{"login":"~login~","name":"§","company":"~org~"}}}
== gitlab :: ~login~ || ~full~ || ~login~
glab mr list >> !~nn~	~org~/~proj~!~nn~	Fix paging	(main) ← (paging)	opened by § about 2 hours ago
gitlab webhook >> {"object_kind":"merge_request","user":{"id":~nn~,"name":"§","username":"~login~"},"project":{"name":"~proj~"}}
gitlab ci log >> Running on behalf of user §⏎GITLAB_USER_LOGIN=§⏎Fetching changes with git depth set to 20...
== jira :: ~full~ || ~full~ || ~login~
jira json >> {"key":"PAY-~nn~","fields":{"assignee":{"accountId":"~hex:24~","displayName":"§","active":true}}}
jira cli >> TYPE	KEY	SUMMARY	STATUS	ASSIGNEE⏎Bug	PAY-~nn~	Totals off by one	In Progress	§
jira activity >> PAY-~nn~ history⏎~date~ ~clock~  § changed status from To Do to In Review
== other-forges :: ~full~
linear graphql >> {"issue":{"identifier":"ENG-~nn~","creator":{"displayName":"~login~","name":"§"},"state":{"name":"Todo"}}}
bitbucket json >> {"author":{"raw":"§ <~dot~@~org~.com>","user":{"display_name":"§","nickname":"~login~"}}}
gerrit query >> change I~hex:40~⏎  project: ~proj~⏎  branch: main⏎  owner:⏎    name: §⏎    username: ~login~
== owners :: ~login~
@CODEOWNERS >> # platform⏎/infra/   @~org~/platform @§⏎*.sql      @~login2~
@OWNERS >> approvers:⏎  - §⏎  - ~login2~⏎reviewers:⏎  - ~login3~
@.github/dependabot.yml >> version: 2⏎updates:⏎  - package-ecosystem: npm⏎    directory: /⏎    assignees: ["§"]
== manifest :: ~full~
@package.json >> {"name":"~proj~","version":"1.4.0","author":"§ <~dot~@~org~.com> (https://~org~.com)","license":"MIT"}
@pyproject.toml >> [project]⏎name = "~proj~"⏎authors = [{name = "§", email = "~dot~@~org~.com"}]
@Cargo.toml >> [package]⏎name = "~proj~"⏎authors = ["§ <~dot~@~org~.com>", "~full2~"]⏎edition = "2024"
== whoami :: ~login~
bash >> $ whoami⏎§
bash >> $ id⏎uid=1000(§) gid=1000(§) groups=1000(§),27(sudo),999(docker)
env >> SHELL=/bin/zsh⏎LOGNAME=§⏎USER=§⏎LANG=en_US.UTF-8
== who :: ~login~
who >> $ who⏎§   pts/0        2026-02-11 08:14 (tmux(2011).%0)
last >> §   pts/1        :1               Wed Feb 11 08:14   still logged in⏎reboot   system boot  6.8.0-52-generic Wed Feb 11 08:10
w >> USER     TTY      FROM             LOGIN@   IDLE   JCPU   PCPU WHAT⏎§ tty1     -                08:14    1:02m  0.10s  0.02s -zsh
== ls :: ~login~
ls -l >> total 24⏎-rw-r--r--  1 §  staff   512 Feb 11 09:01 main.go⏎drwxr-xr-x  4 §  staff   128 Feb 11 09:01 pkg
stat >>   File: run.sh⏎  Size: 812       	Blocks: 8          IO Block: 4096   regular file⏎Access: (0755/-rwxr-xr-x)  Uid: ( 1001/§)   Gid: ( 1001/§)
tar -tv >> -rw-rw-r-- §/§   1204 2026-02-11 09:01 ./conf/app.toml
== ps :: ~login~
ps aux >> USER         PID %CPU %MEM    VSZ   RSS TTY      STAT START   TIME COMMAND⏎§   41022  3.1  1.2 912340 99120 pts/0    Sl+  09:12   0:07 node server.js
top >>   PID USER      PR  NI    VIRT    RES    SHR S  %CPU  %MEM     TIME+ COMMAND⏎ 4102 §   20   0  912340  99120  40112 R  88.1   1.2   0:07.11 cargo
lsof >> COMMAND   PID   USER   FD   TYPE DEVICE SIZE/OFF NODE NAME⏎node    41022 §   23u  IPv4 0x0a11      0t0  TCP localhost:3000 (LISTEN)
== passwd-entry :: ~login~ || ~full~ || ~full~
getent >> $ getent passwd 1000⏎§:x:1000:1000::/srv/work:/bin/bash
passwd >> daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin⏎~login~:x:1001:1001:§,,,:/home/~login~:/usr/bin/zsh
finger >> Login: ~login~          			Name: §⏎Directory: /home/~login~           	Shell: /bin/zsh⏎Never logged in.
== home-path :: ~login~
stack trace >> Traceback (most recent call last):⏎  File "/home/§/code/~proj~/app.py", line ~n~, in main⏎ValueError: bad row
tool call >> {"type":"tool_use","name":"Read","input":{"file_path":"/Users/§/dev/~proj~/src/index.ts"}}
env >> HOME=/home/§⏎PATH=/home/§/.local/bin:/usr/bin:/bin⏎PWD=/srv/~proj~
== windows-path :: ~login~ || ~login~ || ~full~
powershell >> PS C:\Users\§\source\repos\~proj~> dotnet build⏎Build succeeded.
wsl >> $ ls /mnt/c/Users/§/Downloads⏎installer.msi  report.pdf
json log >> {"cwd":"C:\\Users\\§\\Desktop\\~proj~","exit":0}
== ssh-target :: ~login~
ssh >> $ ssh §@build-~n~.~org~.net 'uptime'⏎ 10:02:11 up 41 days,  2 users,  load average: 0.10, 0.08, 0.02
@.ssh/config >> Host build⏎  HostName build.~org~.net⏎  User §⏎  Port 2222
rsync >> $ rsync -avz dist/ §@deploy.~org~.net:/var/www/~proj~/⏎sending incremental file list
== laptop :: ~login~ || ~first~ || ~last~
prompt >> §-mbp14:~proj~ $ make build⏎go: downloading golang.org/x/sys v0.30.0
hostname >> $ scutil --get ComputerName⏎§'s MacBook Air
logs >> ~date~T~clock~Z host=LAPTOP-§ level=info msg="agent started" version=2.4.1
== branch :: ~login~
merge >> ~hex:7~ Merge pull request #~nn~ from §/fix-paging⏎~hex:7~ Merge branch 'main' into release
git branch -a >> * main⏎  remotes/origin/HEAD -> origin/main⏎  remotes/origin/users/§/spike-cache⏎  remotes/origin/release-2
git fetch >> From github.com:~org~/~proj~⏎ * [new branch]      §/retry-uploads -> origin/§/retry-uploads
== export :: ~full~
slack json >> {"id":"U~upp:10~","name":"~login~","profile":{"real_name":"§","title":"SRE","tz":"Europe/Oslo"}}
@standup.ics >> BEGIN:VEVENT⏎SUMMARY:Standup⏎ORGANIZER;CN=~full2~:mailto:~dot2~@~org~.com⏎ATTENDEE;CN="§";PARTSTAT=ACCEPTED:mailto:~dot~@~org~.com⏎END:VEVENT
@card.vcf >> BEGIN:VCARD⏎VERSION:4.0⏎FN:§⏎ORG:~org~⏎END:VCARD
== license :: ~full~
@LICENSE >> MIT License⏎⏎Copyright (c) 2026 §⏎⏎Permission is hereby granted, free of charge, to any person obtaining a copy
@Parser.java >> /**⏎ * Splits rows.⏎ *⏎ * @author §⏎ * @since 2.1⏎ */⏎public class Parser {
@DESCRIPTION >> Package: mapforge⏎Version: 0.3.1⏎Maintainer: § <~dot~@~org~.org>
== oncall :: ~full~ || ~full~ || ~login~
pagerduty json >> {"oncalls":[{"escalation_level":1,"schedule":{"summary":"Primary"},"user":{"type":"user_reference","summary":"§"}}]}
opsgenie cli >> $ opsgenie who-is-on-call --schedule platform⏎On call now: § until ~date~ 18:00
chat >> cc @§ the nightly job is red again, could you or @~login2~ have a look?
== principal :: ~login~ || ~login~ || ~dot~
aws sts >> {"UserId":"AIDA~upp:17~","Account":"~d:12~","Arn":"arn:aws:iam::~d:12~:user/§"}
@.kube/config >> contexts:⏎- context:⏎    cluster: ~proj~⏎    user: §⏎  name: §@~proj~⏎current-context: §@~proj~
gcloud >> bindings:⏎- members:⏎  - user:§@~org~.com⏎  role: roles/container.admin
"""

_KEYS = r"""
== anthropic :: sk-ant-api03-~url:93~AA || sk-ant-api03-~url:93~AA || sk-ant-oat01-~url:93~AA
bash >> $ export ANTHROPIC_API_KEY=§⏎$ claude -p "say hi"
curl >> curl https://api.anthropic.com/v1/messages -H "x-api-key: §" -H "anthropic-version: 2023-06-01"
@.claude/settings.json >> {"env":{"CLAUDE_CODE_OAUTH_TOKEN":"§","DISABLE_TELEMETRY":"1"}}
== openai :: sk-proj-~url:74~T3BlbkFJ~url:74~ || sk-proj-~url:74~T3BlbkFJ~url:74~ || sk-svcacct-~url:58~T3BlbkFJ~url:58~
@app.py >> from openai import OpenAI⏎⏎client = OpenAI(api_key="§")
error >> openai.AuthenticationError: Error code: 401 - {'error': {'message': 'Incorrect API key provided: §.'}}
@compose.yaml >> services:⏎  worker:⏎    environment:⏎      - OPENAI_API_KEY=§
== llm-gateway :: sk-or-v1-~hex:64~ || sk-~hex:32~ || sk-~url:22~
@.env.local >> OPENROUTER_API_KEY=§⏎MODEL=qwen/qwen3-coder
@config.yaml >> providers:⏎  deepseek:⏎    base_url: https://api.deepseek.com⏎    key: §
litellm >> curl -s http://localhost:4000/key/info -H "Authorization: Bearer §"
== llm-fast :: gsk_~b62:52~ || xai-~b62:80~ || pplx-~b62:48~
python >> >>> from groq import Groq⏎>>> Groq(api_key='§').models.list()
fish >> set -gx XAI_API_KEY §
@mcp.json >> {"mcpServers":{"search":{"command":"uvx","args":["pplx-mcp"],"env":{"PPLX":"§"}}}}
== llm-bare :: ~b62:32~ || ~b62:40~ || ~hex:64~
@client.ts >> const mistral = new Mistral({ apiKey: "§" });
@cohere.py >> co = cohere.ClientV2("§")
httpie >> http POST api.together.xyz/v1/completions Authorization:"Bearer §" model=llama
== model-hub :: hf_~alpha:34~ || r8_~b62:37~ || hf_~alpha:34~
hf cli >> $ hf auth login --token § --add-to-git-credential⏎Token is valid (permission: write).
@predict.js >> const replicate = new Replicate({ auth: "§" })
git remote >> $ git remote -v⏎origin	https://user:§@huggingface.co/~org~/~proj~ (fetch)
== llm-tracing :: lsv2_pt_~hex:32~_~hex:10~ || sk-lf-~uuid~ || ~hex:40~
@.env >> LANGSMITH_TRACING=true⏎LANGSMITH_API_KEY=§
@trace.py >> langfuse = Langfuse(public_key="pk-lf-~uuid~", secret_key="§")
wandb >> $ wandb login §⏎wandb: Appending key for api.wandb.ai to your netrc file
== search-tool :: tvly-prod-~b62:32~ || BSA~url:28~ || fc-~hex:32~
@mcp.json >> {"tavily":{"url":"https://mcp.tavily.com/mcp/?tavilyApiKey=§"}}
curl >> curl -H "X-Subscription-Token: §" "https://api.search.brave.com/res/v1/web/search?q=rust"
claude mcp >> $ claude mcp add firecrawl -e FIRECRAWL_API_KEY=§ -- npx -y firecrawl-mcp⏎Added stdio MCP server firecrawl
== github-token :: ghp_~b62:36~ || github_pat_~b62:22~_~b62:59~ || ghs_~b62:36~
git clone >> $ git clone https://§@github.com/~org~/~proj~.git⏎Cloning into '~proj~'...
@hosts.yml >> github.com:⏎    oauth_token: §⏎    git_protocol: https
ci log >> ##[debug]Using token § for checkout⏎Syncing repository: ~org~/~proj~
== gitlab-token :: glpat-~url:20~ || glpat-~url:27~.01.~low:9~ || glrt-~url:20~
curl >> curl --header "PRIVATE-TOKEN: §" "https://gitlab.~org~.com/api/v4/projects"
@.npmrc >> @~org~:registry=https://gitlab.com/api/v4/packages/npm/⏎//gitlab.com/api/v4/packages/npm/:_authToken=§
@config.toml >> concurrent = 4⏎url = "https://gitlab.com/"⏎token = "§"⏎executor = "docker"
== registry-token :: npm_~b62:36~ || pypi-AgEIcHlwaS5vcmc~url:140~ || rubygems_~hex:48~
npm >> $ npm config set //registry.npmjs.org/:_authToken §
@.pypirc >> [pypi]⏎username = __token__⏎password = §
@credentials >> ---⏎:rubygems_api_key: §
== docker :: dckr_pat_~url:27~ || ~b64login~ || ~b64login~
bash >> $ docker login -u ~org~bot -p §⏎WARNING! Using --password via the CLI is insecure.
@.docker/config.json >> {"auths":{"https://index.docker.io/v1/":{"auth":"§"}}}
curl -v >> > GET /v2/_catalog HTTP/1.1⏎> Host: cr.~org~.com⏎> Authorization: Basic §⏎> Accept: */*
== aws-key :: ~b64:40~
@.aws/credentials >> [default]⏎aws_access_key_id = AKIA~b32:16~⏎aws_secret_access_key = §
@s3.py >> s3 = boto3.client("s3", region_name="eu-west-1", aws_access_key_id="AKIA~b32:16~", aws_secret_access_key="§")
aws configure >> AWS Access Key ID [None]: AKIA~b32:16~⏎AWS Secret Access Key [None]: §⏎Default region name [None]: eu-north-1
== aws-temporary :: IQoJb3JpZ2luX2Vj~b64:300~ || ~b64:40~ || ~hex:64~
bash >> export AWS_SESSION_TOKEN="§"
aws sts >> {"Credentials":{"AccessKeyId":"ASIA~b32:16~","SecretAccessKey":"§","Expiration":"~date~T~clock~Z"}}
presigned >> https://~proj~.s3.amazonaws.com/dump.sql.gz?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Expires=604800&X-Amz-SignedHeaders=host&X-Amz-Signature=§
== google :: AIza~url:35~ || GOCSPX-~url:28~ || ya29.a0~url:160~
@index.html >> <script src="https://maps.googleapis.com/maps/api/js?key=§&libraries=places"></script>
@client.json >> {"web":{"client_id":"~d:12~-~low:32~.apps.googleusercontent.com","client_secret":"§"}}
gcloud >> $ gcloud auth print-access-token⏎§
== azure :: ~b64:86~== || ~b62:3~8Q~tilde~~url:34~ || ~url:43~%3D
connection string >> DefaultEndpointsProtocol=https;AccountName=~word~store;AccountKey=§;EndpointSuffix=core.windows.net
az login >> $ az login --service-principal -u ~uuid~ -p § --tenant ~uuid~
sas url >> https://~word~store.blob.core.windows.net/backup?sv=2024-11-04&ss=b&sp=rl&se=2027-01-01T00:00:00Z&sig=§
== slack-token :: xoxb-~d:12~-~d:13~-~b62:24~ || xapp-1-A~upp:10~-~d:13~-~hex:64~ || xoxp-~d:12~-~d:12~-~d:13~-~hex:32~
@bot.js >> const app = new App({ token: '§', signingSecret: process.env.SIGNING });
@.env.production >> SLACK_APP_TOKEN="§"
curl >> curl -F file=@out.png -F channels=C~upp:10~ -H "Authorization: Bearer §" https://slack.com/api/files.upload
== webhook :: T~upp:10~/B~upp:10~/~b62:24~ || ~url:68~ || ~low:32~
@alert.yaml >> receivers:⏎  - name: slack⏎    slack_configs:⏎      - api_url: https://hooks.slack.com/services/§
curl >> curl -d '{"content":"deployed"}' -H 'Content-Type: application/json' https://discord.com/api/webhooks/~d:19~/§
@n8n.md >> Trigger the flow by posting to https://hook.eu2.make.com/§ with the order id.
== chat-bot :: ~d:10~:AA~url:33~ || MT~b62:24~.~url:6~.~url:38~ || ~d:10~:AA~url:33~
curl >> $ curl "https://api.telegram.org/bot§/getUpdates"⏎{"ok":true,"result":[]}
@bot.py >> intents = discord.Intents.default()⏎bot.run("§")
systemd >> [Service]⏎Environment=TG_BOT=§⏎ExecStart=/opt/bot/bin/bot
== payment :: sk_live_~b62:99~ || rk_live_~b62:99~ || whsec_~b62:32~
@charge.rb >> Stripe.api_key = "§"
stripe cli >> $ stripe customers list --api-key § --limit 1
stripe listen >> Ready! You are using Stripe API Version [2026-01-28]. Your webhook signing secret is § (^C to quit)
== mail :: SG.~url:22~.~url:43~ || re_~b62:8~_~b62:24~ || ~hex:32~-~hex:8~-~hex:8~
@mailer.go >> client := sendgrid.NewSendClient("§")
@route.ts >> const resend = new Resend('§');
curl >> curl -s --user 'api:§' https://api.eu.mailgun.net/v3/mg.~org~.com/messages -F subject='Hi'
== telephony :: ~hex:32~ || ~b62:32~ || ~b62:16~
@sms.py >> client = Client("AC~hex:32~", "§")
twilio cli >> $ twilio profiles:create AC~hex:32~ --auth-token §
@nexmo.yml >> vonage:⏎  api_key: ~hex:8~⏎  api_secret: §
== cloudflare :: ~url:40~ || ~hex:37~ || eyJhIjoi~b62:170~
bash >> $ CLOUDFLARE_API_TOKEN=§ npx wrangler deploy⏎Total Upload: 41.20 KiB / gzip: 11.02 KiB
curl >> curl -X GET "https://api.cloudflare.com/client/v4/zones" -H "X-Auth-Email: ops@~org~.com" -H "X-Auth-Key: §"
cloudflared >> $ sudo cloudflared service install §
== hosting :: dop_v1_~hex:64~ || ~b62:24~ || FlyV1 fm2_~b64:120~
doctl >> $ doctl auth init -t §⏎Validating token... OK
vercel >> $ vercel deploy --prod --token=§⏎Production: https://~proj~.vercel.app
@.github/workflows/fly.yml >> jobs:⏎  deploy:⏎    env:⏎      FLY_API_TOKEN: "§"
== db-platform :: sbp_~hex:40~ || napi_~low:64~ || pscale_tkn_~url:43~
supabase >> $ supabase login --token §⏎You are now logged in. Happy coding!
curl >> curl -H 'Accept: application/json' -H 'Authorization: Bearer §' https://console.neon.tech/api/v2/projects
pscale >> $ pscale deploy-request list ~proj~ --service-token-id ~low:12~ --service-token §
== jwt :: ~jwt~
devtools >> GET /v1/orders HTTP/2⏎host: api.~org~.com⏎authorization: Bearer §⏎accept: application/json
@supabase.ts >> const admin = createClient(url, '§')  // service role
json response >> {"access_token":"§","token_type":"bearer","expires_in":3600}
== metrics :: ~hex:32~ || ~hex:40~ || NRAK-~upp:27~
@datadog.yaml >> api_key: §⏎site: datadoghq.eu⏎logs_enabled: true
curl >> curl "https://api.datadoghq.eu/api/v1/dashboard" -H "DD-API-KEY: ${DD_API_KEY}" -H "DD-APPLICATION-KEY: §"
newrelic >> $ newrelic profile add --profile prod --region eu --apiKey § --accountId ~d:7~
== observability :: sntrys_eyJpYXQi~b64:120~_~b64:43~ || glsa_~b62:32~_~hex:8~ || ~b62:22~
@.sentryclirc >> [auth]⏎token=§⏎[defaults]⏎org=~org~
curl >> curl -H "Authorization: Bearer §" https://~org~.grafana.net/api/search?query=api
@otel.yaml >> exporters:⏎  otlp:⏎    endpoint: api.honeycomb.io:443⏎    headers:⏎      x-honeycomb-team: §
== office-tool :: lin_api_~b62:40~ || ntn_~d:11~~b62:35~ || figd_~url:40~
curl >> curl -X POST https://api.linear.app/graphql -H "Authorization: §" -d '{"query":"{ viewer { id } }"}'
@sync.mjs >> const notion = new Client({ auth: "§" });
@.cursor/mcp.json >> {"figma":{"command":"npx","args":["-y","figma-developer-mcp","--figma-api-key=§","--stdio"]}}
== atlassian :: ATATT3xFfGF0~url:171~=~HEX:8~ || ATBB~b62:32~ || ATATT3xFfGF0~url:171~=~HEX:8~
curl >> curl -u "bot@~org~.com:§" https://~org~.atlassian.net/rest/api/3/myself
git push >> $ git push https://x-token-auth:§@bitbucket.org/~org~/~proj~.git main⏎Everything up-to-date
@.netrc >> machine ~org~.atlassian.net⏎login bot@~org~.com⏎password §
== vault :: hvs.~url:95~ || dp.st.prd.~b62:43~ || ops_eyJ~b62:200~
vault >> $ vault login §⏎Success! You are now authenticated.
@Dockerfile >> FROM node:22-alpine⏎ENV DOPPLER_TOKEN=§⏎CMD ["doppler", "run", "--", "node", "server.js"]
op >> $ OP_SERVICE_ACCOUNT_TOKEN=§ op item list --vault infra
== network :: tskey-auth-~b62:17~-~b62:32~ || ~b64:43~= || ~b64:43~=
tailscale >> $ sudo tailscale up --authkey § --ssh
@wg0.conf >> [Interface]⏎Address = 10.8.0.2/24⏎PrivateKey = §
wg >> $ wg genkey | tee server.key⏎§
== terraform :: ~b62:14~.atlasv1.~b62:67~ || ~gen:20~ || ~b62:28~
@.terraformrc >> credentials "app.terraform.io" {⏎  token = "§"⏎}
@prod.auto.tfvars >> region      = "eu-west-1"⏎db_password = "§"⏎db_size     = "db.t4g.small"
terraform output >> $ terraform output -json⏎{"admin_key":{"sensitive":true,"type":"string","value":"§"}}
== connection-string :: ~url:20~ || ~b62:16~ || ~gen:16~
@.env >> DATABASE_URL=postgresql://app_rw:§@db.~org~.com:5432/~svc~?sslmode=require
mongosh >> $ mongosh "mongodb+srv://svc:§@cluster0.~low:5~.mongodb.net/~svc~"⏎Current Mongosh Log ID: ~hex:24~
@appsettings.json >> {"ConnectionStrings":{"Main":"Server=tcp:sql.~org~.com,1433;Database=~svc~;User ID=app;Password=§;Encrypt=True;"}}
== k8s-secret :: ~b64pass~ || ~b64pass~ || ~gen:18~
@secret.yaml >> apiVersion: v1⏎kind: Secret⏎metadata:⏎  name: ~svc~-db⏎type: Opaque⏎data:⏎  DB_PASS: §
kubectl get -o json >> {"apiVersion":"v1","data":{"redis-auth":"§"},"kind":"Secret","metadata":{"name":"~svc~"}}
@sealed-input.yaml >> kind: Secret⏎stringData:⏎  smtp-user: mailer⏎  smtp-pass: "§"
== bare-setting :: ~gen:20~ || ~Word~~d:4~~sign~ || ~hex:64~
@docker-compose.yml >> services:⏎  db:⏎    image: postgres:17⏎    environment:⏎      POSTGRES_PASSWORD: '§'⏎      POSTGRES_DB: ~svc~
@application.properties >> spring.datasource.username=app⏎spring.datasource.password=§⏎server.port=8081
@.env >> NODE_ENV=production⏎NEXTAUTH_SECRET=§⏎PORT=3000
== cookie :: ~url:43~ || s%3A~url:32~.~b62:43~ || ~hex:40~
curl >> curl 'https://app.~org~.com/api/me' -b 'theme=dark; session_id=§; lang=en'
http response >> HTTP/1.1 200 OK⏎Set-Cookie: connect.sid=§; Path=/; HttpOnly; SameSite=Lax⏎Content-Length: 2
@cookies.txt >> # Netscape HTTP Cookie File⏎.~org~.com	TRUE	/	TRUE	1799999999	_app_sess	§
== private-key :: ~b64:64~ || ~bech:58~ || ~b64:64~
@id_ed25519 >> -----BEGIN OPENSSH ~key~-----⏎b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW⏎§⏎~b64:38~==⏎-----END OPENSSH ~key~-----
@keys.txt >> # created: ~date~T~clock~Z⏎AGE-SECRET-KEY-1§
@sa.json >> {"type":"service_account","private_key_id":"~hex:40~","private_key":"-----BEGIN ~key~-----\nMIIEvQ~b64:58~\n§\n~b64:20~==\n-----END ~key~-----\n"}
== subcommand :: ~gen:18~ || ~b62:32~ || ~hex:48~
kubectl >> $ kubectl create secret generic ~svc~-auth --from-literal=pass='§' -n prod⏎secret/~svc~-auth created
heroku >> $ heroku config:set MAPS_KEY=§ -a ~proj~⏎Setting MAPS_KEY and restarting ~proj~... done, v~n~
pulumi >> $ pulumi config set --secret signingKey §⏎$ pulumi up --yes
== piped :: ~b62:40~ || ~gen:20~ || ~url:32~
gh secret >> $ printf '%s' '§' | gh secret set DEPLOY_KEY --repo ~org~/~proj~⏎✓ Set Actions secret DEPLOY_KEY for ~org~/~proj~
docker login >> $ echo "§" | docker login cr.~org~.com -u ci --password-stdin⏎Login Succeeded
wrangler >> $ npx wrangler secret put UPSTREAM_AUTH <<< §⏎🌀 Creating the secret for the Worker "~proj~"
"""

_HOSTS = r"""
== database-host :: ~svc~-primary.~org~.internal || ~ip~:5432 || ~svc~-prod.c~low:11~.eu-west-1.rds.amazonaws.com
@.env >> DB_HOST=§⏎DB_PORT=5432⏎DB_NAME=~svc~
connection string >> postgres://~svc~@§/orders?connect_timeout=5
psql >> psql: error: connection to server at "§", port 5432 failed: Connection timed out
== cache-host :: ~ip~:6379 || redis-~n~.~org~.lan || ~ip~
@config.toml >> [cache]⏎url = "redis://§/0"⏎ttl = 300
log >> ~date~ ~clock~ ERROR Error connecting to §:6379. Connection refused.
redis-cli >> $ redis-cli -h § -p 6380 ping⏎PONG
== ssh-host :: bastion~n~.~org~.internal || ~ip~ || ~word~-gpu~n~.~org~.corp
@.ssh/config >> Host jump⏎  HostName §⏎  User deploy⏎  IdentityFile ~/.ssh/id_ed25519
ssh >> $ ssh deploy@§⏎Last login: Wed Feb 11 08:14:02 2026
known hosts >> The authenticity of host '§' can't be established.⏎ED25519 key fingerprint is SHA256:~b64:43~.
== cluster-host :: ~ip~:6443 || k8s-api.~word~.~org~.internal || ip-10-~n~-~n~-~n~.eu-central-1.compute.internal
@kubeconfig >> clusters:⏎- cluster:⏎    server: https://§⏎  name: prod
kubectl >> Unable to connect to the server: dial tcp: lookup §: no such host
kubectl get nodes >> NAME   STATUS   ROLES    AGE   VERSION⏎§   Ready    <none>   41d   v1.33.1
== metrics-host :: ~ip~:9100 || prom-~word~.~org~.lan:9090 || ~word~-db~n~.prod.~org~.net
@prometheus.yml >> scrape_configs:⏎  - job_name: node⏎    static_configs:⏎      - targets: ['§']
curl >> curl -sG http://§/api/v1/query --data-urlencode 'query=up'
alert >> [FIRING:1] DiskFull (instance=§ severity=page)
== broker-host :: kafka-~n~.~word~.~org~.internal:9093 || ~ip~:5672 || mq~n~.~org~.intra
@server.properties >> bootstrap.servers=§⏎security.protocol=SSL
celery >> [~date~ ~clock~,101: ERROR/MainProcess] consumer: Cannot connect to amqp://guest:**@§//: timed out.
nc >> $ nc -vz § 5671⏎Connection to § port 5671 [tcp/amqps] succeeded!
== internal-url :: wiki.~word~.~org~.internal || ~word~-admin.~org~.corp || git.~org~.lan
chat >> the runbook is at https://§/display/OPS/Failover, needs VPN
@nginx.conf >> server {⏎  listen 443 ssl;⏎  server_name §;⏎}
git remote >> origin	ssh://git@§:7999/plat/~proj~.git (fetch)
== address-table :: ~ip~ || ~ip~ || ~word~-nas.~org~.lan
@hosts >> 127.0.0.1 localhost⏎§ ~svc~-master
ip addr >> 2: eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500⏎    inet §/24 brd + scope global eth0
df >> Filesystem           Size  Used Avail Use% Mounted on⏎§:/vol1   7.2T  5.1T  2.1T  71% /mnt/share
"""

_NUMBERS = r"""
== card :: ~card~
sql >> INSERT INTO payments (id, pan, exp) VALUES (~n~, '§', '09/29');
json >> {"event":"charge.attempt","card":{"number":"§","exp_month":9,"exp_year":2029}}
csv >> order_id,card_number,amount⏎~nn~,§,49.90
== card-spaced :: ~cards~ || ~cards~ || ~amex~
chat >> the customer read me the card over the phone, §, it gets declined every time
ticket >> Refund to card § (expires 04/28) was rejected by the acquirer.
log >> ~date~ ~clock~ WARN checkout validation failed for card "§": bad expiry
== iban :: ~iban~
@payout.json >> {"beneficiary":"~org~ BV","iban":"§","currency":"EUR","amount":"1250.00"}
sql >> SELECT * FROM mandates WHERE iban = '§';
xml >> <CdtrAcct><Id><IBAN>§</IBAN></Id></CdtrAcct>
== iban-spaced :: ~ibans~
chat >> please wire the deposit to § and put the invoice number in the reference
@invoice.md >> **Bank details**⏎⏎IBAN: §⏎BIC: ~AZ:8~
mail >> Meine neue Kontoverbindung lautet §, bitte ab März verwenden.
== phone-international :: +49 151 ~d:8~ || +316~d:8~ || +44 7~d:3~ ~d:6~
chat >> call me when the deploy hangs, my mobile is §
twilio >> {"to":"§","from":"ALERTS","body":"disk full","status":"queued"}
@card.vcf >> TEL;TYPE=cell:§⏎EMAIL:ops@~org~.com
== phone-national :: (415) 8~d:2~-~d:4~ || 06 1~d:1~ ~d:2~ ~d:2~ ~d:2~ || 0171 ~d:7~
ticket >> Caller left a voicemail, please ring back at § before noon.
chat >> le client est joignable au § toute la matinée
csv >> kunde_nr,telefon,ort⏎~nn~,§,Kassel
== national-id-a :: ~pesel~ || ~bsn~ || ~dni~
json >> {"patient":{"pesel":"§","sex":"F"},"visit":~nn~}
log >> ~date~ ~clock~ ERROR geen persoon gevonden bij BSN §
csv >> expediente,dni,estado⏎~nn~,§,pendiente
== national-id-b :: ~cpf~ || ~personnummer~ || ~nir~
chat >> o CPF do cliente é §, o cadastro dele está duplicado
sql >> UPDATE members SET active = false WHERE personnummer = '§';
@patient.json >> {"nir":"§","regime":"general","numero_securite_sociale":"§"}
"""

# ---------------------------------------------------------------- what must stay

_DECOYS = r"""
git sha >> commit ~hex:40~⏎⏎    Speed up cold start
short sha >> ~hex:7~ chore: bump dependencies⏎~hex:7~ fix: off-by-one in pager
rebase >> Successfully rebased and updated refs/heads/release-2.
index line >> diff --git a/src/app.ts b/src/app.ts⏎index ~hex:7~..~hex:7~ 100644
submodule >> -~hex:40~ third_party/zlib
uses pin >>       - uses: actions/checkout@~hex:40~ # v5.0.0
tree >> 100644 blob ~hex:40~	README.md
change id >> Change-Id: I~hex:40~
uuid row >> {"id":"~uuid~","type":"invoice_line","quantity":3}
uuid path >> GET /api/v1/orders/~uuid~ 200 14ms
tool use id >> {"type":"tool_result","tool_use_id":"toolu_01~b62:22~","is_error":false}
message id >> {"type":"assistant","message":{"id":"msg_01~b62:22~","role":"assistant"}}
session id >> {"sessionId":"~uuid~","parentUuid":null,"isSidechain":false}
request id >> {"request_id":"req_01~b62:22~","status":529}
trace id >> traceparent: 00-~hex:32~-~hex:16~-01
aws request >> x-amzn-RequestId: ~uuid~
correlation >> level=warn correlation_id=~hex:16~ msg="slow query" ms=~nn~
npm integrity >>       "integrity": "sha512-~b64:86~=="
yarn checksum >>   checksum: 10c0/~hex:128~
pnpm lock >>     resolution: {integrity: sha512-~b64:86~==}
cargo lock >> checksum = "~hex:64~"
go sum >> golang.org/x/sys v0.30.0 h1:~b64:43~=
go mod sum >> github.com/spf13/cobra v1.9.1/go.mod h1:~b64:43~=
pip hash >> idna==3.10 \⏎    --hash=sha256:~hex:64~
uv lock >> sdist = { url = "https://files.pythonhosted.org/packages/idna-3.10.tar.gz", hash = "sha256:~hex:64~", size = 190490 }
gemfile >> CHECKSUMS⏎  rake (13.2.1) sha256=~hex:64~
flake lock >> "narHash": "sha256-~b64:43~=", "rev": "~hex:40~"
terraform lock >>   hashes = [⏎    "h1:~b64:43~=",⏎  ]
sri >> <script src="https://cdn.jsdelivr.net/npm/vue@3.5.13" integrity="sha384-~b64:64~" crossorigin="anonymous"></script>
container digest >> FROM node:22-alpine@sha256:~hex:64~
docker pull >> Digest: sha256:~hex:64~⏎Status: Downloaded newer image for nginx:1.27
docker ps >> CONTAINER ID   IMAGE         COMMAND⏎~hex:12~   redis:7.4     "docker-entrypoint.s…"
layer >> ~hex:12~: Pull complete
md5sum >> ~hex:32~  dist/bundle.js
sha256sum >> ~hex:64~  release.tar.gz
etag >> ETag: W/"~hex:32~"
asset name >> dist/assets/index-~b62:8~.js   142.10 kB │ gzip: 46.03 kB
source map >> //# sourceMappingURL=index.~hex:8~.js.map
cache key >> Cache restored from key: Linux-node-~hex:64~
nix path >> /nix/store/~low:32~-bash-5.2p37/bin/bash
css modules >> .Button_primary__~b62:5~ { color: #1f~hex:4~; }
tailwind >> <div class="flex items-center justify-between px-4 py-2 text-sm/6 hover:bg-zinc-800 md:w-[calc(100%-2rem)]">
styled class >> <span class="sc-~alpha:6~ css-1~low:6~">Save</span>
svg path >> <path d="M12.5 3.2c-1.4 0-2.6.~d:2~-3.5 1.7L3 11.~d:1~V21h6v-6h6v6h6v-9.9z"/>
colour >> --accent: #~hex:6~; --ring: rgb(12 80 ~n~ / 40%);
base64 image >> <img src="data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==">
base64 gif >> background:url(data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7)
minified >> !function(e,t){"object"==typeof exports?module.exports=t():e.app=t()}(this,function(){return n(~n~)});
minified map >> var a=b.c,d=e(~n~),f=d.g&&!h?i(j,k):void 0;export{a as A,f as _};
ssh public key >> ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI~b64:43~ deploy-key
rsa public key >> ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABgQ~b64:180~ ci
key fingerprint >> 256 SHA256:~b64:43~ deploy-key (ED25519)
pem public >> -----BEGIN PUBLIC KEY-----⏎MCowBQYDK2VwAyEA~b64:43~=⏎-----END PUBLIC KEY-----
stripe publishable >> const stripe = loadStripe("pk_test_~b62:24~");
age recipient >> age-encryption recipient: age1~low:58~
wireguard public >> [Peer]⏎PublicKey = ~b64:43~=⏎AllowedIPs = 0.0.0.0/0
cosign >> Verified OK: sha256:~hex:64~
placeholder angle >> export OPENAI_API_KEY=<your-token>
placeholder shell >> curl -H "Authorization: Bearer ${TOKEN}" https://api.example.com/v1/me
placeholder actions >>         password: ${{ secrets.REGISTRY_PASSWORD }}
placeholder caps >> API_KEY=YOUR_API_KEY_HERE
placeholder dots >> ANTHROPIC_API_KEY=sk-ant-...
placeholder stars >> password: ********
placeholder x >> GITHUB_TOKEN=ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
placeholder empty >> DB_PASSWORD=⏎DB_HOST=localhost
placeholder jinja >> password: "{{ vault_db_password }}"
placeholder helm >> value: {{ .Values.auth.token | quote }}
env read py >> token = os.environ["SERVICE_TOKEN"]
env read js >> const apiKey = process.env.MAPS_API_KEY ?? "";
env read go >> key := os.Getenv("SIGNING_KEY")
env read rust >> let token = std::env::var("API_TOKEN").expect("API_TOKEN must be set");
secret ref >> valueFrom:⏎  secretKeyRef:⏎    name: db-credentials⏎    key: password
vault path >> secret_id: projects/demo/secrets/db-password/versions/~n~
op reference >> DB_PASS="op://infra/postgres/password"
tf variable >> variable "db_password" {⏎  type      = string⏎  sensitive = true⏎}
getpass >> password = getpass.getpass("Password: ")
schema >> password: z.string().min(8, "Password must have at least 8 characters"),
type field >> interface Credentials { username: string; password: string; rememberMe?: boolean }
sql column >> ALTER TABLE users ADD COLUMN password_hash text NOT NULL;
html input >> <input type="password" name="password" autocomplete="current-password" required>
i18n >> "login.forgotPassword": "Forgot your password?",
sentence length >> The password must have 8 characters and at least one digit.
sentence reset >> If you forget your password, click the link on the sign-in page.
sentence token >> The token is stored in the keychain and refreshed every hour.
sentence rotate >> We should rotate the API key before the release, and never commit it.
sentence wrong >> It says the password is wrong, so I think the hash changed.
sentence expired >> Your password has expired and must be changed at the next sign-in.
sentence prompt >> sudo: a password is required
sentence pin >> Enter the PIN shown on your device and press Continue.
sentence passphrase >> Enter passphrase (empty for no passphrase):
sentence german >> Das Passwort muss mindestens zwölf Zeichen lang sein.
sentence french >> Le mot de passe est obligatoire et doit être confirmé.
sentence spanish >> La contraseña es incorrecta, inténtalo de nuevo más tarde.
sentence dutch >> Het wachtwoord is verlopen en moet opnieuw worden ingesteld.
sentence japanese >> パスワードは8文字以上で入力してください。
sentence chinese >> 密码不能为空,请重新输入。
sentence korean >> 비밀번호는 여덟 자 이상이어야 합니다.
auth error >> FATAL:  password authentication failed for user "postgres"
http error >> {"error":{"type":"authentication_error","message":"invalid x-api-key"}}
error code >> ERR_PNPM_OUTDATED_LOCKFILE  Cannot install with "frozen-lockfile"
rust error >> error[E0~d:3~]: mismatched types⏎ --> src/main.rs:~n~:9
ts error >> src/index.ts(~n~,7): error TS2~d:3~: Property 'token' does not exist on type 'Session'.
py trace >> Traceback (most recent call last):⏎  File "/app/main.py", line ~n~, in <module>⏎KeyError: 'password'
java trace >> 	at org.springframework.security.web.FilterChainProxy.doFilter(FilterChainProxy.java:~nn~)
node trace >>     at TokenStore.refreshToken (/app/node_modules/@acme/auth/dist/token-store.js:~n~:17)
go panic >> goroutine 1 [running]:⏎main.main()⏎	/app/main.go:~n~ +0x~hex:2~
segfault >> Segmentation fault at address 0x00007f~hex:10~
memory address >> <__main__.Handler object at 0x7f~hex:10~>
log line >> ~date~T~clock~.~nn~Z INFO  worker ~n~ finished job in ~nn~ms
epoch >> {"ts":17~d:8~,"level":"debug","msg":"tick"}
access log >> 127.0.0.1 - - [11/Feb/2026:09:12:44 +0000] "GET /healthz HTTP/1.1" 200 2
localhost url >> Local:   http://localhost:5173/⏎Network: use --host to expose
loopback >> Listening on 127.0.0.1:~d:4~
wildcard >> INFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)
rfc host >> curl https://api.example.com/v2/items?limit=~n~
rfc address >> ping 192.0.2.~n~
local db >> DATABASE_URL=postgres://localhost:5432/app_development
port list >> 0.0.0.0:80->80/tcp, [::]:443->443/tcp
version >> node v22.~n~.1, npm 11.~n~.0, typescript 5.9.2
semver range >> "react-dom": "^19.~n~.0",
user agent >> User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/1~n~.0.0.0 Safari/537.36
npm package >> + @radix-ui/react-dropdown-menu@2.1.~n~
python wheel >> Downloading numpy-2.3.~n~-cp313-cp313-manylinux_2_28_x86_64.whl (16.6 MB)
docker tag >> ghcr.io/open-telemetry/opentelemetry-collector:0.1~n~.0
path >> /usr/lib/python3/dist-packages/keyring/backends/SecretService.py
app path >> /workspace/src/components/PasswordStrengthMeter/PasswordStrengthMeter.tsx
service home >> drwxr-xr-x 2 root root 4096 Feb 11 09:01 secrets⏎-rw-r--r-- 1 www-data www-data 120 Feb 11 09:01 index.php
service id >> uid=33(www-data) gid=33(www-data) groups=33(www-data)
public profile >> C:\Users\Public\Documents\readme.txt
camel case >> const resetPasswordTokenExpiresAt = addHours(now, ~n~);
long identifier >> AbstractAuthenticationTokenProcessingFilterFactoryBean
snake case >> def test_refresh_token_is_revoked_after_password_change(client):
constant >> MAX_FAILED_LOGIN_ATTEMPTS_BEFORE_LOCKOUT = ~n~
branch >> * feature/password-reset-flow⏎  release/2026.~n~⏎  hotfix/token-refresh
fixture words >> assert slugify("Lorem ipsum dolor sit amet") == "lorem-ipsum-dolor-sit-amet"
stripe card >> // use 4242 4242 4242 4242 with any future date and CVC
stripe declined >> cy.get("#card").type("4000000000000002")
bot author >> Merge pull request #~nn~ from dependabot/npm_and_yarn/vite-6.~n~.0
team owner >> /docs/ @acme/docs-team
decorator >> @pytest.mark.parametrize("limit", [1, ~n~, 100])
css at rule >> @media (min-width: ~nn~px) { .grid { gap: 1rem } }
java annotation >> @ConditionalOnProperty(prefix = "auth", name = "enabled", havingValue = "true")
arn role >> arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess
license >> Copyright (c) 2026 The Kubernetes Authors.
isbn >> See ISBN 978-0-13-468599-1, chapter ~n~.
coordinates >> {"lat":52.~d:6~,"lng":4.~d:6~,"zoom":~n~}
numbers >> loss 2.~d:4~  lr 3.00e-04  tokens 1~d:8~  step ~nn~
table >> | tokens in | tokens out | cost |⏎|---:|---:|---:|⏎| ~d:6~ | ~d:4~ | $0.~n~ |
pass verb >> Pass the options object to the constructor, then pass `false` to skip ~n~ checks.
test summary >> Tests  ~nn~ passed | 2 skipped (~nn~)⏎Duration  4.~d:2~s
key binding >> { "key": "ctrl+shift+p", "command": "workbench.action.showCommands" }
primary key >> PRIMARY KEY (tenant_id, order_id), KEY idx_created (created_at)
react key >> {rows.map((row) => <Row key={row.id} token={row.token} />)}
cipher name >> Negotiated TLS_AES_256_GCM_SHA384 with X25519MLKEM768
regex >> const KEY_RE = /^sk-[A-Za-z0-9_-]{20,}$/;
tokenizer >> {"bos_token":"<|begin_of_text|>","eos_token":"<|eot_id|>","pad_token_id":~n~}
"""

_TABLES = {"prose": _PROSE, "name": _NAMES, "key": _KEYS, "host": _HOSTS, "number": _NUMBERS}
_FILLER = re.compile(r"~([A-Za-z]\w*)(?::(\d+))?~")


def _context(rng: Random) -> dict[str, str]:
    """What stays the same within one text: three persons, an organisation, a project, a service."""
    context = {
        "org": rng.choice(_ORGS),
        "proj": rng.choice(_PROJECTS),
        "svc": rng.choice(_PROJECTS).split("-")[0],
    }
    firsts, lasts = rng.sample(_FIRST, 3), rng.sample(_LAST, 3)
    for mark, first, last in zip(("", "2", "3"), firsts, lasts, strict=True):
        one, two = _ascii(first), _ascii(last)
        context["first" + mark], context["last" + mark] = first, last
        context["full" + mark], context["dot" + mark] = f"{first} {last}", f"{one}.{two}"
        context["login" + mark] = rng.choice(
            (one[0] + two, two + one[:2], one + two[0], f"{one}{two[:4]}")
        )
    return context


def _fill(text: str, rng: Random, context: dict[str, str]) -> str:
    def drawn(match: re.Match[str]) -> str:
        name, length = match[1], match[2]
        if length is None:
            return context[name] if name in context else _MAKERS[name](rng)
        if name == "gen":
            return _generated(rng, int(length))
        return _chars(rng, _ALPHABETS[name], int(length))

    return _FILLER.sub(drawn, text.replace("⏎", "\n"))


def _table(family: str, table: str, rng: Random) -> list[Plant]:
    planted: list[Plant] = []
    kind, specs, row = "", [""], 0
    for line in table.strip("\n").split("\n"):
        if line.startswith("== "):
            kind, _, spec = line[3:].partition(" :: ")
            specs, row = spec.split(" || "), 0
            continue
        place, _, text = line.partition(" >> ")
        context = _context(rng)
        value = _fill(specs[row % len(specs)], rng, context)
        filled = _fill(text, rng, context).replace("§", value)
        filename = place[1:] if place.startswith("@") else ""
        planted.append(Plant(kind, family, filename or place, value, filled, filename))
        row += 1
    return planted


def plants(seed: int) -> list[Plant]:
    """Every plant of the set, with the values of the seed."""
    rng = Random(seed)
    return [plant for family, table in _TABLES.items() for plant in _table(family, table, rng)]


def decoys(seed: int) -> list[Decoy]:
    """Every decoy of the set, with the fillers of the seed."""
    rng = Random(seed)
    lines = [line.partition(" >> ") for line in _DECOYS.strip("\n").split("\n")]
    return [Decoy(kind, _fill(text, rng, _context(rng))) for kind, _, text in lines]
