"""The boot experiment's userland: the host's own programs and libraries in a small Debian-like tree, in three layouts.

    layout      root disk (/dev/vda)             durable memory (/dev/pmem0, DAX, mounted at /nvm)
    whole       programs and libraries           nothing that is used
    split       programs without their text      /nvm/text: the store of texts, of the libraries' as well
    whole-dax   no programs                      /nvm/usr, which is mounted over /usr: programs and libraries, whole

What must always hold: programs are split inside the tree (chroot), so every absolute path in them is the guest's; mounts are made in
a mount namespace that ends with the program that needed them, so nothing is left on the host however this ends.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess

import guest

HERE = pathlib.Path(__file__).resolve().parent
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
STORE = "/nvm/text"
# What the boot scripts in rootfs/ use, by package; all of it is essential or important on Debian, or in scripts/setup.
PROGRAMS = {
    "dash": "dash", "bash": "bash", "mawk": "mawk", "sed": "sed", "grep": "grep", "perl": "perl-base", "tar": "tar", "gzip": "gzip",
    "find": "findutils", "xargs": "findutils", "hostname": "hostname", "ip": "iproute2",
    **dict.fromkeys("mount umount findmnt blkid dmesg agetty".split(), "util-linux"), "login": "login",
    **dict.fromkeys("ps free sysctl pgrep".split(), "procps"),
    **dict.fromkeys(
        "basename cat chmod chown cp cut date dd df du head id install ln ls mkdir mktemp mv rm rmdir seq sleep sort stat sync tail tee"
        " test touch tr uname uniq wc".split(),
        "coreutils",
    ),
}
ALIASES = {"sh": "dash", "awk": "mawk"}
ETC = {
    "hostname": "towa\n",
    "passwd": "root:x:0:0:root:/root:/bin/bash\n",
    "group": "root:x:0:\ntty:x:5:\nutmp:x:43:\n",
    "issue": "A userland whose programs may lie in two files \\l\n\n",
    "fstab": "/dev/vda / ext4 defaults 0 1\n",
}


class Missing(Exception):
    """The host lacks something; the caller skips, loudly."""


@dataclasses.dataclass
class Layout:
    """One way to lay the same programs out."""

    name: str
    usr: str  # where /usr is: "disk" or "nvm"
    root: pathlib.Path  # image of the root disk
    nvm: pathlib.Path  # image of the durable memory
    tree: pathlib.Path  # where the files of both are on the host: tree/nvm is the durable memory's


@dataclasses.dataclass
class Userland:
    """What was made."""

    layouts: dict[str, Layout]
    texts: dict[str, str]  # of an XYZ, by its name in the store: the path of the program or library whose text it is
    originals: pathlib.Path  # the tree with the whole files


def find(name: str) -> pathlib.Path:
    found = shutil.which(name, path=PATH)
    if found is None:
        raise Missing(f"{name} (package {PROGRAMS.get(name, '?')})")
    return pathlib.Path(found)


def assemble(tree: pathlib.Path, extra: dict[str, pathlib.Path]) -> None:
    """Fills `tree` with programs, their libraries and the boot scripts; `extra`: more programs by path."""
    for sub in "usr/bin usr/sbin usr/lib usr/lib64 etc/towa dev proc sys run tmp root nvm var/log var/tmp var/lib".split():
        (tree / sub).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (tree / name).symlink_to(f"usr/{name}")
    programs, missing = {}, []
    for name in PROGRAMS:
        try:
            source = find(name)
            programs[f"/usr/{source.parent.name}/{name}"] = source
        except Missing as why:
            missing.append(str(why))
    if missing:
        raise Missing(", ".join(missing))
    programs.update(extra)
    for path, source in programs.items():
        target = tree / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
        target.chmod(0o755)  # root runs them: the set-user bit of mount would only matter to others
        guest.copy_libraries(source, tree)
    for name, program in ALIASES.items():
        (tree / "usr/bin" / name).symlink_to(program)
    for name, content in ETC.items():
        (tree / "etc" / name).write_text(content)
    shutil.copytree(HERE / "rootfs/rc.d", tree / "etc/rc.d")
    shutil.copy(HERE / "rootfs/sbin-init", tree / "usr/sbin/init")


def as_root(command: list[str]) -> subprocess.CompletedProcess:
    """Runs a command as root with mounts of its own; who is not root becomes it in a user namespace."""
    enter = ["unshare", "--mount", "--propagation", "private", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    return subprocess.run([*enter, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def split(tree: pathlib.Path, what: list[str], towa: pathlib.Path, huge: bool) -> None:
    """Splits programs, and all that can be split in directories, with their libraries, in the tree, into /nvm/text."""
    guest.copy_libraries(towa, tree)
    shutil.copy(towa, tree / "towa")
    # /dev is the host's for a moment: towa starts what it has split, with /dev/null as input.
    script = 'mount --rbind /dev "$1/dev" && root=$1 && shift && exec chroot "$root" /towa xip split "$@"'
    # Temporary directories may lie on tmpfs; the store goes into an image.
    options = ["--store", STORE, "--volatile", "--libs", *(["--huge"] if huge else [])]
    done = as_root(["sh", "-c", script, "sh", str(tree), *options, *what])
    (tree / "towa").unlink()
    if done.returncode != 0:
        raise RuntimeError(f"towa xip split failed ({done.returncode}):\n{done.stdout[-3000:]}")


# Of mkfs.ext4, for mappings with huge pages: every file begins at 2 MiB and has whole 2 MiB; and the same for files that are large alone.
EVERY_FILE_HUGE = ["-O", "bigalloc", "-C", str(2 << 20), "-N", "2048"]
LARGE_FILES_HUGE = ["-E", "stride=512,stripe-width=512"]


def make_ext4(image: pathlib.Path, tree: pathlib.Path, size_mb: int, options: list[str] | None = None) -> None:
    """An ext4 with the files of `tree`."""
    image.unlink(missing_ok=True)
    with open(image, "wb") as file:
        file.truncate(size_mb << 20)
    mkfs = shutil.which("mkfs.ext4", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    done = as_root([mkfs, "-q", "-F", "-b", "4096", "-m", "0", *(options or []), "-d", str(tree), str(image)])
    if done.returncode != 0:
        raise RuntimeError(f"mkfs.ext4 failed ({done.returncode}):\n{done.stdout[-2000:]}")


def make(
    work: pathlib.Path, towa: pathlib.Path, pmem_mb: int, extra: dict[str, pathlib.Path], files: dict[str, bytes], huge: bool
) -> Userland:
    """The layouts. `files`: more files by path. `huge`: one more, `split-huge`."""
    originals = work / "whole"
    assemble(originals, extra)
    for path, content in files.items():
        (originals / path.lstrip("/")).write_bytes(content)
    layouts, texts = {}, {}
    for name in ["whole", "split", "whole-dax", *(["split-huge"] if huge else [])]:
        tree = originals if name == "whole" else work / name
        if name != "whole":
            copied = subprocess.run(["cp", "-a", "--sparse=never", originals, tree], stderr=subprocess.PIPE, text=True)
            if copied.returncode != 0:
                raise RuntimeError(copied.stderr)
        usr = "disk"
        if name.startswith("split"):
            # With huge pages only what a layout is made for: each text takes two of them at least.
            split(tree, sorted(extra) if name == "split-huge" else ["/usr/bin", "/usr/sbin", *sorted(extra)], towa, name == "split-huge")
        if name == "whole-dax":
            usr = "nvm"
            (tree / "usr").rename(tree / "nvm/usr")
            (tree / "usr").mkdir()
        layouts[name] = make_images(work, name, usr, tree, pmem_mb)
    for path in originals.rglob("*"):
        if path.is_file() and not path.is_symlink():
            key = hashlib.sha256(path.read_bytes()).hexdigest()[:32]
            texts[f"{STORE}/xyz/{key[:2]}/{key[2:]}.xyz"] = "/" + str(path.relative_to(originals))
    return Userland(layouts, texts, originals)


def link_libraries(store: pathlib.Path, image: pathlib.Path) -> None:
    """Links the texts of libraries by the state that their files have in the image of the root disk: there they are other files.

    What `towa xip split` does in a system that runs (crates/xip/src/store/identity.rs says what a state is)."""
    entries = [json.loads(path.read_text()) for path in sorted((store / "files").glob("*.json"))]
    keys = {entry["path"]: entry["key"] for entry in entries if entry["library"]}
    commands = "".join(f'stat "{path}"\n' for path in keys)
    debugfs = shutil.which("debugfs", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    done = subprocess.run([debugfs, "-f", "-", str(image)], input=commands, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said = done.stdout.split("debugfs: stat ")[1:]
    if len(said) != len(keys):
        raise RuntimeError(f"debugfs said something else:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    for path, words in zip(keys, said):
        inode, size = (int(re.search(rf"\b{name}: *(\d+)", words)[1]) for name in ("Inode", "Size"))
        times = (re.search(rf"\b{name}: 0x([0-9a-f]+)(?::([0-9a-f]+))?", words) for name in ("mtime", "ctime"))
        (modified, modified_ns), (changed, changed_ns) = ((int(time[1], 16), int(time[2] or "0", 16) >> 2) for time in times)
        state = struct.pack("<4Q2I", inode, size, modified, changed, modified_ns, changed_ns).hex()
        link = store / "lib" / state[:2] / f"{state[2:]}.xyz"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../xyz/{keys[path][:2]}/{keys[path][2:32]}.xyz")


def make_images(work: pathlib.Path, name: str, usr: str, tree: pathlib.Path, pmem_mb: int) -> Layout:
    """The two images of a layout."""
    nvm = tree / "nvm"
    aside = work / f"{name}-nvm"
    nvm.rename(aside)
    nvm.mkdir()
    used_mb = sum(path.lstat().st_blocks for path in tree.rglob("*")) >> 11
    layout = Layout(name, usr, work / f"{name}.root.img", work / f"{name}.nvm.img", tree)
    make_ext4(layout.root, tree, used_mb + used_mb // 4 + 64)
    if name.startswith("split"):
        link_libraries(aside / "text", layout.root)
    make_ext4(layout.nvm, aside, pmem_mb, EVERY_FILE_HUGE if name == "split-huge" else [])
    nvm.rmdir()
    aside.rename(nvm)
    return layout
