"""A client of the kill test that is not ours: pymemcache, told on standard input what to do, one command a line.

    set KEY HEX | delete KEY | incr KEY N | get KEY | barrier COMMAND      answered by one line, or by `gone` when the server is
"""

import sys

from pymemcache.client.base import Client

host, port = sys.argv[1].rsplit(":", 1)


def answer(client, line):
    verb, *words = line.split()
    if verb == "set":
        return "stored" if client.set(words[0], bytes.fromhex("".join(words[1:])), noreply=False) else "not stored"
    if verb == "delete":
        return "deleted" if client.delete(words[0], noreply=False) else "absent"
    if verb == "incr":
        return str(client.incr(words[0], int(words[1]), noreply=False))
    if verb == "get":
        value = client.get(words[0])
        return "absent" if value is None else value.hex() or "empty"
    return client.raw_command(" ".join(words)).decode()


try:
    # Without a time limit of its own: who kills the server knows when it is gone.
    client = Client((host, int(port)), default_noreply=False, no_delay=True)
    client.version()
    print("ready" if hasattr(client, "raw_command") else "ready without barriers", flush=True)
    for line in sys.stdin:
        print(answer(client, line), flush=True)
except (OSError, EOFError):
    print("gone", flush=True)
except Exception as error:
    # A server that dies in the middle of an answer makes it one that cannot be read; anything else is said.
    unexpected = type(error).__name__ == "MemcacheUnexpectedCloseError"
    print("gone" if unexpected else f"failed: {error!r}", flush=True)
