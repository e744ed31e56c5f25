"""A value in a secret's place: any program, any client, tables, URLs, what a command prints."""

import random
import re
import string

import pytest

from composer_pipeline.redaction.redact import find_secrets, redact_text
from tests.redaction.rule_samples import MORE_COMMANDS

_RANDOM = random.Random(33)


def _some(count: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    """Random characters, with a digit before a letter in the middle."""
    while True:
        text = "".join(_RANDOM.choice(alphabet) for _ in range(count))
        if re.search("[0-9][A-Za-z]", text[4:-4]):
            return text


_HEX = "0123456789abcdef"
KEY, HEX, BASE64 = _some(28), _some(32, _HEX), _some(43) + "="
UUID = "-".join((HEX[:8], HEX[4:8], HEX[5:9], HEX[6:10], HEX[:12]))
PASSWORD = "v3ry-S3cret#9"
#: What frames spell out.
OWN = """
    hunter22x b8xk3q1 qWertyuZxcv cVdlcnR5 quarry-garnet TbLw db334 7716-900 86217305 135242
    73235553 SAGQK6 hzUqS36b leASu 6f184a6d 0zeofhwp marble-yarrow birch-badge u65Bihxh
    ozxD5tIp 0TM7aQjK thistle-ginger S3cret9
""".split()  # noqa: SIM905  lines of words
#: Each secret under the name that a frame uses.
SECRETS = {"K": KEY, "H": HEX, "B": BASE64, "U": UUID, "P": PASSWORD}

COMMANDS = """
npx wrangler secret put STRIPE {K}
gh secret set DEPLOY --body "{K}"
flyctl secrets set MAILER={K} --stage
npx convex env set CLERK {K}
netlify env:set SUPABASE {K}
heroku config:set MAILGUN={H} -a app
railway variables --set "FOO={K}"
dotnet user-secrets set "Stripe:Api" "{K}"
firebase functions:config:set stripe.id="{K}"
npm config set '//npm.acme.com/:_authToken' {U}
git config --global acme.token {K}
sometool auth login {K}
sometool login --user bob --pass {P}
acmectl login -u bob -p {P} acme.io
acme token add ci {K}
acme sync -u bob -p {P}
circleci context store-secret github org ctx NAME {K}
cf set-env app DB_PASSWORD {P}
oc create secret generic db --from-literal pw={P}
ansible-vault encrypt_string '{P}' --name x
["wrangler", "secret", "put", "NAME", "{K}"]
mytool --key {K} run
mytool -t {K}
"""
PIPES = r"""
echo {K} | wrangler secret put NAME
echo "{K}" | npx wrangler secret put NAME --env production
printf '%s' "{K}" | gh secret set NAME
printf "{K}" | vercel env add NAME production
gh secret set NAME <<< "{K}"
keyring set svc bob <<< '{P}'
echo -n "{P}" | base64
echo -n 'bob:{P}' | base64
echo "{K}" | tr -d x | tee y | fly secrets import
echo {K} > ~/.config/acme/token
echo "{P}" | openssl passwd -6 -stdin
echo "{K}" | gcloud secrets create foo --data-file=-
cat <<EOF | wrangler secret put N⏎{K}⏎EOF
"""
PRINTED = """
$ gh auth token⏎{K}
$ op read op://Private/x/password⏎{P}
$ aws secretsmanager get-secret-value --query SecretString --output text⏎{P}
$ vault kv get -field=password secret/x⏎{P}
$ kubectl get secret db -o jsonpath='x' | base64 -d⏎{P}
$ heroku config:get DATABASE⏎{K}
openssl rand -hex 32⏎{H}{H}
$ security find-generic-password -w -s svc⏎{P}
bob@h:~$ cat ~/.config/acme/token⏎{K}⏎$ ls
$ printenv DB_PASSWORD⏎{P}
$ python -c "import secrets; print(secrets.token_hex(16))"⏎{H}
"""
CALLS = """
c = Client("{K}")
const sb = createClient("https://abc.supabase.co", "{K}")
createClient(⏎  "https://abc.supabase.co",⏎  "{K}",⏎)
new Stripe('{K}', {{ apiVersion: "2024" }})
Foo.configure("{K}")
option.WithToken("{K}")
credentials.NewStaticCredentials("id", "{K}", "")
get(u, auth=HTTPBasicAuth("bob", "{P}"))
get(u, auth=("bob", "{P}"))
server.login("bob", "{P}")
new Container("x").withUsername("a").withPassword("{P}")
jwt.sign({{ id: user.id }}, '{P}', {{ expiresIn: '1h' }})
crypto.createHmac("sha256", "{P}")
hmac.New(sha256.New, []byte("{P}"))
new SymmetricSecurityKey(Encoding.UTF8.GetBytes("{P}"))
f = Fernet(b"{B}")
conn = connect("host", "user", "{P}")
DriverManager.getConnection(url, "bob", "{P}")
await page.fill('#password', '{P}')
page.getByLabel('Password').fill('{P}')
driver.find_element(By.ID, "password").send_keys("{P}")
fillIn('Password', with: '{P}')
localStorage.setItem("token", "{K}")
headers.set("X-Acme-Key", "{K}")
bcrypt.hashpw(b"{P}", bcrypt.gensalt())
ds.setPassword("hunter22x");
req.SetBasicAuth("bob", "{P}")
conn.simple_bind_s("cn=reader", "{P}")
client.cookies["sessionid"] = "{K}"
overrides = dict(zip(["pw"], ["{P}"]))
"""
TABLES = r"""
user,password⏎bob,{P}⏎eve,hunter22x
     1→id;login;passwd⏎     2→1;bob;{P}
name	token⏎ci	{K}
"email","password"⏎"a, b","{P}"
host,user,pw⏎h1,bob,{P}
| service | credential |⏎|---|---|⏎| db | {H} |
===== Data =====⏎Key   Value⏎---   -----⏎smtp  {P}
INSERT INTO users (name, password) VALUES ('bob', '{P}');
insert into "users" ("x", "api_key")⏎values ('a', NULL), ('b''c', '{K}');
 id | name | password ⏎----+------+-----⏎  1 | bob  | {P}
+----+------+⏎| id | password |⏎+----+------+⏎| 1 | {P} |
| Service | API key |⏎|---|---|⏎| db | {K} |
bob * "{P}" *
bob@acme.org:{P}
"""
URLS = """
https://acme.webhook.office.com/webhookb2/{U}@{U}/IncomingWebhook/{H}/{U}
https://hooks.zapier.com/hooks/catch/1234567/b8xk3q1/
https://hook.eu1.make.com/{K}
https://n8n.acme.io/webhook/{U}
https://maker.ifttt.com/trigger/alarm/with/key/{K}
https://hc-ping.com/{U}
https://events.pagerduty.com/integration/{H}/enqueue
https://eth-mainnet.g.alchemy.com/v2/{K}
https://mainnet.infura.io/v3/{H}
https://x-y.solana-mainnet.quiknode.pro/{H}/
https://x.io/reset-password/{K}
https://x.io/auth/verify?token_hash={H}{H}&type=magiclink
https://x.io/magic?t={K}
https://x.akamaized.net/v?hdnea=st=1~exp=2~acl=/*~hmac={H}
https://api.openweathermap.org/data?q=x&appid={H}
"""


FILES = r"""
/interface add user=bob name=wan password={P} disabled=no
WIFI:T:WPA;S:Office;P:{P};;
bob:{P}:1201:1201:Bob:/home/x:/bin/bash
[smtp.acme.net]:587    bob:{P}
"bob" "{P}"
# user: password, role⏎admin: {P}, admin
bob@acme.org:{{PLAIN}}{P}:5000:5000::/var/mail/x::
[admins]⏎bob = {P}⏎⏎[chttpd]
rwcommunity {P} 10.0.0.0/8
	option key '{P}'
{{default_pass, <<"{P}">>}},
ldap_default_authtok = {P}
<auth-user-pass>⏎bob⏎{P}⏎</auth-user-pass>
d-i partman-crypto/passphrase password sorrel {P} copper
'SCRAM-SHA-512=[iterations=8192,password={P}]'
127.0.0.1:6379> ACL SETUSER app on >{P} ~*
NEO4J_AUTH: neo4j/lantern-thistle-ginger-8430
<machineKey validation="SHA1" decryptionKey="{H}{H}" />
Set-Property x -Name decryptionKey -Value '{H}{H}'
"network_key": {{⏎  "key": "{H}",⏎  "sequence": 0
sqlite> PRAGMA key = "x'{H}{H}'";
"cookies": [⏎{{"name": "PHPSESSID", "value": "{H}", "path": "/"}}
name,url,password,note⏎a,https://x.io/,{P},⏎b,https://y.io/,{P},
p.add_argument("--password", default="{P}", help="x")
name=bob&j_username=bob&j_password=v3ry#S3cret9&x=1
<video src="https://m.acme.net/a.mp4?md5={K}&until=1790000000">
pw:       {P}
"""
DIALOGUES = r"""
331 Password required⏎PASS qWertyuZxcv
334 UGFzc3dvcmQ6⏎cVdlcnR5dVp4Y3Y=
enter password for new repository: quarry-garnet-timber
child.expect("[Pp]assword:")⏎child.sendline("{P}")
$ keepassxc-cli show -s -a Password x.kdbx a⏎Enter password to unlock x.kdbx: ⏎{P}
>>> get_random_secret_key()⏎'{P}'
$ acme preauthkeys create --user 2⏎{H}
$ acmectl user token add bob⏎│ id    │ bob │⏎│ value │ {U} │
$ nomad acl bootstrap⏎Accessor ID  = x⏎Secret ID    = {U}
Use this password to proceed:⏎⏎{H}
setup key for the new laptops, valid for 7 days⏎{U}
$ acme password create bob⏎TbLw OqrZ tLnw uBZs wCSF fLVP
ID | User | Key | Used⏎4 | bob | {H} | no
Save these, each works once:⏎ d2e71-2c9f9⏎ db334-379bc
chip-tool pairing code 17 7716-900-9240
AT+CPIN="86217305","3634"
{{"entity_id": "alarm.office", "code": "135242"}}
echo quarry-garnet-timber | restic key add --new-password-file /dev/stdin
encryption_passcommand: printf %s quarry-garnet-timber
curl -s -u ":7323555393527049516" http://x
./add-user.sh -a -g ops bob {P}
Our account signs with SAGQK6E6LT3WS5HDNB2VK7B7QZ6CAURAVN4CEU5VCY2P7Y4SQ7OVL66E
"""
POSITIONS = """
client.username_pw_set("bob", "{P}")
db = new mysqli('core', 'bob', '{P}', 'shop', 3306)
FTP_TLS("ftp.acme.net", "bob", "hzUqS36b5ICX")
ONVIFCamera("10.0.5.60", 80, "admin", "leASu-AF9d0h7")
OutletDevice("d1", "10.0.5.31", "6f184a6d7e03bc55")
ks.load(new FileInputStream("c.p12"), "{P}".toCharArray());
new X509Certificate2("x.pfx", "{P}", flags)
CommunityData("0zeofhwp0ggv9v", mpModel=1)
auth=("neo4j", "marble-yarrow-bramble-6889")
wallet.unlockAccount(x, "birch-badge-glacier207", 300)
ACCOUNTS = [⏎    ("bob", "u65BihxhBF+3X", "admin"),
packet := radius.New(radius.Code, []byte("ozxD5tIpjHfbpRxz"))
sessionStorage.setItem("refresh", "{K}")
sw = Handler("ios", "bob", secret="0TM7aQjK8siSs")
{{"name": "PHPSESSID", "value": "{K}", "path": "/"}}
[{{"domain": ".x.dev", "name": "connect.sid", "path": "/", "session": false, "value": "{K}"}}]
DB_PASSWORD=todo{H}
"""


def _lines(block: str) -> list[str]:
    return [line.replace("⏎", "\n") for line in block.strip("\n").split("\n")]


BLOCKS = [COMMANDS, PIPES, PRINTED, CALLS, TABLES, URLS, FILES, DIALOGUES, POSITIONS]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_secret_in_its_place_is_replaced(block: str) -> None:
    for frame in _lines(block):
        text = frame.format(**SECRETS)
        planted = [*SECRETS.values(), *OWN]
        redacted = redact_text(text)[0]
        assert redacted != text, text
        assert not [value for value in planted if value in redacted], redacted
        assert find_secrets(redacted) == []


def test_programs_that_share_a_row_are_all_known() -> None:
    for frame in MORE_COMMANDS:
        assert "qWertyuZxcv" not in redact_text(frame.format("qWertyuZxcv"))[0], frame


LEFT_ALONE = r"""
334 VXNlcm5hbWU6
bob:x:1201:1201:Bob:/opt/x:/bin/bash
[registry.acme.net]:5000    bob:latest
"first" "second-part"
user: string, user
[users]⏎limit = 20
rocommunity public
Unknown option key 'timeout'
{default_pass, undefined}.
d-i partman-auto/method string crypto
print(f(user=u, password=getpass()))
BASIC_AUTH: src/auth2.ts
-Name displayKey -Value 'Title'
PRAGMA key = value
{"name": "session-timeout", "value": "3600"}
p.add_argument("--token", default="none")
id,path,key,size⏎1,a/b,img/cat1.png,20
PASS src/login2.test.ts
331 tests passed
Enter password for new repository:
$ cat tests/test_key.py⏎import⏎os
$ acme token create --help⏎Usage: acme token create
the new token:⏎⏎const x = 1
the key is⏎3f2a9c1d5b7e8f90a1b2c3d4e5f60718293a4b5c is the commit
This works once: v1.2-3
AT+CSQ=12
{"status": "unlock", "code": "E404"}
door.open(code=200)
printf "%s" done2
Point("10.0.0.1", "eu-west-1")
new Model("gpt", "openai", "gpt-4o-mini")
new File("x".toCharArray())
ITEMS = [("bob", "v1.2.3-rc1", "x")]
SAGQK6E6LT3WS5HDNB2VK7B7QZ6CAURAVN4CEU5VCY2P7Y4SQ7OVL66F
git show 3f2a9c1d5b7e8f90a1b2c3d4e5f60718293a4b5c
docker run -p 8080:80 nginx
npm config set registry https://npm.acme.dev/
gh pr create --title "Fix x" --body "Adds 3 tests for login2"
gh secret set DEPLOY_KEY --repo acme/app-2 --env prod1
vercel env add DATABASE_URL production
wrangler secret put API_KEY --env staging2
redis-cli SET user:1001 hello42
git config --global user.signingkey 3AA5C34371567BD2
docker login -u bob registry.acme2.io:5000
kubectl config set-context prod-2 --namespace=web1
az account set --subscription 00ef13bd-99a1-4001-a829-09985a069ab2
aws configure set region us-east-1
claude -r test-session-1767028537
git show --stat | grep -E "^[0-9a-f]{2}/[0-9a-f]"
the login page2 shows AuthForm2
if password == user.password1:
echo $TOKEN | docker login --password-stdin
echo password123 | sudo -S ls
echo "done2" | tee log
echo "*.ignored" > x && git config core.excludesfile x2
echo aGVsbG8gd29ybGQgdGhpcyBpcyBhIHRlc3Q= | base64 -d
$ git rev-parse HEAD⏎3f2a9c1d5b7e8f90a1b2c3d4e5f60718293a4b5c
$ ls secrets⏎db-1.yaml
$ cat tests/test_token.py⏎import⏎os
Client("https://api.acme.org/v2")
new ObjectId("507f1f77bcf86cd799439011")
expect(hash).toBe("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824")
Buffer.from("aGVsbG8gd29ybGQgdGhpcyBpcyBhIHRlc3Q", "base64")
client.create(betas=["context-1m-2025-08-07"])
getToken("access_token_v2")
page.fill('#password', 'password123')
getByTestId("password-input-2")
t("auth.password.reset2")
jwt.sign(payload, "RS256")
uuid.UUID("00ef13bd-99a1-4001-a829-09985a069ab2")
PASS (`entire/a23136d`)
user,password⏎bob,<password>⏎eve,changeme
| Token | Meaning |⏎|---|---|⏎| spacing-4 | 16px |⏎| color-a1 | #ff00aa |
name,token_count⏎x,1234
INSERT INTO users (name, age) VALUES ('bob', 'a1b2c3d4');
INSERT INTO users (name, password) VALUES (?, ?)
https://github.com/acme/app/blob/main/src/hooks/useUser2.ts
https://api.acme.org/v2/users
https://docs.acme.org/webhooks/stripe
https://acme.org/invite/team
https://api.github.com/repos/a/b/hooks/12345678/deliveries
TK⏎XN--11B4C3D⏎XN--3DS443G
https://www.youtube.com/watch?v=dQw4w9WgXcQ&t=42
git clone git@github.com:acme2/app.git
"""


@pytest.mark.parametrize("text", _lines(LEFT_ALONE))
def test_what_only_looks_like_a_place_stays(text: str) -> None:
    assert redact_text(text) == (text, {})


def test_a_secret_that_goes_into_a_pipe_is_seen_from_its_left_side() -> None:
    """Without the left side nothing tells: the right side names the secret only."""
    for value in (KEY, PASSWORD):
        assert value not in redact_text(f"echo '{value}' | wrangler secret put API_KEY")[0]
        kept = f"echo '{value}' | jq ."
        assert redact_text(kept) == (kept, {})
