"""Start a PostgreSQL server of the project's own, share it, and stop it with its last user.

Every user of a folder's server holds a shared lock on a file for as long as it lives;
the kernel drops it when the process dies, however it dies. Whoever leaves and finds no other holder
stops the server. One that outlived its users is found and used by the next start, and stopped then.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import shlex
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import quote

import psycopg

from .postgres_binaries import (
    Account,
    PostgresError,
    find_binaries,
    major_version,
    reachable_binaries,
    server_account,
)

__all__ = ["PostgresError", "PostgresServer"]

START_SECONDS = 60
RETRY_SECONDS = 5  # the remains of a killed server are gone by then
LOCK_SECONDS = 180  # another process may be copying binaries and running initdb
SOCKET_PATH_BYTES = 103  # sockaddr_un holds 108 on Linux and 104 on macOS, the final NUL included
IMPOSSIBLE_PID = 2**30 - 1  # above every system's limit
FAST = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
"""Server settings for data that nobody keeps."""


@dataclass(slots=True)
class PostgresServer:
    """One data folder's server.

    `folder` is where everything lives, unless the account that runs PostgreSQL can't get there;
    then a folder of ours under the system's temporary one takes its place.
    `tcp` asks for a port on 127.0.0.1 (with a password) beside the Unix socket.
    """

    folder: Path
    tcp: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    database: str = "agentruns"
    _account: Account = field(init=False, repr=False)
    _binaries: Path = field(init=False, repr=False)
    _data: Path = field(init=False, repr=False)
    _users: int | None = field(init=False, default=None, repr=False)
    _note: Path = field(init=False, repr=False)

    def start(self) -> str:
        """Start or find the server, and return the URL of its database."""
        self._account = server_account()
        self._note = self.folder / "url"
        self.folder = _usable_folder(self.folder, self._account)
        with _locked(self.folder / "lock"):
            self._locate()
            if self._users is None:
                self._users = _open(self.folder / f"users-{self._data.name}")
                fcntl.flock(self._users, fcntl.LOCK_SH)
            try:
                url = self._ensure_running()
                _write_note(self._note, url)
            except BaseException:
                self._leave()
                raise
        return url

    def stop(self) -> bool:
        """Leave the server; True if this was its last user and stopped it."""
        with _locked(self.folder / "lock"):
            if self._users is None or not self._leave():
                return False
            self._note.unlink(missing_ok=True)
            stopped = self._control("stop", "-m", "fast", "-w")[0] == 0
            if (sockets := self._socket_folder()) != self._data.parent:
                sockets.rmdir()
            return stopped

    def crash(self) -> float:
        """Stop the server without a checkpoint and start it again; how many seconds it took."""
        began = time.monotonic()
        with _locked(self.folder / "lock"):
            self._control("stop", "-m", "immediate", "-w")
            self._settle()
        return time.monotonic() - began

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        address = self._address()
        if address is None:
            raise PostgresError(f"The server in {self.folder} is not running.")
        return address.url(self.database)

    @property
    def pid(self) -> int | None:
        lines = self._pid_file()
        return abs(int(lines[0])) if lines else None

    def _leave(self) -> bool:
        users, self._users = self._users, None
        assert users is not None
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(users)
        return True

    def _locate(self) -> None:
        found = find_binaries()
        self._binaries = reachable_binaries(found, self._account, self.folder)
        home = _own_folder(self.folder / "postgres", self._account)
        self._data = home / str(major_version(self._binaries, self._account))

    def _ensure_running(self) -> str:
        if not self._data.exists():
            self._initdb()
        self._settle()
        return self.url

    def _settle(self) -> None:
        """Start the server unless it runs; return when it answers."""
        patience = time.monotonic() + RETRY_SECONDS
        while problem := self._start_unless_running() or self._greet():
            if time.monotonic() > patience:
                raise PostgresError(f"PostgreSQL did not start in {self._data}: {problem}")
            time.sleep(0.1)

    def _start_unless_running(self) -> str | None:
        # pg_ctl believes a process id; the pid of a dead server may be a zombie's or a stranger's.
        if self._control("status")[0] == 0 and not self._recall_pid():
            return None
        code, output = self._control("start", "-w", "-t", "60", "-o", self._arguments())
        return None if code == 0 else f"{output.strip()}\n{self._log_tail()}"

    def _greet(self) -> str | None:
        """Make the database, trying while the server lives; what hindered it, or None."""
        deadline = time.monotonic() + START_SECONDS
        problem = "it wrote no postmaster.pid"
        while (pid := self.pid) and _works_in(pid, self._data) and time.monotonic() < deadline:
            if address := self._address():
                self._refuse_unless_suitable(address)
                try:
                    self._create_database(address)
                except psycopg.OperationalError as error:
                    problem = str(error)
                else:
                    return None
            time.sleep(0.05)
        return problem

    def _refuse_unless_suitable(self, address: Address) -> None:
        if self.tcp and not address.listens:
            raise PostgresError(
                f"The server in {self.folder} is in use without a TCP port: "
                "stop its users, or use another folder."
            )

    def _recall_pid(self) -> bool:
        """Make postmaster.pid name nobody, where its pid is not this folder's server."""
        pid = self.pid
        if pid is None or _works_in(pid, self._data):
            return False
        # Not deleted: the rest of the file lets PostgreSQL look for survivors of the old server.
        file = self._data / "postmaster.pid"
        file.write_text("\n".join([str(IMPOSSIBLE_PID), *self._pid_file()[1:]]) + "\n")
        return True

    def _initdb(self) -> None:
        unfinished = self._data.with_suffix(".new")
        shutil.rmtree(unfinished, ignore_errors=True)
        password = self._data.with_suffix(".password")
        password.write_text(secrets.token_urlsafe(24))
        os.chmod(password, 0o600)
        os.chown(password, self._account.uid, self._account.gid)
        options = ["-U", "postgres", "-E", "UTF8", "--no-locale", "--no-sync", "--no-instructions"]
        login = ["--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={password}"]
        initdb = self._binaries / "initdb"
        code, output = self._account.run([initdb, "-D", unfinished, *options, *login])
        if code != 0:
            raise PostgresError(f"initdb failed in {unfinished}: {output.strip()[-1000:]}")
        unfinished.rename(self._data)

    def _control(self, *arguments: str) -> tuple[int, str]:
        log = self._data.with_suffix(".log")
        pg_ctl = self._binaries / "pg_ctl"
        return self._account.run([pg_ctl, "-D", self._data, "-l", log, *arguments])

    def _arguments(self) -> str:
        settings = {
            "listen_addresses": "127.0.0.1" if self.tcp else "",
            "port": str(_free_port() if self.tcp else 5432),
            "unix_socket_directories": str(self._socket_folder()),
            "max_connections": "200",
            **self.settings,
        }
        return " ".join(f"-c {shlex.quote(f'{key}={value}')}" for key, value in settings.items())

    def _socket_folder(self) -> Path:
        home = self._data.parent
        socket_name = os.fsencode(home / ".s.PGSQL.65535")
        if len(socket_name) <= SOCKET_PATH_BYTES and re.fullmatch(rb"[\w/.+-]+", socket_name):
            return home
        return _own_folder(Path("/tmp") / f"{_nickname(self.folder)}.s", self._account)  # noqa: S108 - its owner is checked

    def _pid_file(self) -> list[str]:
        with suppress(FileNotFoundError):
            return (self._data / "postmaster.pid").read_text().splitlines()
        return []

    def _address(self) -> Address | None:
        lines = self._pid_file()
        if len(lines) < 6:  # written in steps while the server starts
            return None
        password = self._data.with_suffix(".password").read_text()
        return Address(Path(lines[4]), int(lines[3]), lines[5].strip(), password)

    def _create_database(self, address: Address) -> None:
        with psycopg.connect(
            address.url("postgres"), autocommit=True, connect_timeout=5
        ) as connection:
            exists = "SELECT 1 FROM pg_database WHERE datname = %s"
            if not connection.execute(exists, [self.database]).fetchone():
                name = psycopg.sql.Identifier(self.database)
                connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(name))

    def _log_tail(self) -> str:
        with suppress(FileNotFoundError):
            return self._data.with_suffix(".log").read_text(errors="replace")[-800:]
        return ""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a running server listens, from its own postmaster.pid."""

    sockets: Path
    port: int
    listens: str
    password: str

    def url(self, database: str) -> str:
        if self.listens:
            return f"postgresql://postgres:{self.password}@{self.listens}:{self.port}/{database}"
        return f"postgresql://postgres@{quote(str(self.sockets), safe='')}:{self.port}/{database}"


def noted_url(folder: Path) -> str | None:
    """Return the URL that a start noted in `folder`, of a server that may run or not."""
    with suppress(OSError):
        return (folder / "url").read_text().strip() or None
    return None


def _write_note(file: Path, url: str) -> None:
    with suppress(OSError):  # a convenience for other commands; the folder may not be ours
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(url + "\n")
        file.chmod(0o600)


def _usable_folder(folder: Path, account: Account) -> Path:
    """Return `folder`, made if need be, or its stand-in where we or the server can't use it."""
    name = _nickname(folder)
    candidates = [folder, Path(tempfile.gettempdir()) / name, Path("/tmp") / name]  # noqa: S108 - its owner is checked
    for candidate in candidates:
        if set(str(candidate)) & set('"$`\\'):  # pg_ctl hands its paths to a shell
            continue
        try:
            candidate.mkdir(mode=0o755, parents=candidate is folder, exist_ok=True)
        except OSError:
            continue
        if _is_ours(candidate, os.geteuid()) and account.reaches(candidate):
            return candidate.resolve()
    raise PostgresError(
        f"Neither {folder} nor {candidates[-1]} can hold a database: make one of them a folder "
        "of yours, or set DATABASE_URL."
    )


def _own_folder(folder: Path, account: Account) -> Path:
    """Make a folder that nobody but the account (and root) can enter."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        os.chown(folder, account.uid, account.gid)
    if not _is_ours(folder, account.uid):
        raise PostgresError(f"{folder} belongs to another user: remove it, or set DATABASE_URL.")
    return folder


def _is_ours(folder: Path, uid: int) -> bool:
    found = folder.lstat()
    return folder.is_dir() and not folder.is_symlink() and found.st_uid == uid


def _nickname(folder: Path) -> str:
    digest = hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()
    return f"agentruns-{os.geteuid()}-{digest[:10]}"


def _works_in(pid: int, data: Path) -> bool:
    """Say whether a process is the server of `data`: a server's working folder is its data."""
    process = Path(f"/proc/{pid}")
    if Path("/proc/self").exists():
        try:
            return (process / "cwd").resolve(strict=True) == data.resolve()
        except OSError:  # gone, a zombie, or somebody else's
            return False
    code, output = Account(os.geteuid(), os.getegid()).run(["ps", "-o", "command=", "-p", str(pid)])
    return code == 0 and str(data) in output


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _open(file: Path) -> int:
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    lock = _open(file)
    deadline = time.monotonic() + LOCK_SECONDS
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise PostgresError(
                        f"Another process has held {file} for {LOCK_SECONDS} s: end it first."
                    ) from None
                time.sleep(0.02)
        yield
    finally:
        os.close(lock)
