//! `towa serve`: a pool and a server on it, from start to clean end.

use std::path::PathBuf;

use towa_epoch::{Options, Pool};

use crate::config::Config;
use crate::error::Result;
use crate::memory::Residence;
use crate::server::{Handle, Server};

/// What the server keeps its items in.
#[derive(Clone, Debug)]
pub enum PoolChoice {
    /// The pool in this directory, created where there is none.
    Directory(PathBuf),
    /// Memory that ends with the process.
    Volatile,
}

/// Opens the pool, serves until somebody asks for the end, and closes the pool with a last checkpoint.
///
/// A new pool is made as `options` say, but [large enough](Config::fit) for `-m` and `-I`. `started` is called once the server answers; what it is
/// given can [end](Handle::stopper) the server, from a signal's thread for instance.
pub fn run(config: Config, pool: &PoolChoice, options: &Options, started: impl FnOnce(&Handle)) -> Result<()> {
    config.check()?;
    let dir = match pool {
        PoolChoice::Directory(path) => Some(path.as_path()),
        PoolChoice::Volatile => None,
    };
    let options = config.fit(options.clone(), Residence::of_new(options, dir)?);
    let pool = match pool {
        PoolChoice::Directory(path) => {
            if !path.exists() {
                config.check_new_pool(&options)?; // a pool keeps what it was made with
            }
            Pool::open_or_create(path, &options)?
        }
        PoolChoice::Volatile => Pool::volatile(&options)?,
    };
    let handle = Server::start(config, &pool)?;
    started(&handle);
    handle.join()?;
    pool.close()?;
    Ok(())
}
