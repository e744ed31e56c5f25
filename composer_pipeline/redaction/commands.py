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

from composer_pipeline.redaction.finders import cookie_values
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
    stdin: bool = False  # the secret comes from a pipe, a here-string or a here-document


PROGRAMS: tuple[Program, ...] = (
    # databases
    Program("mysql", "mysql mysqldump mysqladmin mysqlimport mysqlshow mysqlcheck mysqlslap mysqlbinlog mysqlsh mariadb mariadb-dump mariadb-admin mycli", "-p* --password --password1"),
    Program("mongo", "mongo mongosh mongodump mongorestore mongoexport mongoimport mongostat mongotop", "-p? --password"),
    Program("redis", "redis-cli valkey-cli keydb-cli redis-benchmark", "-a? --pass --password"),
    Program("redis_auth", "redis-cli valkey-cli keydb-cli", words="AUTH|auth", argument=1),
    Program("redis_config", "redis-cli valkey-cli", words="requirepass|masterauth", argument=1),
    Program("sqlcmd", "sqlcmd bcp mssql-cli osql isql", "-P?"),
    Program("sqlplus", "sqlplus sqlldr rman expdp impdp", argument=1, part="user/"),
    Program("cqlsh", "cqlsh nodetool dse cassandra-stress", "-p? -pw --password"),
    Program("clickhouse", "clickhouse-client clickhouse clickhouse-local chc", "--password"),
    Program("influx", "influx influxd", "-password -p? --password -t --token --admin-token"),
    Program("couch", "couchbase-cli cbq cbbackupmgr cbimport cbexport", "-p? --password"),
    Program("neo4j", "cypher-shell neo4j-shell", "-p? --password"),
    Program("neo4j_admin", "neo4j-admin", words="set-initial-password", argument=1),
    Program("elastic", "elasticdump elasticsearch-reset-password elasticsearch-users elasticsearch-keystore", "-p? --password --searchPassword"),
    Program("firebird", "isql-fb gbak gfix fbsql", "-pas -pass -password"),
    Program("snowsql", "snowsql snow", "--password --private-key-passphrase --token"),
    Program("presto", "trino presto beeline hive", "-p? --password --access-token"),
    Program("ldap", "ldapsearch ldapadd ldapmodify ldapdelete ldappasswd ldapwhoami ldapcompare ldapmodrdn", "-w? -s? -a"),
    Program("liquibase", "liquibase flyway", "--password -password -Dpassword"),
    Program("createuser", "rabbitmqctl", words="add_user|change_password|authenticate_user", argument=2),
    Program("rabbitmqadmin", "rabbitmqadmin", "-p? --password"),
    Program("mosquitto", "mosquitto_pub mosquitto_sub mqttx", "-P? --password --pw"),
    Program("mosquitto_passwd", "mosquitto_passwd", "-b", argument=3),
    Program("kafka", "kcat kafkacat", "-Xsasl.password= sasl.password= ssl.key.password="),
    # container registries
    Program("docker_login", "docker podman nerdctl buildah skopeo oras crane regctl cosign helm ctr", "-p? --password", words="login"),
    Program("docker_login_stdin", "docker podman nerdctl buildah skopeo oras crane helm", "--password-stdin", words="login", stdin=True),
    Program("registry_creds", "skopeo podman buildah ctr crictl", "--creds --src-creds --dest-creds -u? --user", part="user:"),
    Program("docker_env", "docker podman nerdctl docker-compose", "-e? --env --build-arg --secret", part="name="),
    # HTTP clients
    Program("curl_user", "curl curlie", "-u? --user -U? --proxy-user", part="user:"),
    Program("curl_cookie", "curl curlie", "-b? --cookie", part="cookie"),
    Program("curl_secret", "curl curlie", "--oauth2-bearer --pass --proxy-pass --key-passwd --tlspassword --login-options"),
    Program("wget", "wget wget2 aria2c axel lftp", "--password --http-password --http-passwd --ftp-password --ftp-passwd --proxy-password --proxy-passwd"),
    Program("httpie", "http https xh xhs", "-a? --auth", part="user:"),
    Program("lftp", "lftp ftp ncftpget ncftpput sftp", "-u? -p?", part="user,"),
    # SSH helpers and remote access
    Program("sshpass", "sshpass", "-p?"),
    Program("putty", "plink pscp psftp putty pageant", "-pw"),
    Program("smbclient", "smbclient rpcclient smbget smbmap net smbpasswd", "-U? --user --password", part="user%"),
    Program("mount", "mount mount.cifs mount.davfs sshfs", "-o?", part="password="),
    Program("xfreerdp", "xfreerdp xfreerdp3 wlfreerdp rdesktop", "/p: -p?"),
    Program("winrm", "evil-winrm winrs crackmapexec netexec nxc impacket-psexec", "-p? -p: --password"),
    Program("vnc", "vncpasswd x11vnc vncviewer", "-passwd -passwdfile --password"),
    Program("ssh_keygen", "ssh-keygen", "-N -P"),
    Program("rclone", "rclone", "--sftp-pass --ftp-pass --webdav-pass --s3-secret-access-key --b2-key --smb-pass --password"),
    Program("rclone_obscure", "rclone", words="obscure", argument=1),
    # archives, certificates, encryption
    Program("zip", "zip unzip zipcloak", "-P?"),
    Program("seven_zip", "7z 7za 7zr 7zz rar unrar", "-p* -hp*"),
    Program("gpg", "gpg gpg2 gpgsm duplicity", "--passphrase"),
    Program("gpg_stdin", "gpg gpg2", "--passphrase-fd", stdin=True),
    Program("openssl", "openssl", "-passin=pass: -passout=pass: -pass=pass: -passin -passout -pass -k? -K -password=pass: -passwd"),
    Program("keytool", "keytool jarsigner apksigner", "-storepass -keypass -srcstorepass -deststorepass -srckeypass -destkeypass -new --ks-pass=pass: --key-pass=pass:"),
    Program("cryptsetup", "cryptsetup veracrypt", "--password -p?"),
    Program("borg", "restic borg kopia duplicacy", "--password --passphrase --repo-password"),
    Program("signtool", "signtool osslsigncode", "/p -pass -p"),
    Program("certutil", "certutil pk12util certreq", "-p -w? -W? -K?"),
    Program("step", "step certbot acme.sh lego", "--password --provisioner-password --eab-hmac-key"),
    # clouds
    Program("minio", "mc mcli", words="set|add", argument=4),
    Program("pulumi_config", "pulumi", words="--secret", argument=2),
    Program("doppler", "doppler infisical", words="set", part="secret=", options="*"),
    Program("onepassword", "op", words="create|edit", part="name=", options="*"),
    Program("aws_configure", "aws", words="aws_secret_access_key|aws_session_token|aws_access_key_id", argument=1),
    Program("aws", "aws", "--master-user-password --secret-string --password --auth-token --secret-access-key --session-token --token-value --temporary-password"),
    Program("aws_ssm", "aws", "--value", words="put-parameter"),
    Program("az_login", "az", "-p? --password", words="login"),
    Program("az", "az", "--account-key --sas-token --admin-password --connection-string --password --client-secret --docker-registry-server-password --primary-key"),
    Program("az_secret", "az", "--value", words="secret"),
    Program("az_settings", "az", "--settings --secure-environment-variables --environment-variables", part="name="),
    Program("gcloud", "gcloud bq gsutil", "--password --root-password --account-token --access-token --client-secret --update-env-vars --set-env-vars", part="name="),
    Program("doctl", "doctl hcloud linode-cli scw vultr-cli civo ibmcloud oci", "--access-token -t? --token --apikey --api-key -p? --password"),
    Program("openstack", "openstack nova cinder swift glance", "--os-password --os-token --password -K?"),
    Program("heroku", "heroku fly flyctl railway render vercel netlify wrangler", "-t? --token --auth --access-token --api-token"),
    Program("heroku_config", "heroku fly flyctl railway", words="config:set|secrets|variables", part="name=", options="*"),
    Program("terraform", "terraform tofu terragrunt packer", "-var? --var", part="name="),
    Program("vault_login", "vault bao", words="login|unseal", argument=1),
    Program("vault", "vault bao consul nomad boundary", "-token --token -secret_id --http-addr-token"),
    Program("vault_kv", "vault bao", words="put|write|patch", part="name=", options="*"),
    Program("consul_kv", "consul etcdctl", words="put", argument=2),
    Program("etcdctl", "etcdctl", "--user --password", part="user:"),
    # clusters
    Program("kubectl_secret", "kubectl oc k3s microk8s kubecolor", "--from-literal", words="secret", part="name="),
    Program("kubectl_docker", "kubectl oc kubecolor", "--docker-password --password --token"),
    Program("helm_password", "helm", "--password"),
    Program("helm_set", "helm helmfile", "--set --set-string --set-literal", part="name="),
    Program("argocd", "argocd flux rancher", "--password --auth-token --token --admin-password --current-password --new-password"),
    # forges and packages
    Program("gh_stdin", "gh glab hub tea", "--with-token --stdin", stdin=True),
    Program("gh_secret", "gh glab", "-b? --body --value -v?", words="secret|variable"),
    Program("glab", "glab gitlab-runner gitlab tea", "-t? --token --registration-token -r? --private-token"),
    Program("npm_config", "npm yarn pnpm", words="set", part="token=", options="*"),
    Program("twine", "twine poetry flit hatch uv pdm", "-p? --password --token -t?"),
    Program("poetry", "poetry", words="http-basic", argument=2),
    Program("poetry_token", "poetry", words="config", argument=2),
    Program("cargo", "cargo gem", words="login", argument=1),
    Program("cargo_token", "cargo gem", "--token --key"),
    Program("nuget", "nuget dotnet choco", "-ApiKey -Password -k? --api-key -p? --password"),
    Program("nuget_source", "nuget", words="setapikey", argument=1),
    Program("composer", "composer", words="http-basic|bearer|github-oauth|gitlab-token", argument=-1),
    Program("maven", "mvn gradle gradlew java sbt ant sonar-scanner", "-Dsonar.login= -Dsonar.token= -Dsonar.password= -Dpassword= -DrepoPassword= -Djavax.net.ssl.keyStorePassword= -Djavax.net.ssl.trustStorePassword= -Dgpg.passphrase= -Pgpg.passphrase= -PmavenPassword= -Psigning.password= -Dspring.datasource.password= -Dhttp.proxyPassword= -Dhttps.proxyPassword="),
    Program("conan", "conan jfrog jf", "-p? --password --access-token --apikey"),
    # services
    Program("stripe", "stripe twilio ngrok cloudflared", "--api-key --authtoken --token"),
    Program("ngrok", "ngrok", words="authtoken|add-authtoken|add-api-key", argument=1),
    Program("tailscale", "tailscale headscale netbird zerotier-cli", "--authkey --auth-key --setup-key -k"),
    Program("sentry", "sentry-cli snyk codecov coveralls newrelic datadog-ci", "--auth-token --token -t? --api-key --apiKey"),
    Program("snyk", "snyk", words="auth", argument=1),
    Program("wandb", "wandb comet neptune", words="login", argument=1),
    Program("huggingface", "huggingface-cli hf", "--token"),
    Program("databricks", "databricks dbt", "--token --password"),
    Program("supabase", "supabase firebase expo eas", "--token --password -p? --db-password"),
    Program("slack", "slack slackcat telegram-send discord.sh", "--token --webhook-url"),
    Program("openai", "openai llm anthropic claude", "-k? --api-key"),
    Program("grafana", "grafana-cli grafana promtool logcli", "--adminPassword --api-key --password --bearer-token"),
    Program("grafana_reset", "grafana-cli grafana", words="reset-admin-password", argument=1),
    Program("sendemail", "sendemail swaks mutt msmtp s-nail mailx", "-xp -ap --auth-password --passwordeval"),
    Program("dvc", "dvc", words="modify", argument=3),
    # users of machines and services
    Program("htpasswd", "htpasswd", "-b -cb -bc -nb -nbB -bB -bcB -cbB -Bbn -bn -nbm -bnB -mb", argument=-1),
    Program("useradd", "useradd usermod", "-p? --password"),
    Program("cmdkey", "cmdkey schtasks", "/pass: /rp"),
    Program("xcrun", "xcrun altool notarytool", "--password"),
    Program("chpasswd", "chpasswd", stdin=True, part="user:"),
    Program("passwd_stdin", "passwd", "--stdin", stdin=True),
    Program("sudo_stdin", "sudo", "-S", stdin=True),
    Program("pbcopy", "kinit vncpasswd cryptsetup smbpasswd", stdin=True),
    Program("security", "security", "-w? -p?", words="add-generic-password|add-internet-password|unlock-keychain|import"),
    Program("nmcli", "nmcli", words="password|wifi-sec.psk|802-11-wireless-security.psk", argument=1),
    Program("wpa", "wpa_passphrase", argument=2),
    Program("openvpn", "openconnect openfortivpn vpnc", "-p? --password --passwd"),
    Program("ansible", "ansible ansible-playbook", "-e? --extra-vars", part="name="),
    Program("git_config", "git", words="user.password|http.extraheader|github.token|sendemail.smtppass", argument=1),
    Program("svn", "svn hg bzr p4", "--password -P?"),
    Program("jira", "jira acli confluence-cli", "--password -p? --token"),
    Program("jenkins", "jenkins-cli java", "-auth --auth", part="user:"),
    Program("splunk", "splunk", "-auth", part="user:"),
    Program("ipmitool", "ipmitool racadm redfishtool", "-P? -p?"),
    Program("snmp", "snmpwalk snmpget snmpset snmpbulkwalk", "-c? -A? -X?"),
    Program("hydra", "hydra medusa ncrack", "-p?"),
    Program("expect", "op bw lpass keepassxc-cli", "--password --pw --session"),
    Program("bw", "bw", words="login|unlock", argument=-1),
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
        if plain and not self.row.argument:
            return rf".*{_BEFORE}(?:{'|'.join(map(re.escape, plain))})"
        return ""

    def __call__(self, text: str) -> Iterator[Finding]:
        """Yield the secrets of the row in ``text``."""
        for match in self._program.finditer(text):
            begin = _begin(text, match.start())
            if begin < 0:
                continue
            segment, at = _segment(text, begin, match.end())
            if self.row.stdin:
                if not self._options or any(f" {o}" in segment for o in self._options):
                    yield from self._piped(text, begin, segment, at)
                continue
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
            telling = part == "secret=" or _TELLING.search(name)
            if not sign or not telling or name.startswith("-"):
                return None
            text, start = value, start + len(name) + 1
        elif part != "all":
            user, sign, value = text.partition(part[-1])
            if not sign or not user:
                return None
            value = value.partition("@")[0] if part == "user/" else value
            text, start = value, start + len(user) + 1
        if text[:1] in _QUOTES and text[-1:] == text[:1] and len(text) > 1:
            text, start = text[1:-1], start + 1
        return Word(text, start)

    def _piped(self, text: str, at: int, segment: str, start: int) -> Iterator[Finding]:
        """Yield what is given to the standard input of a command."""
        line = text[max(0, at - 400) : at]
        before = _ECHO.search(line)
        places = []
        if before is not None:
            offset = at - len(line)
            places.append((offset + before.start("value"), before["value"]))
        for pattern in (_HERE_STRING, _HERE_DOCUMENT):
            if match := pattern.search(segment):
                places.append((start + match.start("value"), match["value"]))
        for place, value in places:
            yield from self._part(Word(value, place))


_TELLING = re.compile(
    r"(?i)pass|pwd|secret|token|key(?!cloak|board|space|name|_?id$|vault)|credential|auth(?!or)"
    r"|salt|dsn|conn"
)
# A comma before a further pair of a name and a value.
_SEVERAL = re.compile(r",(?=[A-Za-z_][\w.\[\]-]*=)")
_ECHO = re.compile(
    r"(?:echo|printf|print)[ \t]+(?:-[neE]+[ \t]+)?(?:[\"']%s(?:\\n)?[\"'][ \t]+)?(?P<q>[\"']?)"
    r"(?P<value>[^\s\"'|$`]+)(?P=q)[ \t]*\|[ \t\\\n]*(?:sudo[ \t]+(?:-\S+[ \t]+)*)?(?:\S+/)?$"
)
_HERE_STRING = re.compile(r"<<<[ \t]*(?P<q>[\"']?)(?P<value>[^\s\"'$`]+)(?P=q)")
_HERE_DOCUMENT = re.compile(
    r"<<-?[ \t]*[\"']?(?P<end>[A-Za-z_]+)[\"']?[^\n]*\n(?P<value>[^\s$`]+)\n[ \t]*(?P=end)"
)


def _pieces(word: Word) -> Iterator[Word]:
    """Yield the pairs of ``a=1,b=2``."""
    starts = [0, *(match.end() for match in _SEVERAL.finditer(word.text))]
    for begin, end in pairwise([*starts, len(word.text) + 1]):
        yield Word(word.text[begin : end - 1], word.start + begin)


def _is_value(text: str) -> bool:
    """Return True for a secret itself, not another option or the place of one."""
    return is_given_secret(text, 4) and not text.startswith(("-", "/", "./", "~/", "@", "file:"))


def _value(option: str, word: Word, following: Word | None) -> Word | None:
    """Return the value that an option of the table has here; ``None`` if it is absent."""
    if option == "*":
        return None if word.text.startswith("-") else word
    glued = option.endswith(("?", "*"))
    name = option.rstrip("?*")
    if word.text == name and name[-1] not in "=:":
        return None if option.endswith("*") else following
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
