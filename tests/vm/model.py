"""The paper's model of what splitting saves, beside what the boots and a compiler's starts measured.

    conventional   (t1+t2+t3) P                          + (t1+t5+t3) copies      (1)
    split          t4 P S + (t1+t2+t3) P (1-S)           + (t1+t5+t3) copies      (2)
    saved          (t1+t2+t3-t4) P S                                              (3)

t1 allocate a page, t2 read it, t3 map it, t4 map a page of NVM, t5 copy one. P S and P (1-S) are counted: the different pages of
text, and of data, that a boot touches; on DAX memory each of them has its own fault, so they can be seen. What must always hold: the
times of the paper are the paper's; only t2 is replaced by that of the disk at hand.
"""

import pathlib
import shutil
import statistics
import subprocess

import faults
import userland

T1 = T3 = T4 = 0.001  # ms, as in the paper
T5 = 0.01
PAPERS_DISKS = {"paper's disk": 6.0, "paper's SSD": 0.1}  # t2 in ms
TARGET = 0.15  # a split compiler's cold start, as a share of a whole one's from a disk
SOURCE = """#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int argc, char **argv)
{
    for (int n = 0; n < argc; n++)
        if (strlen(argv[n]) > 3 && printf("%s\\n", argv[n]) < 0)
            return errno;
    return EXIT_SUCCESS;
}
"""


def compiler(work: pathlib.Path) -> tuple[dict[str, pathlib.Path], dict[str, bytes]]:
    """The host's C compiler proper and something for it to do: programs and files to be put into the userland."""
    gcc = shutil.which("gcc")
    if gcc is None:
        raise userland.Missing("gcc (package gcc), whose start is measured")
    named = subprocess.run([gcc, "-print-prog-name=cc1"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    if not pathlib.Path(named).is_file():
        raise userland.Missing(f"gcc's cc1 (it says {named})")
    source = work / "input.c"
    source.write_text(SOURCE)
    given = subprocess.run([gcc, "-E", source], stdout=subprocess.PIPE, check=True).stdout
    command = f"{named} -quiet -O1 -fpreprocessed /etc/towa/input.i -o /tmp/output.s\n"
    return {named: pathlib.Path(named)}, {"/etc/towa/input.i": given, "/etc/towa/cc1": command.encode()}


def summary(trace: faults.Trace, counts: faults.Counts) -> dict:
    """What is kept of a traced boot."""
    return {
        "execs": len(trace.execs), "programs": len(set(trace.execs)), "forks": trace.forks, "requests": trace.requests,
        "pages_requested": trace.read_pages, "minor": dict(counts.minor), "major": dict(counts.major), "read": dict(counts.read),
        "touched": dict(counts.touched), "copied": counts.copied,
    }


def predict(text: int, data: int, copies: int, t2: float) -> tuple[float, float]:
    """Equations (1) and (2), in seconds."""
    load, copied = T1 + t2 + T3, (T1 + T5 + T3) * copies
    return (load * (text + data) + copied) / 1000, (T4 * text + load * data + copied) / 1000


def show(result: dict, iops: int) -> None:
    """Predictions beside measurements."""
    boots = result["boot"]
    text = sum(boots["split"]["touched"].get(kind, 0) for kind in ("program text", "library text"))
    data = sum(boots["whole-dax"]["touched"].get(kind, 0) for kind in ("program data", "library data"))
    copies = boots["whole-dax"]["copied"]
    print(f"\nmodel: {text} pages of text and {data} of data are touched (S = {text / (text + data):.2f}), {copies} copies")
    whole, split = boots["whole"], boots["split"]
    for name, boot, pages in (("whole", whole, text + data), ("split", split, data)):
        read = sum(boot["read"].values())
        print(f"model: {name} reads {pages} pages one by one; measured: {read} pages of files, in {boot['requests']} requests")
    rows = []
    for name, t2 in {**PAPERS_DISKS, f"{iops} requests/s": 1000 / iops}.items():
        conventional, halved = predict(text, data, copies, t2)
        rows.append((name, conventional, halved))
        print(f"model: {name:>16}: whole {conventional:7.2f} s, split {halved:7.2f} s, saved {conventional - halved:6.2f} s")
    medians = {name: {rate: statistics.median(times) for rate, times in boot["seconds"].items()} for name, boot in boots.items()}
    for rate in ("0", str(iops)):
        disk = "unthrottled disk" if rate == "0" else f"{rate} requests/s"
        spread = {name: f"{min(boots[name]['seconds'][rate]):.2f}-{max(boots[name]['seconds'][rate]):.2f}" for name in medians}
        print(f"boot:  {disk:>16}: " + ", ".join(f"{name} {medians[name][rate]:.2f} s ({spread[name]})" for name in medians))
    saved = medians["whole"][str(iops)] - medians["split"][str(iops)]
    predicted = rows[-1][1] - rows[-1][2]
    by_requests = (whole["requests"] - split["requests"]) / iops
    fast = medians["whole"]["0"] - medians["split"]["0"]
    print(f"model: at {iops} requests/s a boot should save {predicted:.2f} s by pages, {by_requests:.2f} s by requests counted here;")
    print(f"model: measured {saved:.2f} s, and {fast:.2f} s without the throttle, where the emulated work decides: pages copied, faults taken")
    print("model: it has one request for a page; the kernel reads ahead, many pages with one, and data needs nearly as many requests alone")
    result["model"] = {"text": text, "data": data, "copies": copies, "predicted": rows, "by_requests_s": by_requests, "saved_s": saved, "target": TARGET}
    show_compiler(result["cc1"], iops)


def show_compiler(cc1: dict, iops: int) -> None:
    """The compiler's starts, and the target."""
    for rate in ("0", str(iops)):
        disk = "unthrottled disk" if rate == "0" else f"{rate} requests/s"
        base = statistics.median(cc1["whole"][rate]["cold"])
        for name, rates in cc1.items():
            cold, warm = (statistics.median(rates[rate][kind]) for kind in ("cold", "warm"))
            (faulted, major), (again, _) = (map(statistics.median, zip(*rates[rate][f"{kind} faults"])) for kind in ("cold", "warm"))
            numbers = f"faults cold {faulted:.0f} ({major:.0f} major), warm {again:.0f}"
            print(f"cc1:   {disk:>16}: {name:10} cold {cold:6.2f} s ({cold / base:.2f} of whole), warm {warm:5.2f} s; {numbers}")
    ratio = statistics.median(cc1["split"][str(iops)]["cold"]) / statistics.median(cc1["whole"][str(iops)]["cold"])
    verdict = "met" if ratio <= TARGET else "missed"
    print(f"cc1:   split takes {ratio:.2f} of whole, cold, at {iops} requests/s; the target of {TARGET} is {verdict}")
