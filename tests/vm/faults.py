"""What the guest's trace says: page faults and pages read from the disk, by class.

The classes are the paper's: text or data of a program or of a library (libraries include ld.so), and other: stack, heap, bss, what
else is mapped. Two are ours, told apart because the paper's kernel does not have them: `record`, the page of a split program's own
file that says where its text is; and `loader`, what maps that text.

What must always hold: a fault counts once, when it has been served (the kernel repeats some after it has slept); it is major when
the kernel says so; a page of a file is text if an executable segment of the *original* program covers it, wherever it lies now.
"""

import collections
import dataclasses
import os
import pathlib
import re
import struct

PAGE = 4096
CLASSES = ("program text", "program data", "library text", "library data", "record", "loader", "other")
# Of the kernel's vm_fault_reason and fault_flag.
FAILED, MAJOR, RETRY = 0x1 | 0x2 | 0x10 | 0x20 | 0x40, 0x4, 0x400
WRITE, TRIED = 0x1, 0x20

_LINE = re.compile(r"^\s*(.+)-(\d+)\s+\[\d+\]\s+\S+\s+([\d.]+): (\w+): (.*)$")
_FAULT = re.compile(r"ret=(\S+) addr=(\S+) how=(\S+) start=(\S+) pgoff=(\S+) ino=(\S+) dev=(\S+)$")
_CACHED = re.compile(r"dev (\d+):(\d+) ino ([0-9a-f]+) pfn=\S+ ofs=(\d+)(?: order=(\d+))?")
_REQUEST = re.compile(r"(\d+),(\d+) (\S+) \d+ \([^)]*\) \d+ \+ (\d+)")


@dataclasses.dataclass
class Fault:
    """One fault that was served."""

    comm: str
    major: bool
    write: bool
    file: tuple | None  # (device, inode), None without a file
    page: int  # of the file


@dataclasses.dataclass
class Trace:
    """What `report` wrote."""

    faults: list = dataclasses.field(default_factory=list)
    cached: list = dataclasses.field(default_factory=list)  # (device, inode), page: put into the page cache
    forks: int = 0
    execs: list = dataclasses.field(default_factory=list)
    requests: int = 0  # reads of the root disk
    read_pages: int = 0  # by these
    names: dict = dataclasses.field(default_factory=dict)  # (device, inode): names
    vmstat: dict = dataclasses.field(default_factory=dict)  # the kernel's own sums
    lost: int = 0


def parse(text: str) -> Trace:
    trace = Trace()
    devices: dict[str, str] = {}
    reporter = -1
    head, _, body = text.partition("\ntrace\n")
    for line in head.splitlines():
        words = line.split(" ", 3)
        if words[0] in ("before", "after"):
            trace.vmstat[words[1]] = trace.vmstat.get(words[1], 0) + int(words[2]) * (1 if words[0] == "after" else -1)
        elif words[0] == "self":
            reporter = int(words[1])
        elif words[0] == "device":
            devices[words[2]] = words[1]
        elif words[0] == "file":
            trace.names.setdefault((words[1], int(words[2])), []).append(words[3].removeprefix("/root") if words[1] == "root" else words[3])
    for line in body.splitlines():
        if line.startswith("#"):
            if found := re.search(r"entries-in-buffer/entries-written: (\d+)/(\d+)", line):
                trace.lost = int(found[2]) - int(found[1])
            continue
        if (found := _LINE.match(line)) is not None:
            _take(trace, devices, reporter, found[1].strip(), int(found[2]), found[4], found[5])
    return trace


def _take(trace: Trace, devices: dict, reporter: int, comm: str, pid: int, event: str, said: str) -> None:
    if event == "fault" and pid != reporter and (found := _FAULT.search(said)) is not None:
        ret, address, how = (int(found[n], 16) for n in (1, 2, 3))
        if ret & (FAILED | RETRY):
            return
        file, page = None, 0
        if "fault" not in found[6]:  # no file: the kernel's "(fault)" for what cannot be read
            number = int(found[7])
            file = (devices.get(f"{number >> 20}:{number & 0xFFFFF}", "elsewhere"), int(found[6]))
            page = int(found[5], 16) + (address - int(found[4], 16)) // PAGE
        trace.faults.append(Fault(comm, bool(ret & MAJOR or how & TRIED), bool(how & WRITE), file, page))
    elif event == "mm_filemap_add_to_page_cache" and (found := _CACHED.match(said)) is not None:
        device = devices.get(f"{found[1]}:{found[2]}")
        for page in range(1 << int(found[5] or 0)):
            trace.cached.append(((device, int(found[3], 16)), int(found[4]) // PAGE + page))
    elif event == "sched_process_fork":
        trace.forks += 1
    elif event == "sched_process_exec":
        trace.execs.append(re.search(r"filename=(\S+)", said)[1])
    elif event == "block_rq_issue" and (found := _REQUEST.match(said)) is not None:
        if devices.get(f"{found[1]}:{found[2]}") == "root" and found[3].startswith("R"):
            trace.requests += 1
            trace.read_pages += int(found[4]) // 8


class Files:
    """Knows what each page of each file is. `tree` is the layout's on the host, `originals` that of the whole files."""

    def __init__(self, tree: pathlib.Path, originals: pathlib.Path, texts: dict[str, str]):
        self.tree, self.originals, self.texts = tree, originals, texts
        # The programs that have a text in the store, and the names of those that lie here whole; what is a library has both.
        self.split = {origin for text, origin in texts.items() if (tree / text.lstrip("/")).exists()}
        programs = [f"/{path.relative_to(originals)}" for path in originals.glob("usr/*bin/*") if path.is_file()]
        self.whole = {os.path.basename(path) for path in programs if path not in self.split}
        # Split, but their libraries keep their own text: they have much thread-local storage (see docs/xip.md).
        self.own_libraries = {os.path.basename(path) for path in programs if path in self.split and not takes_libraries(tree / path.lstrip("/"))}
        self.text_pages: dict[str, list] = {}
        self.data_pages: dict[str, list] = {}

    def origin(self, file, names: dict) -> str | None:
        """The path of the program or library that a file is, or whose text it is; else its own."""
        paths = names.get(file, [])
        for path in paths:
            if path in self.texts:
                return self.texts[path]
        if file is not None and file[0] == "nvm" and paths and paths[0].startswith("/nvm/usr/"):
            return paths[0].removeprefix("/nvm")
        return paths[0] if paths else None

    def is_text(self, path: str, page: int) -> bool | None:
        """Whether a page of the original is text; None if that is no program and no library."""
        if path not in self.text_pages:
            self.text_pages[path] = text_ranges(self.originals / path.lstrip("/"))
        ranges = self.text_pages[path]
        return None if ranges is None else any(start <= page < end for start, end in ranges)

    def on_disk(self, path: str, page: int) -> bool:
        """Whether the root disk holds the page of that file: it is no hole."""
        if path not in self.data_pages:
            self.data_pages[path] = data_ranges(self.tree / path.lstrip("/"))
        return any(start <= page < end for start, end in self.data_pages[path])

    def text_on_disk(self, path: str) -> int:
        """How many pages of its text the root disk holds."""
        return sum(self.on_disk(path, page) for start, end in text_ranges(self.originals / path.lstrip("/")) for page in range(start, end))

    def class_of(self, file, page: int, names: dict) -> str:
        path = self.origin(file, names)
        if path is None:
            return "other"
        if os.path.basename(path) in ("ld-towa-xip.so", "towa-xip-audit.so"):
            return "loader"
        text = self.is_text(path, page)
        if text is None:
            return "other"
        library = ".so" in os.path.basename(path)
        if text and file[0] == "root" and path in self.split and not library:
            return "record"
        return ("library " if library else "program ") + ("text" if text else "data")


def takes_libraries(split_program: pathlib.Path) -> bool:
    """Whether its record says that the text of its libraries may come from the store (docs/format.md, ABC)."""
    content = split_program.read_bytes()
    at = next((at for at in range(0, len(content), PAGE) if content.startswith(b"TOWAABC1", at)), None)
    return at is not None and struct.unpack_from("<I", content, at + 12)[0] & 1 == 1


def text_ranges(path: pathlib.Path):
    """Pages of executable segments, as (first, behind the last); None if `path` is no ELF file of 64 bits."""
    if not path.is_file():
        return None
    with open(path, "rb") as file:
        head = file.read(64)
        if head[:5] != b"\x7fELF\x02":
            return None
        (at,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        file.seek(at)
        headers = file.read(size * count)
    ranges = []
    for n in range(count):
        kind, flags, offset, _, _, length = struct.unpack_from("<IIQQQQ", headers, n * size)
        if kind == 1 and flags & 1:
            ranges.append((offset // PAGE, -(-(offset + length) // PAGE)))
    return ranges


def data_ranges(path: pathlib.Path) -> list:
    """Pages that are no hole."""
    ranges, at = [], 0
    with open(path, "rb") as file:
        end = os.fstat(file.fileno()).st_size
        while at < end:
            try:
                start = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            at = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            ranges.append((start // PAGE, -(-at // PAGE)))
    return ranges


@dataclasses.dataclass
class Counts:
    """A boot in numbers, by class."""

    minor: collections.Counter
    major: collections.Counter
    read: collections.Counter  # pages of files that came from the root disk
    touched: collections.Counter  # different pages that were faulted
    copied: int  # faults that copy a page of a file
    text_from_disk: list  # faults of split programs on text that lies on the root disk, without the `record` pages: (who, whose, page)


def count(trace: Trace, files: Files) -> Counts:
    counts = Counts(*(collections.Counter() for _ in range(4)), 0, [])
    touched = set()
    for fault in trace.faults:
        kind = files.class_of(fault.file, fault.page, trace.names)
        (counts.major if fault.major else counts.minor)[kind] += 1
        path = files.origin(fault.file, trace.names)
        astray = kind == "record" and not files.on_disk(path, fault.page)
        exempt = fault.comm in files.whole or kind == "library text" and fault.comm in files.own_libraries
        if astray or kind.endswith(" text") and fault.file[0] == "root" and not exempt:
            counts.text_from_disk.append((fault.comm, path, fault.page))
        if kind in CLASSES[:4]:
            touched.add((kind, path, fault.page))
            counts.copied += fault.write
    for file, page in trace.cached:
        if file[0] != "root":
            continue
        path = files.origin(file, trace.names)
        if path is not None and (files.tree / path.lstrip("/")).is_file() and files.on_disk(path, page):
            counts.read[files.class_of(file, page, trace.names)] += 1
    counts.touched.update(kind for kind, _, _ in touched)
    return counts
