"""A real PostgreSQL server for tests and benchmarks, in a temporary folder.

Belongs here: starting one and stopping it. Does not belong here: anything that a ledger does
with it. It listens on a Unix socket alone, and stops by itself after ``lifetime`` seconds.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

INSTALL = "apt-get install postgresql (or another package with initdb and postgres)"
_START_S = 300


def postgres_folder() -> Path | None:
    """Return where ``initdb`` and ``postgres`` are, or ``None``."""
    found = shutil.which("postgres")
    places = [Path(found).resolve().parent, Path(found).parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for place in places:
        if (place / "initdb").exists() and (place / "postgres").exists():
            return place
    return None


class PostgresServer:
    """``with PostgresServer() as server: Ledger(server.database())``.

    Root may not run a server, so root runs it as the user ``postgres`` or ``nobody``.

    Args:
        durable: flush to disk at each commit; tests do without, benchmarks do not.
        lifetime: seconds after which it ends, also where nobody stops it.
    """

    def __init__(self, *, durable: bool = False, lifetime: int = 1800) -> None:
        self._durable = durable
        self._lifetime = lifetime
        self._databases = 0

    def __enter__(self) -> "PostgresServer":
        binaries = postgres_folder()
        if binaries is None:
            raise FileNotFoundError(f"no PostgreSQL server here: {INSTALL}")
        # Short, since the path of a socket may have 107 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="pg-"))
        self._user = _unprivileged(self._folder)
        data = self._folder / "data"
        self._run(
            binaries / "initdb", "-D", data, "-U", "composer", "-A", "trust", "-E", "UTF8",
            "--no-sync", "--no-locale",
        )  # fmt: skip
        command = [str(binaries / "postgres"), "-D", str(data), "-k", str(self._folder)]
        options = {"listen_addresses": "", "max_connections": "60", "shared_buffers": "32MB"}
        if not self._durable:
            options |= {"fsync": "off", "full_page_writes": "off"}
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        if shutil.which("timeout"):
            command = ["timeout", "--signal=INT", str(self._lifetime), *command]
        with (self._folder / "log").open("wb") as log:
            self._server = subprocess.Popen(
                command, stdout=log, stderr=log, user=self._user, cwd=self._folder
            )
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop it, whoever is connected, and delete its folder."""
        self._server.send_signal(signal.SIGINT)
        try:
            self._server.wait(20)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def url(self, database: str) -> str:
        """Return the URL of a database."""
        return f"postgresql://composer@/{database}?host={quote(str(self._folder), safe='/')}"

    def database(self) -> str:
        """Create an empty database and return its URL."""
        import psycopg

        self._databases += 1
        name = f"d{self._databases}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)

    def _run(self, *command: object) -> None:
        done = subprocess.run(
            [str(part) for part in command],
            user=self._user,
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {done.stderr}")

    def _wait(self) -> None:
        import psycopg

        end = time.monotonic() + _START_S
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=20).close()
            except psycopg.OperationalError:
                if self._server.poll() is not None or time.monotonic() > end:
                    log = (self._folder / "log").read_text(errors="replace")
                    raise RuntimeError(f"PostgreSQL did not start: {log[-2000:]}") from None
                time.sleep(0.05)
            else:
                return


def _unprivileged(folder: Path) -> int | None:
    """Return the user id to run as (``None``: this one), and give it the folder."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        os.chown(folder, user.pw_uid, user.pw_gid)
        return user.pw_uid
    return None
