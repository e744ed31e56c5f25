"""Programs and their options that take a secret: one row each.

Belongs here: rows. Does not belong here: reading a command (``redaction.finders.commands``).

How an option is written:

* ``-p`` and ``--password``: the value is the next word, or follows ``=``.
* ``-p*``: the value is glued to a short option (``-pVALUE``); it may not be the next word.
* ``-p?``: both.
* ``/p:``, ``-passin=pass:``: what ends in a sign of its own is a prefix of the value.

``part`` says which part of the value is the secret: all of it, what follows the first ``:``
(``user:password``), what follows ``=`` (``name=value``), the value of a header or a cookie.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Program:
    """Programs that take a secret in the same place.

    Args:
        name: the id of the row among the rules.
        programs: names of the programs, apart by spaces; without their folder.
        options: options that take a secret, apart by spaces.
        words: words of the command that must come before, such as a subcommand; alternatives
            are separated by ``|``.
        part: ``all``, ``user:``, ``name=``, ``header``, ``cookie``, ``user%`` or ``user/``.
        argument: number of the argument, from 1 behind ``words``, that is a secret.
        stdin: the secret comes from a pipe, a here-string or a here-document.
        shortest: shorter values are no secret.
    """

    name: str
    programs: str
    options: str = ""
    words: str = ""
    part: str = "all"
    argument: int = 0
    stdin: bool = False
    shortest: int = 4


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
