"""What goes into the machine: its initial file system and its durable memory.

The guest's whole RAM is one host file; a part of it is declared persistent on the kernel's command line, so what is stored there
outlives the machine as DIMMs with a battery would:

    ram.img   0 ............ 768M ................ 768M + P ........ 1000M + P
              | ordinary RAM  | /dev/pmem0 (P MB)   | ordinary RAM  |
                                ext4 or xfs, -o dax=always

What must always hold: ram.img is written by this program before the first boot of a run and never between two boots.
"""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

PMEM_AT_MB = 768
TAIL_MB = 232  # RAM above the persistent part: the firmware puts the initial file system there


def build_initramfs(kernel, door: pathlib.Path, programs: list[pathlib.Path], work: pathlib.Path) -> pathlib.Path:
    """What a door needs: its scripts, and `programs` with their shared libraries."""
    scripts = {"init": pathlib.Path(__file__).with_name("init"), "door/load": door / "load", "door/check": door / "check"}
    return pack_initramfs(kernel, scripts, programs, work)


def pack_initramfs(kernel, scripts: dict[str, pathlib.Path], programs: list[pathlib.Path], work: pathlib.Path) -> pathlib.Path:
    """busybox, the modules, `scripts` by their names in the guest (`init` is the first process), and `programs`: files in /bin, folders below /."""
    root = work / "root"
    shutil.rmtree(root, ignore_errors=True)
    for sub in ("bin", "mod", "door", "proc", "sys", "dev", "mnt", "tmp", "etc"):
        (root / sub).mkdir(parents=True)
    shutil.copy(shutil.which("busybox"), root / "bin/busybox")
    for module in kernel.modules:
        shutil.copy(module, root / "mod" / module.name)
    (root / "mod/order").write_text("".join(f"{module.name}\n" for module in kernel.modules))
    for name, script in scripts.items():
        shutil.copy(script, root / name)
    (root / "init").chmod(0o755)
    for program in programs:
        (_install_folder if program.is_dir() else _install)(program, root)

    archive = work / "initramfs"
    names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*"))) + "\n"
    with open(archive, "wb") as out:
        subprocess.run(["cpio", "--quiet", "-o", "-H", "newc", "-R", "0:0"], cwd=root, input=names.encode(), stdout=out, check=True)
    return archive


def libraries_of(program: pathlib.Path, own: frozenset = frozenset()) -> list[str]:
    """The shared libraries and the ld.so of a program, by the names under which it asks for them; not its `own`, which it finds by itself."""
    listed = subprocess.run(["ldd", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    if any("not found" in line and line.split()[0] not in own for line in listed.splitlines()):
        raise RuntimeError(f"{program} misses a library:\n{listed}")
    return [path for path in re.findall(r"(?:=> )?(/\S+) \(0x", listed) if pathlib.Path(path).name not in own]


def copy_libraries(program: pathlib.Path, root: pathlib.Path, own: frozenset = frozenset()) -> None:
    """Puts them under `root`, where they are not there yet."""
    for library in libraries_of(program, own):
        to = root / library.lstrip("/")
        if not to.exists():
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, to)  # follows links: the name is what the loader asks for


def _install(program: pathlib.Path, root: pathlib.Path) -> None:
    target = root / "bin" / program.name
    # Debug information would only slow the boot.
    if shutil.which("strip") is None or subprocess.run(["strip", "-o", target, program], stderr=subprocess.DEVNULL).returncode != 0:
        shutil.copy(program, target)
    target.chmod(0o755)
    copy_libraries(program, root)


def _install_folder(folder: pathlib.Path, root: pathlib.Path) -> None:
    """A program of many files, and the libraries that those ask for."""
    shutil.copytree(folder, root / folder.name, symlinks=True)
    files = [file for file in folder.rglob("*") if file.is_file()]
    own = frozenset(file.name for file in files)
    for file in files:
        with open(file, "rb") as opened:
            if opened.read(4) == b"\x7fELF":
                copy_libraries(file, root, own)


def ram_mb(pmem_mb: int) -> int:
    """Size of the machine's RAM, persistent part included."""
    return PMEM_AT_MB + pmem_mb + TAIL_MB


@contextlib.contextmanager
def durable_memory(pmem_mb: int, cache: pathlib.Path):
    """A place for the guest's RAM: host memory if there is plenty, else the disk."""
    need = ram_mb(pmem_mb) << 20
    shm = pathlib.Path("/dev/shm")
    roomy = shm.is_dir() and os.access(shm, os.W_OK) and shutil.disk_usage(shm).free > 2 * need
    with tempfile.TemporaryDirectory(prefix="towa-vm-", dir=shm if roomy else cache) as folder:
        yield pathlib.Path(folder) / "ram.img"


def make_ram(ram: pathlib.Path, fs: str, pmem_mb: int, work: pathlib.Path) -> None:
    """Fresh RAM with an empty `fs` in its persistent part."""
    disk = work / "mkfs.img"
    with open(disk, "wb") as file:
        file.truncate(pmem_mb << 20)
    if fs == "ext4":
        make = ["mkfs.ext4", "-q", "-F", "-b", "4096", str(disk)]
    else:  # reflink and DAX together are what a checkpoint by FICLONE needs
        make = ["mkfs.xfs", "-q", "-f", "-m", "reflink=1", str(disk)]
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    subprocess.run(make, check=True, env={**os.environ, "PATH": path})
    fill_ram(ram, disk, pmem_mb)
    disk.unlink()


def fill_ram(ram: pathlib.Path, disk: pathlib.Path, pmem_mb: int) -> None:
    """Fresh RAM with the file system image `disk` in its persistent part."""
    ram.unlink(missing_ok=True)
    with open(ram, "wb") as file:
        file.truncate(ram_mb(pmem_mb) << 20)
    _copy_sparse(disk, 0, ram, PMEM_AT_MB << 20, pmem_mb << 20)


def save_pmem(ram: pathlib.Path, pmem_mb: int, to: pathlib.Path) -> None:
    """Keeps the persistent part, for a look after a failure (`mount -o loop,ro`)."""
    with open(to, "wb") as file:
        file.truncate(pmem_mb << 20)
    _copy_sparse(ram, PMEM_AT_MB << 20, to, 0, pmem_mb << 20)


def _copy_sparse(source: pathlib.Path, source_at: int, target: pathlib.Path, target_at: int, length: int) -> None:
    block = 1 << 20
    zero = bytes(block)
    with open(source, "rb") as reader, open(target, "r+b") as writer:
        reader.seek(source_at)
        for offset in range(0, length, block):
            data = reader.read(min(block, length - offset))
            if data != zero[: len(data)]:
                writer.seek(target_at + offset)
                writer.write(data)
