"""Secrets that a command line gives away: options, arguments, what is piped in.

A command is read wherever its program stands: in a tool's input, a code block, a log, after
``sudo`` or ``docker exec``, and as a list of strings (``["mysql", "-psecret"]``). The grammar
(tree-sitter-bash) splits it into words, so that quotes, line continuations and pipes are seen
as the shell sees them.
"""

import re
import string
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from composer_pipeline.redaction.contexts import NO_WORD, is_likely
from composer_pipeline.redaction.finders import Finder, cookie_values
from composer_pipeline.redaction.patterns import ESCAPED
from composer_pipeline.redaction.secrets import Finding, is_given_secret


@dataclass(frozen=True, slots=True)
class Program:
    """Programs that take a secret in the same place."""

    name: str  # id of the row among the rules
    programs: str  # names without their folder, separated by spaces
    options: str = ""  # options that take a secret, separated by spaces
    words: str = ""  # words that must come before, such as a subcommand, separated by `|`
    part: str = "all"  # `user:`, `name=`, `secret=`, `cookie`, `user%`, `user/` or `password=`
    argument: int = 0  # number of the argument, from 1 after `words`, that is a secret


PROGRAMS: tuple[Program, ...] = (
    # programs that share an option or a word
    Program("password", "mongo mongosh mongodump mongorestore mongoexport mongoimport mongostat mongotop couchbase-cli cbq cbbackupmgr cbimport cbexport cypher-shell neo4j-shell rabbitmqadmin useradd usermod trino presto beeline hive conan jfrog jf openconnect openfortivpn vpnc elasticdump elasticsearch-reset-password elasticsearch-users elasticsearch-keystore evil-winrm winrs crackmapexec netexec nxc impacket-psexec cryptsetup veracrypt jira acli confluence-cli supabase firebase expo eas hydra medusa ncrack sshpass altool notarytool xcrun caddy mcrcon rcon-cli", "-p? -p: --password --passwd --db-password --access-token --apikey --token --searchPassword --plaintext"),
    Program("long_option", "clickhouse-client clickhouse clickhouse-local chc helm xcrun altool notarytool argocd flux rancher restic borg kopia duplicacy snowsql snow step certbot acme.sh lego databricks dbt huggingface-cli hf kubectl oc kubecolor gpg gpg2 gpgsm duplicity stripe twilio ngrok cloudflared slack slackcat telegram-send discord.sh grafana-cli grafana promtool logcli op bw lpass keepassxc-cli", "--password --docker-password --adminPassword --admin-password --current-password --new-password --repo-password --provisioner-password --passphrase --private-key-passphrase --token --auth-token --bearer-token --api-key --authtoken --eab-hmac-key --webhook-url --pw --session"),
    Program("capital_option", "sqlcmd bcp mssql-cli osql isql zip unzip zipcloak mosquitto_pub mosquitto_sub mqttx svn hg bzr p4", "-P? --password --pw"),
    Program("user_option", "skopeo podman buildah ctr crictl curl curlie etcdctl", "-u? --user -U? --proxy-user --creds --src-creds --dest-creds", part="user:"),
    Program("auth_option", "jenkins-cli java splunk", "-auth --auth", part="user:"),
    Program("single_dash", "isql-fb gbak gfix fbsql plink pscp psftp manage-bde putty pageant vncpasswd x11vnc vncviewer", "-pas -pass -password -passwd -pw --password -RecoveryPassword -rp"),
    Program("short_token", "sentry-cli snyk codecov coveralls newrelic datadog-ci heroku fly flyctl railway render vercel netlify wrangler", "-t? --token --auth --auth-token --access-token --api-token --api-key --apiKey"),
    Program("token_or_password", "doctl hcloud linode-cli scw vultr-cli civo ibmcloud oci twine poetry flit hatch uv pdm", "--access-token -t? --token --apikey --api-key -p? --password"),
    Program("word", "redis-cli valkey-cli keydb-cli neo4j-admin rclone cargo gem nuget ngrok snyk wandb comet neptune grafana-cli grafana", words="AUTH|auth|requirepass|masterauth|set-initial-password|obscure|login|setapikey|authtoken|add-authtoken|add-api-key|reset-admin-password", argument=1),
    Program("login_option", "docker podman nerdctl buildah skopeo oras crane regctl cosign helm ctr az", "-p? --password", words="login"),
    Program("value_option", "aws az", "--value", words="put-parameter|secret"),
    Program("last_word", "composer bw bip38", words="decrypt|http-basic|bearer|github-oauth|gitlab-token|login|unlock", argument=-1),
    Program("second_word", "rabbitmqctl consul etcdctl poetry", words="add_user|change_password|authenticate_user|put|http-basic", argument=2),
    # databases
    Program("mysql", "mysql mysqldump mysqladmin mysqlimport mysqlshow mysqlcheck mysqlslap mysqlbinlog mysqlsh mariadb mariadb-dump mariadb-admin mycli", "-p* --password --password1"),
    Program("redis", "redis-cli valkey-cli keydb-cli redis-benchmark", "-a? --pass --password"),
    Program("sqlplus", "sqlplus sqlldr rman expdp impdp", argument=1, part="user/"),
    Program("cqlsh", "cqlsh nodetool dse cassandra-stress", "-p? -pw --password"),
    Program("influx", "influx influxd", "-password -p? --password -t --token --admin-token"),
    Program("ldap", "ldapsearch ldapadd ldapmodify ldapdelete ldappasswd ldapwhoami ldapcompare ldapmodrdn", "-w? -s? -a"),
    Program("liquibase", "liquibase flyway", "--password -password -Dpassword"),
    Program("mosquitto_passwd", "mosquitto_passwd", "-b", argument=3),
    Program("kafka", "kcat kafkacat", "-Xsasl.password= sasl.password= ssl.key.password="),
    # container registries
    Program("docker_env", "docker podman nerdctl docker-compose", "-e? --env --build-arg --secret", part="name="),
    # HTTP clients
    Program("curl_cookie", "curl curlie", "-b? --cookie", part="cookie"),
    Program("curl_secret", "curl curlie", "--oauth2-bearer --pass --proxy-pass --key-passwd --tlspassword --login-options"),
    Program("wget", "wget wget2 aria2c axel lftp", "--password --http-password --http-passwd --ftp-password --ftp-passwd --proxy-password --proxy-passwd"),
    Program("httpie", "http https xh xhs", "-a? --auth", part="user:"),
    Program("lftp", "lftp ftp ncftpget ncftpput sftp", "-u? -p?", part="user,"),
    # SSH helpers and remote access
    Program("smbclient", "smbclient rpcclient smbget smbmap net smbpasswd", "-U? --user --password", part="user%"),
    Program("mount", "mount mount.cifs mount.davfs sshfs", "-o?", part="password="),
    Program("xfreerdp", "xfreerdp xfreerdp3 wlfreerdp rdesktop", "/p: -p?"),
    Program("ssh_keygen", "ssh-keygen", "-N -P"),
    Program("rclone", "rclone", "--sftp-pass --ftp-pass --webdav-pass --s3-secret-access-key --b2-key --smb-pass --password"),
    # archives, certificates, encryption
    Program("seven_zip", "7z 7za 7zr 7zz rar unrar", "-p* -hp*"),
    Program("openssl", "openssl", "-hmac -passin=pass: -passout=pass: -pass=pass: -passin -passout -pass -k? -K -password=pass: -passwd"),
    Program("keytool", "keytool jarsigner apksigner", "-storepass -keypass -srcstorepass -deststorepass -srckeypass -destkeypass -new --ks-pass=pass: --key-pass=pass: --ks-pass --key-pass"),
    Program("signtool", "signtool osslsigncode", "/p -pass -p"),
    Program("certutil", "certutil pk12util certreq", "-p -w? -W? -K?"),
    # clouds
    Program("minio", "mc mcli", words="set|add", argument=4),
    Program("pulumi_config", "pulumi", words="--secret", argument=2),
    Program("doppler", "doppler infisical", words="set", part="secret=", options="*"),
    Program("onepassword", "op", words="create|edit", part="name=", options="*"),
    Program("aws_configure", "aws", words="aws_secret_access_key|aws_session_token|aws_access_key_id", argument=1),
    Program("aws", "aws", "--master-user-password --secret-string --password --auth-token --secret-access-key --session-token --token-value --temporary-password"),
    Program("az", "az", "--account-key --sas-token --admin-password --connection-string --password --client-secret --docker-registry-server-password --primary-key"),
    Program("az_settings", "az", "--settings --secure-environment-variables --environment-variables", part="name="),
    Program("gcloud", "gcloud bq gsutil", "--password --root-password --account-token --access-token --client-secret --update-env-vars --set-env-vars", part="name="),
    Program("openstack", "openstack nova cinder swift glance", "--os-password --os-token --password -K?"),
    Program("heroku_config", "heroku fly flyctl railway", words="config:set|secrets|variables", part="name=", options="*"),
    Program("terraform", "terraform tofu terragrunt packer", "-var? --var", part="name="),
    Program("vault_login", "vault bao", words="login|unseal", argument=1),
    Program("vault", "vault bao consul nomad boundary", "-token --token -secret_id --http-addr-token"),
    Program("vault_kv", "vault bao", words="put|write|patch", part="name=", options="*"),
    # clusters
    Program("kubectl_secret", "kubectl oc k3s microk8s kubecolor", "--from-literal", words="secret", part="secret="),
    Program("helm_set", "helm helmfile", "--set --set-string --set-literal", part="name="),
    # forges and packages
    Program("gh_secret", "gh glab", "-b? --body --value -v?", words="secret|variable"),
    Program("glab", "glab gitlab-runner gitlab tea", "-t? --token --registration-token -r? --private-token"),
    Program("npm_config", "npm yarn pnpm", words="set", part="token=", options="*"),
    Program("poetry_token", "poetry", words="config", argument=2),
    Program("cargo_token", "cargo gem", "--token --key"),
    Program("nuget", "nuget dotnet choco", "-ApiKey -Password -k? --api-key -p? --password"),
    Program("maven", "mvn gradle gradlew java sbt ant sonar-scanner", "-Dsonar.login= -Dsonar.token= -Dsonar.password= -Dpassword= -DrepoPassword= -Djavax.net.ssl.keyStorePassword= -Djavax.net.ssl.trustStorePassword= -Dgpg.passphrase= -Pgpg.passphrase= -PmavenPassword= -Psigning.password= -Dspring.datasource.password= -Dhttp.proxyPassword= -Dhttps.proxyPassword="),
    # services
    Program("tailscale", "tailscale headscale netbird zerotier-cli", "--authkey --auth-key --setup-key -k"),
    Program("openai", "openai llm anthropic claude", "-k? --api-key"),
    Program("sendemail", "sendemail swaks mutt msmtp s-nail mailx", "-xp -ap --auth-password --passwordeval"),
    Program("dvc", "dvc", words="modify", argument=3),
    # users of machines and services
    Program("htpasswd", "htpasswd add-user.sh", "-b -cb -bc -nb -nbB -bB -bcB -cbB -Bbn -bn -nbm -bnB -mb", argument=-1),
    Program("cmdkey", "cmdkey schtasks slmgr slmgr.vbs", "/pass: /rp /ipk -ipk"),
    Program("security", "security", "-w? -p? -P?", words="add-generic-password|add-internet-password|unlock-keychain|import"),
    Program("partition", "security", "-k?", words="set-key-partition-list"),
    Program("radtest", "radtest", argument=5),
    Program("nmcli", "nmcli", words="password|wifi-sec.psk|802-11-wireless-security.psk", argument=1),
    Program("wpa", "wpa_passphrase", argument=2),
    Program("ansible", "ansible ansible-playbook", "-e? --extra-vars", part="name="),
    Program("git_config", "git", words="user.password|http.extraheader|github.token|sendemail.smtppass", argument=1),
    Program("ipmitool", "ipmitool racadm redfishtool", "-P? -p?"),
    Program("snmp", "snmpwalk snmpget snmpset snmpbulkwalk", "-c? -A? -X?"),
)  # fmt: skip


_MOST = 3000
_QUOTES = "\"'`"
# After one of these a program's name is a part of something else.
_IN_NAME = frozenset(f"{string.ascii_letters}{string.digits}_.=@-")
_BEFORE = r"(?:[\"']|\s)"
_NO_NAME = "[^A-Za-z0-9_.=@-]"


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command: its text without outer quotes, and where that stands."""

    text: str
    start: int

    @property
    def end(self) -> int:
        """Return where it ends."""
        return self.start + len(self.text)


@cache
def _parser() -> Any:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


class ProgramRule:
    """A row of the table, ready to run."""

    def __init__(self, row: Program) -> None:
        self.row = row
        names = "|".join(map(re.escape, sorted(row.programs.split(), key=len, reverse=True)))
        self._program = re.compile(rf"(?:{names})(?=[\s\"']|$)")
        self._words = frozenset(row.words.split("|")) if row.words else frozenset()
        self._options = row.options.split()
        self.literals = tuple(sorted({name.lower() for name in row.programs.split()}))
        self.gate = rf"(?:{_NO_NAME}|{ESCAPED})(?:{names})\b" + self._needed()

    def _needed(self) -> str:
        """Return what follows the program, for the gate."""
        if self._words:
            return rf".*{_BEFORE}(?:{'|'.join(map(re.escape, sorted(self._words)))})[\s\"'\\.]"
        plain = [option.rstrip("?*") for option in self._options if option != "*"]
        bundled = "|-[a-z]{1,4}u" if self.row.part == "user:" and "-u?" in self._options else ""
        if plain and not self.row.argument:
            return rf".*{_BEFORE}(?:{'|'.join(map(re.escape, plain))}{bundled})"
        return ""

    def __call__(self, text: str) -> Iterator[Finding]:
        """Yield the secrets of the row in ``text``."""
        for match in self._program.finditer(text):
            begin = _begin(text, match.start())
            if begin < 0:
                continue
            segment, at = _segment(text, begin, match.end())
            if self._words and not any(word in segment for word in self._words):
                continue
            words = _listed(text, match.end()) or _words(segment, at)
            yield from self._secrets(words)

    def _secrets(self, words: list[Word]) -> Iterator[Finding]:
        words = words[1:]
        after = words
        if self._words:
            # A setting's key continues after a dot: `http-basic.example.org`.
            at = next(
                (n for n, word in enumerate(words) if word.text.split(".")[0] in self._words), -1
            )
            if at < 0:
                at = next((n for n, word in enumerate(words) if word.text in self._words), -1)
            if at < 0:
                return
            after = words[at + 1 :]
        if self.row.argument:
            plain = [word for word in after if not word.text.startswith("-")]
            number = self.row.argument - (self.row.argument > 0)
            if -len(plain) <= number < len(plain):
                yield from self._part(plain[number])
            return
        for number, word in enumerate(words):
            following = words[number + 1] if number + 1 < len(words) else None
            for option in self._options:
                if value := _value(option, word, following):
                    yield from self._part(value)
                    break

    def _part(self, word: Word) -> Iterator[Finding]:
        """Yield the parts of a value that are secret."""
        if self.row.part == "cookie":
            yield from cookie_values(word.text, word.start)
            return
        for piece in _pieces(word) if self.row.part in ("name=", "secret=") else [word]:
            secret = self._secret(piece)
            if secret is not None and _is_value(secret.text):
                yield Finding(secret.start, secret.end, "COMMAND")

    def _secret(self, word: Word) -> Word | None:
        """Return the part of a word that is a secret by the row, without quotes."""
        text, start, part = word.text, word.start, self.row.part
        if part == "password=":
            match = re.search(r"(?:^|,)(?:password|pass)=([^,]+)", text)
            if match is None:
                return None
            text, start = match[1], start + match.start(1)
        elif part in ("name=", "secret="):
            name, sign, value = text.partition("=")
            telling = part == "secret=" or _TELLING.search(name) or is_likely(value)
            telling = telling or (self.row.name == "vault_kv" and is_likely(value, "password"))
            if not sign or not telling or name.startswith("-"):
                return None
            text, start = value, start + len(name) + 1
        elif part != "all":
            user, sign, value = text.partition(part[-1])
            # A token may stand for the password of nobody.
            if not sign or not (user or is_likely(value, "password") or len(value) > 14):
                return None
            value = value.partition("@")[0] if part == "user/" else value
            text, start = value, start + len(user) + 1
        if text[:1] in _QUOTES and text[-1:] == text[:1] and len(text) > 1:
            text, start = text[1:-1], start + 1
        return Word(text, start)


_TELLING = re.compile(
    r"(?i)pass|pwd|secret|token|(?<!signing)key(?!cloak|board|space|name|_?id$|vault)|credential|auth(?!or)"
    r"|salt|dsn|conn|encrypt_s"
)
# A comma before a further pair of a name and a value.
_SEVERAL = re.compile(r",(?=[A-Za-z_][\w.\[\]-]*=)")


def _pieces(word: Word) -> Iterator[Word]:
    """Yield the pairs of ``a=1,b=2``."""
    starts = [0, *(match.end() for match in _SEVERAL.finditer(word.text))]
    for begin, end in pairwise([*starts, len(word.text) + 1]):
        yield Word(word.text[begin : end - 1], word.start + begin)


_NO_VALUE = re.compile(r"--?[A-Za-z][\w-]*(?:=.*)?|@[\w./-]+|(?:env|file|fd):[\w./-]+")


def _is_value(text: str) -> bool:
    """Return True for a secret itself, not another option or the place of one."""
    return is_given_secret(text, 4) and not _NO_VALUE.fullmatch(text)


def _value(option: str, word: Word, following: Word | None) -> Word | None:
    """Return the value that an option of the table has here; ``None`` if it is absent."""
    if option == "*":
        return None if word.text.startswith("-") else word
    glued = option.endswith(("?", "*"))
    name = option.rstrip("?*")
    if word.text == name and name[-1] not in "=:":
        return None if option.endswith("*") else following
    if name in ("-u", "-U") and re.fullmatch(rf"-[A-Za-z]{{1,4}}{name[1]}", word.text):
        return following
    if not word.text.startswith(name):
        return None
    rest = word.text[len(name) :]
    if name[-1] in "=:":
        return Word(rest, word.end - len(rest))
    if rest.startswith("="):
        return Word(rest[1:], word.end - len(rest) + 1)
    single = glued and not name.startswith("--") and len(name) <= 3
    return Word(rest, word.end - len(rest)) if single and rest else None


def _begin(text: str, at: int) -> int:
    """Return where the program at ``at`` begins, with its folder; -1 if it is part of a word."""
    if text[at - 1 : at] != "/":
        return -1 if text[at - 1 : at] in _IN_NAME else at
    begin = at
    while begin and (text[begin - 1].isalnum() or text[begin - 1] in "_.~/-"):
        begin -= 1
    while text[begin - 1 : begin] in _IN_NAME:
        begin += 1
    return begin


def _segment(text: str, start: int, end: int) -> tuple[str, int]:
    """Return the part of a text that the command at ``start`` fills, and where it begins."""
    stop = min(len(text), start + _MOST)
    before = text[start - 1 : start]
    if before in tuple(_QUOTES):  # a command in quotes ends with them
        closed = text.find(before, end)
        stop = min(stop, closed) if closed >= 0 else stop
    segment = text[start:stop].partition("\0")[0]  # a NUL parts the strings of a value
    ends = [match.start() for match in _NEWLINE.finditer(segment)]
    for at in (*ends, len(segment)):
        line = segment[:at]
        open_quote = line.count("'") % 2 or line.replace('\\"', "").count('"') % 2
        ending = _CLOSING.search(line) if open_quote else None
        if ending is not None:
            return line[: ending.start()], start
        if not (line.endswith("\\") or "<<" in line or open_quote):
            return line, start
    return segment, start


_NEWLINE = re.compile("\n")
#: The end of a JSON string that a command stands in, and of the values around it.
_CLOSING = re.compile(r"(?:\\*\"[\]})]+)+,?[ \t]*$")


_STRING = re.compile(r"[\"']\s*,\s*([\"'])((?:(?!\1)[^\\\n])*)(?=\1)")


def _listed(text: str, at: int) -> list[Word]:
    """Return the words of a command that is a list of strings, the program first."""
    if text[at : at + 1] not in ("'", '"'):
        return []
    words = [Word("", at)]
    match = _STRING.match(text, at)
    while match is not None and len(words) < 60:
        words.append(Word(match[2], match.start(2)))
        match = _STRING.match(text, match.end())
    return words if len(words) > 1 else []


def _words(segment: str, at: int) -> list[Word]:
    """Return the words of the first command of a line, the program first."""
    source = segment.encode("utf-8", "surrogatepass")
    plain = len(source) == len(segment)
    node = _first_command(_parser().parse(source).root_node)
    if node is None:
        return []
    words = []
    for child in node.children:
        if child.type in ("variable_assignment", "file_redirect", "comment"):
            continue
        start, end = child.start_byte, child.end_byte
        if not plain:
            start = len(source[:start].decode("utf-8", "surrogatepass"))
            end = len(source[:end].decode("utf-8", "surrogatepass"))
        word = segment[start:end]
        if child.type in ("string", "raw_string") and len(word) > 1:
            word, start = word[1:-1], start + 1
        words.append(Word(word, at + start))
    return words


def _first_command(node: Any) -> Any:
    if node.type == "command":
        return node
    for child in node.children:
        if (found := _first_command(child)) is not None:
            return found
    return None


_NOUN = "(?:secrets?|config|env|vars?|variables?|kv|param(?:eter)?s?|tokens?|(?:api-?)?keys?|auth|creds?|credentials?|passwords?|passwd|settings?)"
_VERB = "(?:set|put|add|create|insert|push|update|write|import|init|store|save|replace|new|edit|modify|login|unlock)"
_GAP = r"(?:(?:[ \t]|\\\r?\n)+|\\*[\"'],\s{0,3}\\*[\"'])"
_SETS = rf"{_NOUN}(?:[-:]|{_GAP}){_VERB}|{_VERB}(?:[-:_]|{_GAP}){_NOUN}|login|config|(?:add-)?authtoken|auth|encrypt_string|store-secret"
_SETTING = re.compile(rf"(?<![A-Za-z0-9])(?:{_SETS})(?={_GAP})")
_ARGUMENT = re.compile(rf"{_GAP}(?P<name>--?[\w-]+=|\\*[\"']?[A-Za-z_][\w.:/@-]*=)?(?P<q>\\*[\"'])?(?P<value>(?(q)[^\s\"'\\]+|[^\s\"'`\\|;&<>()]+))(?:\\*[\"'](?!,))?")  # fmt: skip


def find_settings(text: str) -> Iterator[Finding]:
    """Yield values after words of a command that set a secret or log in, in any program."""
    for match in _SETTING.finditer(text):
        at, stop, name = match.end(), match.end() + 2000, ""
        while (argument := _ARGUMENT.match(text, at, stop)) and argument["value"][0] not in "=:":
            value, at = argument["value"], argument.end()
            place = f"{argument['name']} {name} {match[0]}".lower()
            if "passw" not in place and "pwd" not in place:
                place = "secret" if _TELLING.search(place) else ""
            if is_likely(value, place) and re.search(
                NO_WORD if place == "secret" else "[0-9]", value
            ):
                yield Finding(*argument.span("value"), "COMMAND")
            name = "" if argument["name"] else value


_VALUE = r"(?P<q>\\*[\"']?)(?P<value>[^\s\"'`|$\\]{4,4000})"
_REST = r"(?=(?P<rest>(?:\\\n|[^\n])*))"
_PIPED = (
    re.compile(rf"(?:echo|printf)[ \t]+(?:-[neE]+[ \t]+)*(?:\\*[\"'](?:%s(?:\\+n)?)+\\*[\"'][ \t]+)?{_VALUE}(?:\\+n)?(?P=q)(?:[ \t]+(?P=q)(?P=value)(?P=q))?[ \t]*(?:\||>>?){_REST}"),
    re.compile(r"(?:echo|printf)[ \t]+(?:-[neE]+[ \t]+)*(?P<q>\\*[\"'])(?P<value>[A-Za-z][^\"'\n|$\\]{6,200})(?P=q)[ \t]*(?P<rest>\|[^\n]*(?:cryptsetup|passwd|--stdin|gpg|luks)[^\n]*)"),
    re.compile(rf"(?P<rest>(?:passwordeval|pass(?:word-|phrase-)?(?:command|cmd)|askpass|password-file)[^\n]{{0,12}}?(?:echo|printf)[ \t]+(?:-n |%s )?){_VALUE}"),
    re.compile(r"printf[ \t]+(?P<rest>'[^'\n]{0,200}(?:auth|key|pass|token|secret)[^'\n]{0,80}%s[^'\n]{0,80}')(?:[ \t]+[^\s|>]+){0,3}?[ \t]+\\*[\"']?(?P<value>[^\s\"'`|$\\]{8,4000})\\*[\"']?[ \t]*[|>]"),
    re.compile(r"(?P<rest>pass insert [^\n]*<<)-?[ \t]*[\"']?[A-Za-z_]+[\"']?\n(?P<value>[^\s$`]{4,4000})\n"),
    re.compile(rf"<<<[ \t]*{_VALUE}(?P=q){_REST}"),
    re.compile(r"<<-?[ \t]*[\"']?(?P<end>[A-Za-z_]+)[\"']?(?P<rest>[^\n]*)\n(?:[\w.@-]{2,40}\n)?(?P<value>[^\s$`]{4,4000})\n[ \t]*(?P=end)"),
)  # fmt: skip
# What reads nothing but a secret, and what may read one.
_ONLY = re.compile(r"(?:passwordeval|pass(?:word-|phrase-)?(?:command|cmd)|askpass)\b|password-file[= ](?:-|/dev/stdin)|--(?:password|passphrase|token)-(?:stdin|fd)|--with-token|--stdin|passwd\b|\bkinit\b|\bsudo\b.* -\S*S|cryptsetup|pass insert|secrets?[: ](?:set|put|add)")  # fmt: skip
_MAY = re.compile(r"(?i)base64(?! -+d)|secret|token|passw|cred|auth|login|api_?key|env[ :]|variable|vault|openssl|gpg|sops|keyring|stdin|clip|pbcopy")  # fmt: skip


def find_piped(text: str) -> Iterator[Finding]:
    """Yield what is given to the standard input of a command or written to a file of secrets."""
    for match in (match for pattern in _PIPED for match in pattern.finditer(text)):
        value, (start, end) = match["value"], match.span("value")
        line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()] + match["rest"]
        if ":" in value and re.search("chpasswd|base64|htpasswd", line):
            start += value.index(":") + 1
            value = text[start:end]
        if only := _ONLY.search(line):
            given = _is_value(value)
        if given if only else _MAY.search(line) and is_likely(value, "secret"):
            yield Finding(start, end, "COMMAND")


_SETS_GATE = _SETS.replace(_GAP, r"(?:[^a-z0-9]|\\[nrt])+")
_LINE_GATE = r"(?:[^\\|;]|\\+[\"'\\t]|\\{3}n)*"
#: Id, literals, function and gate of the rules for any program.
COMMAND_FINDERS: tuple[tuple[str, tuple[str, ...], Finder, str], ...] = (
    ("settings", ("login", "config", "auth", "secret", "env", "var", "kv", "param", "token", "key", "cred", "passw", "setting", "encrypt_string"),
     find_settings, rf"(?:{_SETS_GATE})(?:\s|[\\\"',]){_LINE_GATE}(?:{NO_WORD}|(?:passw|pwd){_LINE_GATE}[0-9])"),
    ("piped", ("echo", "print", "<<"), find_piped, r"(?:echo|printf)\s(?:[^|>\\]|\\[^n])*[|>]|(?:passwordeval|-command|passcommand|pass-?cmd|askpass|password-file)[^a-z]*(?:echo|printf)|<<<|<<-?\s*[\\\"']*[a-z_]"),
)  # fmt: skip
