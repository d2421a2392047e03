//! stats: of the right server, of none, of one that takes nobody, of partners that are no server.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use crate::server::{Server, small};
use crate::{command, fails, json, passes, s, text};

/// Somebody who listens and does `serve` with everyone who connects; gives the address.
fn listener(serve: impl Fn(TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || listener.incoming().for_each(|stream| serve(stream.unwrap())));
    address
}

#[test]
fn stats_copes_with_whoever_answers() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    assert!(fails(8, &["stats", &free]).contains("no server answers"));
    fails(8, &["stats", "/proc/nonexistent/socket"]);
    fails(8, &["stats", "--json", "no.such.host.invalid"]);
    fails(2, &["stats", "127.0.0.1:port"]);
    for (code, target) in [(8, &*free), (2, "127.0.0.1:port"), (8, "/proc/nonexistent/socket")] {
        let out = crate::towa(&["stats", "--json", target]);
        assert_eq!((out.status.code(), json(&text(&out.stdout))["exit_status"].as_i64()), (Some(code), Some(i64::from(code))));
    }
    let dir = tempfile::tempdir().unwrap();
    fails(5, &["stats", s(dir.path())]);
    // It sees the question before it closes: else the answer would be a reset, or the end, as it happens.
    let closes = listener(|mut stream| drop(stream.read(&mut [0; 100])));
    assert!(fails(8, &["stats", &closes]).contains("closed"));
    let says = |answer: &'static [u8]| {
        listener(move |mut stream| {
            let _ = stream.read(&mut [0; 100]).and_then(|_| stream.write_all(answer));
            let _ = stream.read(&mut [0; 100]);
        })
    };
    for odd in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"\xff\xfe\x00\x01\n", b"-ERR unknown command\r\n", b"\r\n", b"ERROR\r\n"]
    {
        assert!(fails(1, &["stats", &says(odd)]).contains("not a memcached"), "{}", String::from_utf8_lossy(odd));
    }
    let endless = listener(|mut stream| while stream.write_all(&[b'x'; 4096]).is_ok() {});
    assert!(fails(1, &["stats", &endless]).contains("without end"));
    let silent = listener(|stream| {
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(60));
            drop(stream);
        });
    });
    assert!(fails(8, &["stats", &silent]).contains("no answer within"));
}

/// The address that a killed server left behind may be another's by now, and a copy of a pool has its note too.
#[test]
fn stats_of_a_pool_are_of_its_own_server() {
    let dir = tempfile::tempdir().unwrap();
    let [first, second, copy, renewed] = ["first", "second", "copy", "renewed"].map(|name| dir.path().join(name));
    let stderr = dir.path().join("stderr");
    let server = Server::start(&small(&first, &[]), &stderr);
    let port = server.address().rsplit(':').next().unwrap().to_owned();
    assert_eq!(server.end(libc::SIGKILL), Some(-libc::SIGKILL));
    assert!(first.join("serve.address").exists(), "left by a server that was killed");
    let server = Server::start(&["--pool", s(&second), "--log-mb", "4", "-p", &port, "-m", "32", "-I", "256k"], &stderr);
    assert!(fails(8, &["stats", s(&first)]).contains("no server runs on this pool"));
    passes(&["stats", s(&second)]);
    fs::create_dir(&copy).unwrap();
    for name in ["superblock", "image", "log", "serve.address"] {
        fs::copy(second.join(name), copy.join(name)).unwrap();
    }
    assert!(fails(8, &["stats", s(&copy)]).contains("no server runs on this pool"));
    // The same place by another name; and the place taken by another pool.
    std::os::unix::fs::symlink(&second, dir.path().join("link")).unwrap();
    passes(&["stats", s(&dir.path().join("link"))]);
    fs::copy(second.join("serve.address"), first.join("serve.address")).unwrap();
    fs::rename(&second, &renewed).unwrap();
    fs::rename(&first, &second).unwrap();
    fails(8, &["stats", s(&second)]);
    assert_eq!(server.end(libc::SIGTERM), Some(0));
    assert!(second.join("serve.address").exists(), "a note that is not its own was taken back");
}

#[test]
fn stats_says_when_all_connections_are_in_use() {
    let server =
        Server::start(&["--volatile", "-m", "32", "-t", "1", "-c", "1", "-p", "0"], tempfile::NamedTempFile::new().unwrap().path());
    let mut client = server.client();
    assert_eq!(client.set("k", 10), "STORED");
    assert!(fails(1, &["stats", server.address()]).contains("all connections that the server allows"));
}

/// A path may hold anything but a NUL, and clients read lines.
#[test]
fn a_pool_with_an_odd_name_is_served_and_found() {
    let dir = tempfile::tempdir().unwrap();
    let stderr = dir.path().join("stderr");
    for name in [&b"a\nEND"[..], b"\xff\xfe"] {
        let pool = dir.path().join(OsStr::from_bytes(name));
        let server = Server::start_with(&small(Path::new("unused"), &[])[2..], &stderr, |command| {
            command.arg("--pool").arg(&pool);
        });
        assert!(server.ready.contains("checkpoint every 100 ms, memory at most "), "all on one line: {:?}", server.ready);
        assert_eq!(server.client().set("k", 10), "STORED");
        let out = command(&["stats", "--json"]).arg(&pool).output().unwrap();
        assert!(out.status.success(), "{}", text(&out.stderr));
        assert_eq!(json(&text(&out.stdout))["server"]["curr_items"], 1);
        assert_eq!(server.end(libc::SIGTERM), Some(0));
    }
}

#[test]
fn stats_of_a_plain_memcached_has_no_durability() {
    let address = listener(|stream| {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while reader.read_line(&mut line).is_ok_and(|n| n > 0) {
            let answer = if line == "stats\r\n" { "STAT pid 7\r\nSTAT version 1.6\r\nEND\r\n" } else { "END\r\n" };
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
            line.clear();
        }
    });
    let stats = json(&passes(&["stats", "--json", &address]));
    assert_eq!((stats["server"]["pid"].as_u64(), stats["towa"].is_null()), (Some(7), true));
    assert!(passes(&["stats", &address]).contains("keeps nothing"));
}
