"""Debian's stock kernel for the guest: fetched, unpacked, never installed.

    target/vm/kernel-SUITE/vmlinuz
                           modules/NAME.ko     uncompressed
                           order               names in the order of loading, one a line
                           wanted              the names that were asked for (WANTED), to see when they have become more
                           package             which package it came from

What must always hold: the host's own apt state is not touched (everything lives under target/vm), signatures are checked with
Debian's keyring, and a directory without `package` is an unfinished fetch that the next run starts again.
"""

import lzma
import os
import pathlib
import re
import shutil
import subprocess

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
MIRROR = os.environ.get("TOWA_DEBIAN_MIRROR", "http://deb.debian.org/debian")
# What the guest loads; their dependencies are found in the modules themselves. crc32c_generic is no dependency on paper: ext4 and
# xfs ask the crypto layer for "crc32c" by name. virtio is for guests with a disk, loop for file systems in files on it. A name that a
# kernel has built in is passed over.
WANTED = ["crc32c_generic", "nd_pmem", "nd_e820", "ext4", "xfs", "virtio_pci", "virtio_blk", "loop"]


class Unobtainable(Exception):
    """The kernel cannot be had here and now; the caller skips, loudly."""


class Kernel:
    """A fetched kernel."""

    def __init__(self, home: pathlib.Path):
        self.home = home
        self.image = home / "vmlinuz"
        self.package = (home / "package").read_text().strip()
        self.modules = [home / "modules" / f"{name}.ko" for name in (home / "order").read_text().split()]


def fetch(suite: str, cache: pathlib.Path) -> Kernel:
    """The kernel of Debian `suite`, from the cache or else from the mirror."""
    home = cache / f"kernel-{suite}"
    if not (home / "package").exists() or _wanted_then(home) != WANTED:
        if os.uname().machine != "x86_64":
            raise Unobtainable(f"the guest is x86-64 and takes the host's programs; this host is {os.uname().machine}")
        for tool, package in (("apt-get", "apt"), ("dpkg-deb", "dpkg")):
            if shutil.which(tool) is None:
                raise Unobtainable(f"{tool} (package {package}) is needed to fetch Debian's kernel")
        if not os.path.exists(KEYRING):
            raise Unobtainable(f"{KEYRING} is missing; run scripts/setup")
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        try:
            _fetch_into(home, suite)
        finally:
            for scratch in ("apt", "unpacked"):
                shutil.rmtree(home / scratch, ignore_errors=True)
    return Kernel(home)


def _wanted_then(home: pathlib.Path) -> list[str]:
    """What the cached kernel was fetched for."""
    path = home / "wanted"
    return path.read_text().split() if path.exists() else []


def _fetch_into(home: pathlib.Path, suite: str) -> None:
    apt = home / "apt"
    for sub in ("lists/partial", "archives/partial"):
        (apt / sub).mkdir(parents=True)
    (apt / "sources.list").write_text(f"deb [arch=amd64 signed-by={KEYRING}] {MIRROR} {suite} main\n")
    (apt / "status").write_text("")
    options = [
        f"Dir::Etc::SourceList={apt}/sources.list", "Dir::Etc::SourceParts=-", "Dir::Etc::Preferences=-", "Dir::Etc::PreferencesParts=-",
        f"Dir::State::Lists={apt}/lists", f"Dir::State::status={apt}/status", f"Dir::Cache={apt}", f"Dir::Cache::archives={apt}/archives",
        "APT::Architecture=amd64", "APT::Architectures=amd64", "APT::Sandbox::User=root", "Acquire::Languages=none",
        "Acquire::http::Timeout=30", "Acquire::Retries=2",
    ]
    flags = [word for option in options for word in ("-o", option)]

    print(f"vm: fetching the kernel of Debian {suite} from {MIRROR}", flush=True)
    _run(["apt-get", "-qq", *flags, "update"], home)
    depends = _run(["apt-cache", *flags, "depends", "linux-image-amd64"], home)
    found = re.search(r"Depends: (linux-image-\d\S*)", depends)
    if found is None:
        raise Unobtainable(f"linux-image-amd64 of {suite} names no kernel package:\n{depends}")
    _run(["apt-get", "-qq", *flags, "download", found[1]], apt)
    archive = next(apt.glob("linux-image-*.deb"))
    _run(["dpkg-deb", "-x", str(archive), str(home / "unpacked")], home)

    shutil.copy(next((home / "unpacked/boot").glob("vmlinuz-*")), home / "vmlinuz")
    _take_modules(home / "unpacked", home)
    (home / "wanted").write_text("\n".join(WANTED) + "\n")
    (home / "package").write_text(archive.name + "\n")  # last: it says that all the rest is complete
    print(f"vm: {archive.name}: {len((home / 'order').read_text().split())} modules", flush=True)


def _run(command: list[str], cwd: pathlib.Path) -> str:
    done = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
    if done.returncode != 0:
        raise Unobtainable(f"`{' '.join(command)}` failed ({done.returncode}):\n{done.stdout[-2000:]}")
    return done.stdout


def _take_modules(unpacked: pathlib.Path, home: pathlib.Path) -> None:
    """Copies WANTED and what they depend on, uncompressed, dependencies first in `order`."""
    available = {}
    for path in unpacked.rglob("*.ko*"):
        if path.name.endswith((".ko", ".ko.xz")):
            available[path.name.split(".ko")[0].replace("-", "_")] = path
    (home / "modules").mkdir()
    order: list[str] = []

    def take(name: str) -> None:
        if name in order or name not in available:
            return
        content = available[name].read_bytes()
        if available[name].suffix == ".xz":
            content = lzma.decompress(content)
        found = re.search(rb"\0depends=([^\0]*)\0", content)
        for dependency in (found[1].decode() if found else "").replace("-", "_").split(","):
            if dependency:
                take(dependency)
        (home / "modules" / f"{name}.ko").write_bytes(content)
        order.append(name)

    for name in WANTED:
        take(name)
    for name in ("nd_pmem", "nd_e820"):
        if name not in order:
            raise Unobtainable(f"the kernel has no module {name}: no DAX memory without it")
    (home / "order").write_text("\n".join(order) + "\n")
