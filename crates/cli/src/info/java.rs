//! What `towa info` says of the Java door's file.

use std::path::Path;

use anyhow::{Error, Result};
use serde::Serialize;
use towa_java_pool::{Description, Durability, Pool};

use crate::report::{Lines, bytes, utc};

/// The facts of a pool of the Java door.
#[derive(Debug, Serialize)]
pub struct JavaPool {
    #[serde(flatten)]
    description: Description,
    /// Whether a process has it open.
    in_use: bool,
    /// That process, where the kernel can say which.
    owner_pid: Option<u32>,
}

/// The pool that the file at `path` is, if it is one.
pub fn pool_at(path: &Path) -> Result<Option<JavaPool>, Error> {
    if !towa_java_pool::is_pool(path)? {
        return Ok(None);
    }
    let pool = Pool::open(path)?;
    let owner = pool.owner();
    let description = pool.describe()?;
    Ok(Some(JavaPool { description, in_use: owner.is_some(), owner_pid: owner.and_then(|owner| owner.pid) }))
}

/// What durability means.
pub fn explain(durability: Durability) -> &'static str {
    match durability {
        Durability::Process => "process: what was written survives the process; power loss takes what the medium does not keep",
        Durability::Power => "power: the file holds committed images, which survive power loss",
    }
}

/// Prints it.
pub fn print(lines: &mut Lines, pool: &JavaPool) {
    let it = &pool.description;
    lines.heading("pool");
    lines.line("identity", format!("{}, format {}, door {}", it.uuid, it.version, it.door));
    lines.line("created", utc(it.created_unix_s));
    let state = match (pool.in_use, pool.owner_pid, it.clean) {
        (true, Some(pid), _) => format!("in use by process {pid}"),
        (true, None, _) => "in use by another process".into(),
        (false, _, true) => "closed cleanly".into(),
        (false, _, false) => "not in use, not closed cleanly: opening recovers it".into(),
    };
    lines.line("state", state);
    if it.atomically_interrupted {
        let what = if pool.in_use { "under way" } else { "interrupted: rolled back at the next open" };
        lines.line("atomically", what);
    }
    lines.line("durability", explain(it.durability));
    lines.line("space", format!("{}, {} ever used", bytes(it.capacity), bytes(it.used)));
    lines.line("classes", it.classes);
    if it.roots.is_empty() {
        lines.line("roots", "none");
    }
    for (number, root) in it.roots.iter().enumerate() {
        let null = if root.is_null { ", null" } else { "" };
        lines.line(if number == 0 { "roots" } else { "" }, format!("{}: {}{null}", root.name, root.kind));
    }
}
