"""The value of a telling key goes as a whole from data, whatever its letters; code keeps its words.

Passwords are made here from a seed and written by each form's own rules (by its library where
there is one), so that no rule of redaction knows what is coming.
"""

import configparser
import io
import json
import random
import shlex
import string
import sys
from collections.abc import Callable, Iterator
from xml.sax.saxutils import escape, quoteattr

import pytest
import yaml

from composer_pipeline.redaction.redact import find_secrets, redact_text, redact_value
from composer_pipeline.redaction.user_rules import RedactionRules

PRINTABLE = "".join(map(chr, range(33, 127)))
WORDS = [
    "otter",
    "lantern",
    "granite",
    "velvet",
    "harbor",
    "cactus",
    "meadow",
    "piston",
    "walnut",
    "ember",
    "tundra",
    "saddle",
    "copper",
    "violin",
    "glacier",
    "mango",
    "bishop",
    "rocket",
    "ladder",
    "falcon",
    "quartz",
    "pepper",
    "anchor",
    "jungle",
    "thimble",
    "orchid",
]


def passwords(seed: int, rounds: int) -> Iterator[str]:
    """Passwords of every kind that people and password managers make."""
    r = random.Random(seed)

    def some(alphabet: str) -> str:
        return "".join(r.choice(alphabet) for _ in range(r.randint(6, 40)))

    for _ in range(rounds):
        for made in (
            some(PRINTABLE),
            some(PRINTABLE),
            some(string.ascii_letters + string.digits + "$&*(){}"),
            some(string.ascii_letters + string.digits + "\"'`;#\\"),
            some(string.ascii_letters + string.digits + "!@#%^-_+=,.<>?:/|~[] ")
            .strip()
            .ljust(6, "x"),
            " ".join(r.sample(WORDS, r.randint(4, 6))),
            "-".join(r.sample(WORDS, r.randint(4, 6))),
            "".join(r.sample(WORDS, 2)),
            some(string.ascii_lowercase),
            some(string.ascii_lowercase + string.digits),
        ):
            # A variable's name, or one letter again and again, is not told from a stand-in.
            if not made[1:].isalnum() or made[0].isalnum():
                yield made


# -- forms ---------------------------------------------------------------------------------------


def dotenv(p: str) -> str:
    plain = not set(p) & set(" #'\"\\$`\n") and p == p.strip()
    shown = p if plain else f"'{p}'" if "'" not in p else _double(p)
    return f"APP_ENV=prod\nDB_HOST=db1\nDB_PASSWORD={shown}\nDB_PORT=5432\n"


def _double(p: str) -> str:
    """In double quotes, as a shell reads them."""
    return '"' + "".join("\\" + c if c in '\\"$`' else c for c in p) + '"'


def _toml(p: str) -> str:
    return '"' + p.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _ini(p: str) -> str:
    parser = configparser.RawConfigParser()
    parser["database"] = {"host": "db1", "password": p, "port": "5432"}
    out = io.StringIO()
    parser.write(out)
    return out.getvalue()


def _properties(p: str, sign: str) -> str:
    shown = "".join("\\" + c if c in "\\:=#!" else c for c in p)
    return f"db.url{sign}jdbc:h2\ndb.user{sign}app\ndb.password{sign}{shown}\ndb.pool{sign}5\n"


def _yaml(p: str, **style: object) -> str:
    value = {"database": {"host": "db1", "password": p, "port": 5432}}
    return str(yaml.safe_dump(value, width=1000, sort_keys=False, **style))  # type: ignore[call-overload]


DATA: dict[str, Callable[[str], str]] = {
    "dotenv": dotenv,
    "dotenv, alone": lambda p: f"DB_PASSWORD={_double(p) if set(p) & set(' #$`') else p}",
    "env file of docker": lambda p: f"DB_HOST=db1\nDB_PASSWORD={p}\nDB_PORT=5432\n",
    "export": lambda p: f"cd /srv\nexport DB_PASSWORD={shlex.quote(p)}\nmake run\n",
    "export in double quotes": lambda p: f"export SMTP_PASSWORD={_double(p)}\n",
    "before a command": lambda p: f"PGPASSWORD={shlex.quote(p)} psql -h db1 -U app -c 'select 1'",
    "after another": lambda p: f"cd /srv && PGPASSWORD={_double(p)} psql -h db1",
    "yaml": _yaml,
    "yaml, single": lambda p: _yaml(p, default_style="'"),
    "yaml, double": lambda p: _yaml(p, default_style='"'),
    "yaml, literal": lambda p: f"db:\n  password: |-\n    {p}\n  port: 5432\n",
    "yaml, folded": lambda p: f"db:\n  password: >\n    {p}\n  port: 5432\n",
    "yaml, flow": lambda p: _yaml(p, default_flow_style=True),
    "json": lambda p: json.dumps({"db": {"user": "app", "password": p, "port": 5432}}, indent=2),
    "json, a part": lambda p: json.dumps({"db": {"password": p, "port": 5432}}, indent=2)[2:-6],
    "json in json": lambda p: "x " + json.dumps(json.dumps({"user": "app", "password": p})),
    "toml": lambda p: f'[db]\nuser = "app"\npassword = {_toml(p)}\nport = 5432\n',
    "toml, literal": lambda p: (
        f"[db]\nuser = 'app'\npassword = {_toml(p) if chr(39) in p else repr_literal(p)}\nport = 1\n"
    ),
    "toml, many lines": lambda p: f'[db]\npassword = """{_toml(p)[1:-1]}"""\nport = 5432\n',
    "ini": _ini,
    "properties": lambda p: _properties(p, "="),
    "properties, colon": lambda p: _properties(p, ": "),
    "compose map": lambda p: yaml.safe_dump(
        {"services": {"db": {"image": "postgres", "environment": {"POSTGRES_PASSWORD": p}}}},
        width=1000,
    ),
    "compose list": lambda p: yaml.safe_dump(
        {"services": {"db": {"environment": ["TZ=UTC", f"POSTGRES_PASSWORD={p}"]}}}, width=1000
    ),
    "dockerfile": lambda p: f"FROM alpine\nENV DB_PASSWORD={_double(p)}\nRUN make\n",
    "dockerfile, arg": lambda p: f"FROM alpine\nARG DB_PASSWORD={shlex.quote(p)}\nRUN make\n",
    "systemd": lambda p: f'[Service]\nEnvironment="DB_PASSWORD={_toml(p)[1:-1]}"\nRestart=always\n',
    "kubernetes": lambda p: yaml.safe_dump(
        {"apiVersion": "v1", "kind": "Secret", "stringData": {"password": p}}, width=1000
    ),
    "xml element": lambda p: f"<server>\n  <id>a</id>\n  <password>{escape(p)}</password>\n</server>",
    "xml attribute": lambda p: f'<datasource user="app" password={quoteattr(p)} pool="5"/>',
    "tfvars": lambda p: f'db_user = "app"\ndb_password = {_toml(p)}\nregion = "eu-west-1"\n',
    "powershell": lambda p: "$env:DB_PASSWORD = '" + p.replace("'", "''") + "'\n.\\run.ps1\n",
    "windows": lambda p: f"@echo off\nset DB_PASSWORD={p}\nrun.bat\n",
    "windows, quoted": lambda p: f'@echo off\nset "DB_PASSWORD={p}"\nrun.bat\n',
    "option with =": lambda p: f"mytool login --user bob --password={shlex.quote(p)} --host db1",
    "option": lambda p: f"mytool login --user bob --password {shlex.quote(p)} --host db1",
    "option of mysql": lambda p: f"mysql -u root -p{shlex.quote(p)} shop",
    "option of docker": lambda p: f"docker run -d -e DB_PASSWORD={shlex.quote(p)} acme/app",
}  # fmt: skip


def repr_literal(p: str) -> str:
    """In single quotes, without escapes."""
    return f"'{p}'"


def _numbered(text: str) -> str:
    return "\n".join(f"{n:>6}→{line}" for n, line in enumerate(text.split("\n"), 11))


WAYS: dict[str, Callable[[str], str]] = {
    "as it is": lambda text: text,
    "numbered": _numbered,
    "diff": lambda text: "@@ -1,4 +1,5 @@\n" + "\n".join(f"+{line}" for line in text.split("\n")),
    "heredoc": lambda text: f"cat > file <<'EOF'\n{text}\nEOF\nls -l",
    "json string": lambda text: json.dumps({"file": "a", "content": text}),
    "cut off json": lambda text: json.dumps({"file": "a", "content": text + "\nx"})[:-1] + ", ...",
}


def left(redacted: str, password: str) -> str:
    """Six consecutive characters of a password that can still be read."""
    bare = redacted.replace("\\", "")
    parts = (password[at : at + 6] for at in range(len(password) - 5))
    return next((part for part in parts if part in redacted or part in bare), "")


@pytest.mark.parametrize("form", DATA)
def test_nothing_of_a_password_is_left_in_data(form: str) -> None:
    for password in passwords(1, 30):
        text = DATA[form](password)
        redacted = redact_text(text)[0]
        assert not left(redacted, password), (password, text, redacted)
        assert redact_text(redacted) == (redacted, {})


@pytest.mark.parametrize("way", WAYS)
def test_data_is_read_wherever_it_is_shown(way: str) -> None:
    for number, password in enumerate(passwords(2, 40)):
        form = list(DATA)[number % len(DATA)]
        if way == "cut off json" and form.startswith("option of"):
            continue  # the grammar of the shell reads no escaped quotes
        text = WAYS[way](DATA[form](password))
        redacted = redact_text(text)[0]
        assert not left(redacted, password), (form, password, text, redacted)
        assert find_secrets(redacted) == [], (form, redacted)


CODE: dict[str, Callable[[str], str]] = {
    "python": lambda p: f"import db\n\npassword = {p!r}\ndb.connect(password=password)\n",
    "python, keyword": lambda p: f'conn = db.connect(host="db1", password={p!r}, port=5432)\n',
    "javascript": lambda p: f"const password = {json.dumps(p)};\nawait db.connect(password);\n",
    "javascript, object": lambda p: (
        f"const c = {{\n  user: 'app',\n  password: {json.dumps(p)},\n}};"
    ),
    "go": lambda p: (
        f'func main() {{\n\tdbPassword := {json.dumps(p)}\n\tdb.Open("app", dbPassword)\n}}'
    ),
    "java": lambda p: f"class A {{\n  private String password = {json.dumps(p)};\n}}",
}


@pytest.mark.parametrize("form", CODE)
def test_hardly_a_password_is_left_in_code(form: str) -> None:
    mixed = [p for p in passwords(3, 60) if not (p.isalnum() and (p.isalpha() or p.islower()))]
    kept = [p for p in mixed if left(redact_text(CODE[form](p))[0], p)]
    assert len(kept) <= 0.02 * len(mixed), kept


#: Lines of code, of manuals and of logs, stand-ins and references: none is a secret.
KEPT = [
    # code
    "password = get_password()", "password = getpass.getpass()", "token: str", "password: str | None = None",
    "export interface User {\n  name: string;\n  password: string;\n}", "const token = await x",
    "  password: hashedPassword,", "const user = {\n  email: data.email,\n  password: hashedPassword\n}",
    "passwordField = \"password-input\"", "  password: z.string().min(8),", "password: Yup.string().required(\"Password is required\"),",
    "def login(user: str, password: str) -> bool:", "def login(\n    user: str,\n    password: str,\n    salt: bytes = b\"\",\n):",
    "self.password = password", "this.password = await bcrypt.hash(this.password, 12)", "if password == other_password:",
    "password = request.form[\"password\"]", "password = os.environ[\"PW\"]", "password=os.getenv(\"DB_PASSWORD\"),",
    "String password = config.getString(\"db.password\");", "password := os.Getenv(\"DB_PASSWORD\")", "dbPassword := cfg.Password",
    "password: values.password", "password: &cfg.password", "let password = prompt(\"Password?\")", "password = input(\"Your password: \")",
    "newErrors.password = 'Password must be at least 6 characters';", "errors.password = \"Must be 8 or more\"",
    "const PASSWORD = \"password\"", "input type=\"password\" name=\"password\"", "<label for=\"password\">Password</label>",
    "<Trans password=\"Enter your password\" />", ".password { color: red; }", "password: { type: String, required: true },",
    "type Query { password: String! }", "  string password = 2;", "password: Type.String(),", "assert user.password != \"\"",
    "password: 'required|min:8|confirmed',", "TOKEN_ENDS: Final[set[str]]", "password: Optional[HiddenText] = None",
    "client.login(username=\"bob\", password=\"password123\")", "\"password\": \"password123\",", "password=\"wrong-password\"",
    "data = {\"username\": \"bob\", \"password\": \"test\"}", "$password = $_POST['password'];", "params.require(:user).permit(:password)",
    "password: BCrypt::Password.create(pw)", "private static final String TOKEN = \"authorization_code\";", "token = tokens[0]",
    "val password = System.getenv(\"ARTIFACTORY_PWD\")", "password ||= ENV.fetch(\"DB_PASSWORD\")", "f\"password={password}\"",
    "`password=${password}`", "\"password=\" + password", "if (!password) throw new Error(\"password: missing\");",
    "CONFIRM_PASSWORD: \"confirmPassword\",", "visit_Pass = visit_children", "password_hasher: PasswordHasher = Argon2Hasher()",
    "f(host=host, port=port,\n  password=password)", "connect(\n    user=user,\n    password=password,\n)",
    # words of an interface
    "{\"password\": \"Passwort\"}", "{\"password\": \"Mot de passe\"}", "{\"password\": \"Contraseña\"}", "{\"password\": \"Пароль\"}",
    "{\n  \"login\": \"Log in\",\n  \"password\": \"Password\",\n  \"token\": \"Access token\"\n}", "password=Passwort\npasswordConfirm=Passwort bestätigen",
    "{\"password\": \"Choose at least eight characters\"}", "{\"password\": \"The one you were given\"}", "password: Enter your password",
    # schemas
    "properties:\n  password:\n    type: string\n    format: password", "password: string", "password: required",
    "{\"properties\": {\"password\": {\"type\": \"string\"}}}", "{\"password\": \"string\"}", "password: varchar(255)",
    # stand-ins and references
    "DB_PASSWORD=", "DB_PASSWORD=changeme", "DB_PASSWORD=<your-password>", "DB_PASSWORD=${DB_PASSWORD}", "DB_PASSWORD=$PASSWORD",
    "DB_PASSWORD=\"${DB_PASSWORD:-postgres}\"", "DB_PASSWORD=$(pass show db)", "DB_PASSWORD=`cat /run/secrets/db`", "POSTGRES_PASSWORD=postgres",
    "DB_PASSWORD=vault:secret/data/db#password", "password: \"{{ vault_db_password }}\"", "password: ${{ secrets.DB_PASSWORD }}",
    "password: !vault |", "password: null", "password: true", "DB_PASSWORD_FILE=/run/secrets/db", "DB_PASSWORD=/run/secrets/db_password",
    "password = var.db_password", "\"password\": \"\",", "\"password\": null,", "export PGPASSWORD=\"$DB_PASS\"", "set DB_PASSWORD=%PASSWORD%",
    "$env:DB_PASSWORD = $secret", "password: xxxxxxxx", "password: ********", "password=[REDACTED]", "password: {password}",
    # manuals, logs, options
    "| password | string | The password of the user |", "| `DB_PASSWORD` | required | - |", "- `password`: what the user typed",
    "    password: The password to log in with.\n    token: The token of the session.", "--- PASS: TestLogin (0.02s)",
    "    --- PASS: TestLogin/empty_password (0.00s)", "Use --password to give a password.", "--password PASSWORD  the password",
    "tool --password <password> --user <user>", "mysql -u root -p shop", "pass --password-stdin instead", "--password \"$DB_PASSWORD\"",
    "ERROR: password: incorrect", "Password: accepted", "login failed: password: invalid", "[sudo] password for bob:",
    "the password is stored in the vault", "All tests pass: nothing failed", "First pass: separate prompts from answers",
    "usage: tool [--password PASSWORD] [--user USER]", "parser.add_argument(\"--password\", help=\"password of the user\")",
]  # fmt: skip


@pytest.mark.parametrize("text", KEPT)
def test_code_labels_and_references_are_kept(text: str) -> None:
    for shown in (
        text,
        f"{text}\n",
        _numbered(text),
        f"see:\n{text}\nand so on",
        json.dumps({"a": text}),
    ):
        assert redact_text(shown) == (shown, {})


def test_many_lines_are_kept() -> None:
    assert len(KEPT) >= 80


@pytest.mark.parametrize(
    "password", [*passwords(4, 3), "Passwort", "string", "${PW}", "The one you were given"]
)
def test_a_value_gets_the_same_verdict_as_its_json(password: str) -> None:
    value = {"db": {"password": password}}
    replaced = redact_value(value)[0]
    assert json.loads(redact_text(json.dumps(value))[0]) == replaced
    source = f"config: {json.dumps(value)} done"
    assert (redact_text(source)[0] == source) == (replaced == value)


def test_without_hyperscan_the_same_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [DATA[form](password) for form in DATA for password in list(passwords(5, 1))]
    expected = [redact_text(text) for text in [*texts, *KEPT]]
    monkeypatch.setitem(sys.modules, "hyperscan", None)
    rules = RedactionRules(allow=("no such value!",))
    assert [redact_text(text, rules=rules) for text in [*texts, *KEPT]] == expected
