//! A map that survives `kill -9`. Run it, kill it, run it again: it goes on where it was.
//!
//!     cargo run --release --example survives -- /tmp/survives
//!
//! Prints a number when everything up to it is durable. After a kill, it starts at most one interval (100 ms) before the moment of the
//! kill, and never before a number it has printed.

use towa_containers::{HashMapOptions, TypedHashMap};
use towa_epoch::{Options, Pool};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args().nth(1).ok_or("usage: survives DIRECTORY")?;
    let pool = Pool::open_or_create(dir.as_ref(), &Options::default())?;
    let squares = TypedHashMap::<u64, u128>::open(&pool, "squares", &HashMapOptions::default())?;
    let mut thread = pool.register()?;
    println!("found {} squares", squares.len()?);
    for n in squares.len()?.. {
        squares.insert(&mut thread, &n, &(u128::from(n) * u128::from(n)))?;
        if n % 10_000 == 0 {
            pool.sync()?; // only to be able to promise; without it, durable within 100 ms
            println!("{n}");
        }
    }
    Ok(())
}
