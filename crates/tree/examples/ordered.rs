//! An ordered map whose every change is durable when the call returns. Run it, kill it, run it again.
//!
//!     cargo run --release -p towa-tree --example ordered -- /tmp/ordered set pear 3
//!     cargo run --release -p towa-tree --example ordered -- /tmp/ordered set apple 5
//!     cargo run --release -p towa-tree --example ordered -- /tmp/ordered dump a b
//!     cargo run --release -p towa-tree --example ordered -- /tmp/ordered fill
//!
//! The same program in C, which reads and writes the same pools: `examples/c/tree.c`.

use std::ops::{Bound, ControlFlow};

use towa_tree::{BpTree, Direction, OrderedMap, Session};
use towa_tx::{Options, Pool};

const USAGE: &str = "usage: ordered DIRECTORY set WORD NUMBER | get WORD | del WORD | dump [FROM [TO]] | fill";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let [dir, what @ ..] = &args[..] else { return Err(USAGE.into()) };
    let pool = Pool::open_or_create(dir.as_ref(), &Options::default())?;
    let words = BpTree::<[u8]>::open_or_create(&pool, "words")?;
    let mut session = words.session()?; // each thread has its own
    match what {
        ["set", word, number] => println!("{:?}", session.upsert(word.as_bytes(), number.parse()?)?),
        ["get", word] => println!("{:?}", session.get(word.as_bytes())?),
        ["del", word] => println!("{:?}", session.remove(word.as_bytes())?),
        ["dump", bounds @ ..] if bounds.len() <= 2 => {
            let low = bounds.first().map_or(Bound::Unbounded, |word| Bound::Included(word.as_bytes()));
            let high = bounds.get(1).map_or(Bound::Unbounded, |word| Bound::Excluded(word.as_bytes()));
            session.scan((low, high), Direction::Forward, &mut |word, number| {
                println!("{} {number}", String::from_utf8_lossy(word));
                ControlFlow::Continue(())
            })?;
        }
        ["fill"] => {
            for n in words.count()?.. {
                session.insert(format!("word-{n:09}").as_bytes(), n)?;
                if n % 5000 == 4999 {
                    println!("durable {}", n + 1); // it returned, so it is
                }
            }
        }
        _ => return Err(USAGE.into()),
    }
    Ok(())
}
