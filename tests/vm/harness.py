"""What the experiments with a userland (`boot`, `matrix`) share: what they need of the host, and how they wait for a guest."""

import os
import pathlib
import shutil
import subprocess
import time

import machine as machines
import userland

HERE = pathlib.Path(__file__).resolve().parent
REPO = HERE.parent.parent
CACHE = REPO / "target/vm"
SKIPPED = 77
SUITE = "trixie"  # whose kernel: older ones cannot trace a fault together with its mapping's file


class Failure(Exception):
    """What must hold does not, or the harness could not find out."""


def wait(vm: machines.Machine, for_what: str, limit_s: float) -> tuple[float, list[str]]:
    """Waits for the guest to say so; gives the time, and the words that followed."""
    heard: list[str] = []

    def hear(said: str):
        if said.startswith("vm: BROKEN"):
            return said
        if f"{said} ".startswith(f"vm: {for_what} "):
            heard.extend(said.removeprefix(f"vm: {for_what}").split())
            return "said"
        return None

    outcome = machines.wait_until(vm, time.monotonic() + limit_s, hear)
    if outcome != "said":
        raise Failure(f"waiting for {for_what}: {outcome}\n--- end of the console\n{vm.report()}")
    return time.monotonic(), heard


def built_towa(given: str | None) -> pathlib.Path:
    """The command line tool, built if none is given."""
    if given:
        return pathlib.Path(given).resolve()
    built = subprocess.run(["cargo", "build", "--release", "-p", "towa-cli"], cwd=REPO, stdin=subprocess.DEVNULL)
    if built.returncode != 0:
        raise Failure("towa cannot be built")
    return REPO / "target/release/towa"


def missing_tools() -> list[str]:
    """What the host lacks, with the packages that have it."""
    needed = {
        "qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "cpio": "cpio", "mkfs.ext4": "e2fsprogs",
        "unshare": "util-linux", "chroot": "coreutils", "ldd": "libc-bin",
    }
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [f"{tool} (package {package})" for tool, package in needed.items() if shutil.which(tool, path=path) is None]
    if not missing and userland.as_root(["true"]).returncode != 0:
        missing.append("the right to have mounts of one's own (root, or user namespaces)")
    return missing
