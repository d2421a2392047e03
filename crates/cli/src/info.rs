//! `towa info`: what a path, a pool, this CPU and this kernel offer.
//!
//! What must always hold: it looks only. It neither locks, creates nor writes; a pool is described while somebody else uses it.

mod java;
mod jdk;
mod machine;

use std::path::{Path, PathBuf};

use anyhow::{Error, Result};
use clap::Args;
use serde::Serialize;
use towa_heap::Description;
use towa_heap::names::{IMAGE, LOG};
use towa_heap::superblock::Door;
use towa_media::{Access, CpuFeatures, Detected, Guarantee, Kind};

use crate::failure;
use crate::pool_dir::{looks_like_pool, medium_name, noted_address, owner};
use crate::report::{self, Lines, bytes, utc};
use java::JavaPool;
use jdk::Jdk;
use machine::Kernel;
pub use machine::available_memory;

/// Show which medium a path is on and what survives there.
///
/// Tells for each door what it keeps there through a crash of the process and through a power loss; what weakens the promise; what the
/// CPU and the kernel offer. If the path holds a pool, shows its facts too, even while a server uses it. Looks only: nothing is
/// locked or written.
#[derive(Debug, Args)]
#[command(after_help = "\
Words:
  process-safe  survives SIGKILL and any crash of the process
  power-safe    survives a crash of the kernel and power loss too
  buffered      after a crash: whole transactions, as of at most one interval and one checkpoint ago
  strict        durable before the call returns, or the answer is sent

Examples:
  towa info                      the current directory
  towa info /mnt/pmem            a place for a pool
  towa info ~/.local/state/towa/serve
  towa info orders.towa          a pool of the Java door
  towa info --json /dev/shm | jq -r .medium.kind")]
pub struct InfoArgs {
    /// A directory, a pool (a directory, or Java's file), or a path that does not exist yet.
    #[arg(default_value = ".")]
    path: PathBuf,
    /// Report as JSON.
    #[arg(long)]
    json: bool,
}

/// What a door keeps on a medium.
#[derive(Debug, Serialize)]
struct DoorGuarantee {
    door: &'static str,
    /// After a crash of the process.
    process_crash: &'static str,
    /// After a crash of the kernel or a power loss; `None`: nothing is kept.
    power_loss: Option<&'static str>,
    /// How a program or client gets strict durability, as far as the medium goes.
    strict_by: &'static str,
}

/// Everything that is shown.
#[derive(Debug, Serialize)]
struct Info {
    path: String,
    medium: Detected,
    doors: Vec<DoorGuarantee>,
    /// What programs of the Java door would run on; `None`: nothing here is new enough.
    jdk: Option<Jdk>,
    pool: Option<AnyPool>,
    /// The FPTree that is there.
    tree: Option<TreeInfo>,
    /// Why the pool or tree that is there cannot be described.
    pool_problem: Option<String>,
    cpu: CpuFeatures,
    transactions: Transactions,
    kernel: Kernel,
}

/// How transactions (door tx) would run here.
#[derive(Debug, Serialize)]
struct Transactions {
    /// Whether this machine commits hardware transactions: tried, not taken from the CPU's word.
    hardware_commits: bool,
    /// The way `auto` takes: `rtm`, or `stm` (in software).
    auto: &'static str,
}

impl Transactions {
    fn here() -> Transactions {
        let hardware_commits = towa_tx::hardware_transactions_commit();
        Transactions { hardware_commits, auto: if towa_tx::hardware_transactions_run() { "rtm" } else { "stm" } }
    }

    fn explain(&self) -> &'static str {
        match (self.auto, self.hardware_commits) {
            ("rtm", _) => "in hardware (RTM commits here), in software what does not fit",
            (_, true) => "in software: RTM commits here, but the kernel does not trust the time stamp counter",
            _ => "in software: this machine commits no hardware transactions (RTM is missing, or off by microcode)",
        }
    }
}

/// A pool: a directory, or a file.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum AnyPool {
    Directory(Box<PoolInfo>),
    File(JavaPool),
}

/// A pool's facts.
#[derive(Debug, Serialize)]
struct PoolInfo {
    #[serde(flatten)]
    description: Description,
    /// Process that has it open.
    owner_pid: Option<u32>,
    /// Where its server listens.
    served_at: Option<String>,
    /// Who checkpoints it, if its program asked for a separate checkpointer.
    checkpointer: Option<towa_tx::Standing>,
}

/// An FPTree's facts.
#[derive(Debug, Serialize)]
struct TreeInfo {
    uuid: String,
    /// `fptree u64`, `fptree bytes`.
    kind: String,
    /// Capacity in bytes.
    len: u64,
    /// Bytes ever used.
    used: u64,
    created_unix_s: u64,
    /// Process that has it open.
    owner_pid: Option<u32>,
}

fn doors(kind: Kind, guarantee: Guarantee) -> Vec<DoorGuarantee> {
    let power_loss = (guarantee == Guarantee::PowerSafe).then_some("buffered");
    let door = |door, strict_by| DoorGuarantee { door, process_crash: "buffered", power_loss, strict_by };
    let strict = DoorGuarantee {
        door: "tx",
        process_crash: "strict",
        power_loss: power_loss.map(|_| "strict"),
        strict_by: "every transaction, and every change of a tree, when the call returns",
    };
    let every_store = "every store, when the statement ends";
    let (java_power_loss, strict_by) = match (kind, guarantee) {
        (Kind::Dax, Guarantee::PowerSafe) => (Some("strict"), every_store),
        (_, Guarantee::PowerSafe) => {
            (Some("buffered"), "every store, when the statement ends; for power loss Durability.POWER and Towa.sync()")
        }
        (_, Guarantee::ProcessSafe) => (None, every_store),
    };
    let java = DoorGuarantee { door: "java", process_crash: "strict", power_loss: java_power_loss, strict_by };
    vec![door("epoch", "sync()"), door("serve", "the commands `durable` and `durable now`"), strict, java]
}

/// `towa info`.
pub fn run(args: &InfoArgs) -> Result<()> {
    let detected = towa_media::detect(&args.path).map_err(Error::from);
    let mut medium = report::bad_news(args.json, ("path", report::path(&args.path)), detected)?;
    // JSON is text, and so is a line on a terminal.
    medium.path = report::path(&medium.path).into();
    let (pool, tree, problem) = match pool_at(&args.path).and_then(|pool| Ok((tree_at(&args.path, pool.is_some())?, pool))) {
        Ok((tree, pool)) => (pool, tree, None),
        Err(error) => (None, None, Some(error)),
    };
    let info = Info {
        path: report::path(&args.path),
        doors: doors(medium.kind, medium.guarantee),
        jdk: Jdk::here(),
        medium,
        pool,
        tree,
        pool_problem: problem.as_ref().map(failure::message),
        cpu: towa_media::cpu_features(),
        transactions: Transactions::here(),
        kernel: Kernel::running(),
    };
    if args.json {
        report::json(&info)?
    } else {
        print(&info)?
    }
    problem.map_or(Ok(()), Err)
}

/// The pool in `path`, if one is there.
fn pool_at(path: &Path) -> Result<Option<AnyPool>, Error> {
    if !path.is_dir() {
        return Ok(java::pool_at(path)?.map(AnyPool::File));
    }
    if !looks_like_pool(path)? {
        return Ok(None);
    }
    let medium = towa_media::open_dir(path, None, false)?;
    let description = towa_heap::describe(&*medium)?;
    // Only what a look at the directory shows: `towa verify` looks inside.
    for name in [IMAGE, LOG] {
        let place = report::path(&path.join(name));
        match medium.open(name, Access::ReadOnly) {
            Ok(_) => {}
            Err(towa_media::Error::NotFound { .. }) => {
                return Err(failure::coded(failure::DAMAGED, format!("{place} is missing; restore the pool from a copy")));
            }
            Err(error) => return Err(error.into()),
        }
    }
    let owner_pid = owner(path);
    let is_tx = description.door == Some(Door::Tx);
    Ok(Some(AnyPool::Directory(Box::new(PoolInfo {
        description,
        checkpointer: if is_tx { towa_tx::who_checkpoints(&*medium)? } else { None },
        owner_pid,
        served_at: owner_pid.and_then(|_| noted_address(path)).map(|address| report::path(Path::new(&address))),
    }))))
}

/// The FPTree in `path`, if one is there, and no pool.
fn tree_at(path: &Path, is_pool: bool) -> Result<Option<TreeInfo>, Error> {
    if is_pool || !path.is_dir() || !path.join(towa_alloc::NAME).exists() {
        return Ok(None);
    }
    let it = towa_alloc::describe(&*towa_media::open_dir(path, None, false)?).map_err(towa_tree::Error::from)?;
    let towa_alloc::Description { uuid, kind, len, used, created_unix_s } = it;
    Ok(Some(TreeInfo { uuid, kind, len, used, created_unix_s, owner_pid: owner(path) }))
}

fn print(info: &Info) -> Result<()> {
    let mut lines = Lines::default();
    lines.heading(&info.path);
    print_medium(&mut lines, info);
    if let Some(tree) = &info.tree {
        lines.heading("tree");
        lines.line("identity", format!("{}, {}, in a directory of its own", tree.uuid, tree.kind));
        lines.line("created", utc(tree.created_unix_s));
        let state = tree
            .owner_pid
            .map_or("not in use; opening recovers it, whatever happened".into(), |pid| format!("in use by process {pid}"));
        lines.line("state", state);
        lines.line("space", format!("{}, {} ever used", bytes(tree.len), bytes(tree.used)));
    }
    match (&info.pool, &info.pool_problem) {
        (Some(AnyPool::Directory(pool)), _) => print_pool(&mut lines, pool),
        (Some(AnyPool::File(pool)), _) => java::print(&mut lines, pool),
        (None, Some(problem)) => {
            lines.heading("pool");
            lines.line("problem", problem);
        }
        (None, None) => {}
    }
    lines.heading("cpu");
    let cpu = &info.cpu;
    let features =
        [("clwb", cpu.clwb), ("clflushopt", cpu.clflushopt), ("avx", cpu.avx), ("avx512f", cpu.avx512f), ("rtm", cpu.rtm)];
    let has =
        |wanted: bool| features.iter().filter(|(_, there)| *there == wanted).map(|(name, _)| *name).collect::<Vec<_>>().join(" ");
    lines.line("has", has(true));
    lines.line("has not", has(false));
    lines.line(
        "write-back",
        format!("{}; whether caches survive power loss (eADR) cannot be found out, so they are not trusted", cpu.write_back),
    );
    lines.line("transactions", info.transactions.explain());
    info.kernel.print(&mut lines);
    lines.print()
}

fn print_medium(lines: &mut Lines, info: &Info) {
    let medium = &info.medium;
    if medium.path != Path::new(&info.path) {
        lines.line("judged by", format!("{}, the nearest parent that exists", medium.path.display()));
    }
    lines.line("medium", format!("{}: {}", medium_name(medium.kind), medium.reason));
    lines.line("mounted", format!("{} on {} ({})", medium.fs, medium.device, medium.mount_options.join(",")));
    lines.line(
        "guarantee",
        match medium.guarantee {
            Guarantee::PowerSafe => "power-safe: survives SIGKILL, a crash of the kernel and power loss",
            Guarantee::ProcessSafe => {
                "process-safe: survives SIGKILL and any crash of the process; a crash of the kernel or power loss takes all"
            }
        },
    );
    for door in &info.doors {
        let power = door.power_loss.map_or("nothing kept", |kept| kept);
        let kept = format!("process crash: {}; power loss: {power}; strict by {}", door.process_crash, door.strict_by);
        lines.line(&format!("door {}", door.door), kept);
    }
    let jdk = info.jdk.as_ref().map_or_else(
        || "none of version 25 or later found, which door java needs ($JAVA_HOME, the usual folders, javac)".into(),
        |jdk| format!("version {} in {}, for door java", jdk.version, jdk.home),
    );
    lines.line("jdk", jdk);
    for warning in &medium.warnings {
        lines.line("warning", warning);
    }
}

fn print_pool(lines: &mut Lines, pool: &PoolInfo) {
    let it = &pool.description;
    lines.heading("pool");
    lines.line("identity", format!("{}, format {}, door {}", it.uuid, it.version, it.door.map_or("unknown", |d| d.name())));
    lines.line("created", format!("{}, opened {} times", utc(it.created_unix_s), it.generation));
    let served = pool.served_at.as_ref().map_or(String::new(), |address| format!(", served at {address}"));
    let state = match (pool.owner_pid, it.clean) {
        (Some(pid), _) => format!("in use by process {pid}{served}"),
        (None, true) => "closed cleanly".into(),
        (None, false) if it.copied_while_open => {
            "a copy that was made while a program had the pool open, or after a crash: not opened; `towa verify` says more".into()
        }
        (None, false) => "not in use, not closed cleanly: opening recovers it".into(),
    };
    lines.line("state", state);
    if let Some(standing) = pool.checkpointer {
        lines.line("checkpointer", checkpointer(standing, pool.owner_pid.is_some()));
    }
    lines.line("heap", format!("{} at {:#x}, {} ever used", bytes(it.heap_len), it.base, bytes(it.frontier)));
    lines.line("log", format!("{}, {} live", bytes(it.log_len), bytes(it.log_live)));
    if let Some(lanes) = it.lanes {
        lines
            .line("lanes", format!("{lanes}, one for each thread that writes, of {}", bytes(it.log_len / u64::from(lanes.max(1)))));
        return;
    }
    if it.in_place {
        lines.line(
            "in place",
            "the image is the working copy: memory holds it once, and the log is for undoing what is not durable",
        );
        let beside = if it.clean { "" } else { ", which the image holds once later changes are undone" };
        lines.line("epoch", format!("{}{beside}", it.newest_epoch));
        return;
    }
    let when = it.newest_commit_unix_us.map_or(String::new(), |us| format!(", committed {}", utc(us / 1_000_000)));
    lines.line("epoch", format!("{}{when}; the image holds epoch {}", it.newest_epoch, it.image_epoch));
}

/// Who checkpoints a pool that is to have a separate checkpointer. `in_use`: its program lives.
fn checkpointer(standing: towa_tx::Standing, in_use: bool) -> String {
    let Some(pid) = standing.pid else {
        return "a thread of the program, until `towa checkpointer` takes its place".into();
    };
    match (standing.stopped, in_use) {
        (false, true) => format!("process {pid}"),
        (false, false) => format!("process {pid}, which ends its round: its program died"),
        (true, true) => {
            format!("process {pid}, stopped: logs fill up, then transactions wait; let it go on, or kill it (nothing is lost)")
        }
        (true, false) => {
            format!("process {pid}, stopped, whose program died: opening waits; let it go on, or kill it (nothing is lost)")
        }
    }
}
