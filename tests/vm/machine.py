"""A machine with a power switch.

Two serial lines leave it. The first is the kernel's console and the programs' stderr: it goes to a file, for people. The second
carries the protocol, one line each, and nothing else writes there:

    vm: LOAD BEGIN          the init script speaks
    ACK 17                  the door's load says: everything up to 17 is durable, the world may rely on it

What must always hold:
  - a power cut is SIGKILL of the emulator: no instruction of the guest runs after it, nothing is flushed or said;
  - what the guest had said before the cut counts, even if it was read after it;
  - the emulator dies with this program.
"""

import ctypes
import os
import pathlib
import queue
import signal
import subprocess
import threading
import time

import guest


class Machine:
    """A running guest."""

    def __init__(
        self, kernel, initramfs: pathlib.Path, ram: pathlib.Path, pmem_mb: int, console: pathlib.Path, arguments: dict, disks: tuple = ()
    ):
        self.lines: queue.Queue = queue.Queue()
        self.console = console
        size = guest.ram_mb(pmem_mb)
        cmdline = [
            "console=ttyS0", "quiet", "loglevel=4", "panic=-1", "nokaslr", "rdinit=/init", f"memmap={pmem_mb}M!{guest.PMEM_AT_MB}M",
            *(f"towa.{key}={value}" for key, value in arguments.items()),
        ]
        command = [
            "qemu-system-x86_64", "-machine", "q35,memory-backend=mem", *_accelerator(), "-smp", "2", "-m", f"{size}M",
            "-object", f"memory-backend-file,id=mem,share=on,mem-path={ram},size={size}M",
            "-kernel", str(kernel.image), "-initrd", str(initramfs), "-append", " ".join(cmdline),
            "-no-reboot", "-nodefaults", "-display", "none", "-serial", f"file:{console}", "-serial", "stdio",
        ]
        for number, disk in enumerate(disks):  # `-drive` options; in the guest /dev/vda, /dev/vdb, ...
            command += ["-drive", f"if=none,id=disk{number},{disk}", "-device", f"virtio-blk-pci,drive=disk{number}"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=_die_with_parent
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for raw in self.process.stdout:
            # A line without its end was cut in the middle of being said, and was not said.
            if raw.endswith(b"\n"):
                self.lines.put(raw.decode(errors="replace").strip())
        self.lines.put(None)

    def line(self, timeout_s: float):
        """The next line; None when the machine has ended; raises queue.Empty when nothing comes in time."""
        return self.lines.get(timeout=max(0.0, timeout_s))

    def say(self, line: str) -> None:
        """A line to the guest, on the protocol's line."""
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def cut_power(self) -> list:
        """SIGKILL; gives the lines that had left the machine before."""
        self.process.kill()
        self.process.wait()
        self.reader.join()
        rest = []
        while (said := self.lines.get_nowait()) is not None:
            rest.append(said)
        return rest

    def ended(self, timeout_s: float) -> bool:
        """Waits for the machine to go off by itself."""
        try:
            self.process.wait(timeout_s)
            return True
        except subprocess.TimeoutExpired:
            return False

    def report(self) -> str:
        """The end of the console, and the emulator's complaints if it has ended."""
        text = self.console.read_text(errors="replace")[-3000:] if self.console.exists() else ""
        if self.process.poll() is not None:
            text += self.process.stderr.read().decode(errors="replace")[-1000:]
        return text


def _accelerator() -> list[str]:
    """Hardware virtualisation where it works, else plain emulation; TOWA_VM_ACCEL=kvm|tcg decides otherwise.

    An openable /dev/kvm is not enough: machines were met that have the node but not the hardware, where the guest's first
    instruction never returns. The processor must say that it can.
    """
    kind = os.environ.get("TOWA_VM_ACCEL", "")
    if not kind:
        flags = pathlib.Path("/proc/cpuinfo").read_text().split()
        kind = "kvm" if os.access("/dev/kvm", os.R_OK | os.W_OK) and ("vmx" in flags or "svm" in flags) else "tcg"
    return ["-accel", kind, "-cpu", "max,arch-capabilities=off" if kind == "kvm" else "max"]


def accelerator_name() -> str:
    """For the report's first line."""
    return _accelerator()[1]


def _die_with_parent() -> None:
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)


def wait_until(machine: Machine, deadline_s: float, on_line) -> str:
    """Feeds lines to `on_line` until it returns something, the time is over ("late") or the machine ends ("ended")."""
    while True:
        left = deadline_s - time.monotonic()
        if left <= 0:
            return "late"
        try:
            said = machine.line(left)
        except queue.Empty:
            return "late"
        if said is None:
            return "ended"
        if (answer := on_line(said)) is not None:
            return answer
