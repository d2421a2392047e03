"""Python's memcached clients against a server on the port given: each does what programs do with it."""

import importlib
import socket
import sys

PORT = int(sys.argv[1])
SERVER = f"127.0.0.1:{PORT}"
failures = 0


def barrier():
    """Waits until what this connection wrote is durable: nothing here, but the server must say so."""
    with socket.create_connection(("127.0.0.1", PORT)) as connection:
        connection.sendall(b"set barrier 0 0 1\r\nx\r\ndurable\r\n")
        answer = b""
        while answer.count(b"\r\n") < 2:
            answer += connection.recv(100)
        assert answer.startswith(b"STORED\r\nDURABLE "), answer


def pymemcache():
    module = importlib.import_module("pymemcache.client.base")
    client = module.Client(("127.0.0.1", PORT), default_noreply=False)
    assert client.flush_all()
    assert client.get("absent") is None
    assert client.set("key", "value")
    assert client.get("key") == b"value"
    value, cas = client.gets("key")
    assert client.cas("key", "new", cas) is True
    assert client.cas("key", "newer", cas) is False
    assert client.cas("absent", "x", cas) is None
    assert client.add("key", "x") is False
    assert client.replace("key", "replaced")
    assert client.append("key", "!") and client.prepend("key", "!")
    assert client.get("key") == b"!replaced!"
    assert client.set("n", "10")
    assert client.incr("n", 5) == 15 and client.decr("n", 20) == 0
    assert client.incr("absent", 1) is None
    assert client.set_many({f"m{i}": str(i) for i in range(500)}) == []
    assert client.get_many([f"m{i}" for i in range(500)]) == {f"m{i}": str(i).encode() for i in range(500)}
    assert client.touch("key", 100) and not client.touch("absent", 100)
    assert client.delete("key") and not client.delete("key")
    client.set("quiet", "x", noreply=True)
    assert client.get("quiet") == b"x"
    client.set("large", b"v" * 1_000_000)
    assert client.get("large") == b"v" * 1_000_000
    try:
        client.set("too-large", b"v" * 2_000_000)
        raise AssertionError("a too large value was taken")
    except module.MemcacheServerError:
        pass
    assert client.get("quiet") == b"x"
    assert client.version().startswith(b"1.6")
    assert int(client.stats()[b"curr_items"]) > 500
    assert client.stats("settings")[b"cas_enabled"]
    client.quit()


def memcache():
    module = importlib.import_module("memcache")
    client = module.Client([SERVER], cache_cas=True)
    assert client.set("key", {"a": [1, 2, 3]})
    assert client.get("key") == {"a": [1, 2, 3]}
    assert client.gets("key") and client.cas("key", "mine")
    assert client.set("n", 41) and client.incr("n") == 42 and client.decr("n", 2) == 40
    assert client.set_multi({"a": 1, "b": "two"}, key_prefix="p-") == []
    assert client.get_multi(["a", "b", "c"], key_prefix="p-") == {"a": 1, "b": "two"}
    assert client.touch("key", 50)
    assert client.delete("key") and client.get("key") is None
    assert client.delete_multi(["p-a", "p-b"])
    assert client.get_stats()[0][1]["pid"]
    client.disconnect_all()


def pylibmc():
    module = importlib.import_module("pylibmc")
    client = module.Client([SERVER], binary=False, behaviors={"cas": True, "tcp_nodelay": True})
    assert client.set("key", "value", time=100)
    assert client.get("key") == "value"
    value, cas = client.gets("key")
    assert client.cas("key", "new", cas)
    assert client.add("added", 1) and not client.add("added", 2)
    assert client.incr("added", 9) == 10
    assert not client.set_multi({f"k{i}": i for i in range(200)})
    assert client.get_multi([f"k{i}" for i in range(200)]) == {f"k{i}": i for i in range(200)}
    assert client.append("key", "er") and client.get("key") == "newer"
    assert client.delete("key") and client.get("key") is None
    assert client.get_stats()
    client.disconnect_all()


for test in (pymemcache, memcache, pylibmc):
    try:
        importlib.import_module(test.__name__)
    except ImportError as error:
        print(f"SKIP: {test.__name__}: {error}", file=sys.stderr)
        continue
    try:
        test()
        barrier()
        print(f"ok   {test.__name__}")
    except Exception as error:  # any failure of a client is one of the server's
        failures += 1
        print(f"FAIL {test.__name__}: {type(error).__name__}: {error}")
        import traceback

        traceback.print_exc()
sys.exit(1 if failures else 0)
