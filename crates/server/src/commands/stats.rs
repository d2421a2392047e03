//! `stats`: memcached's names where they mean something here, and what the pool has been doing.

use std::fmt::Display;
use std::io::Write;
use std::sync::atomic::Ordering::Relaxed;

use super::line;
use crate::counters::Counter;
use crate::memory::Footprint;
use crate::protocol::KEY_MAX;
use crate::protocol::number::parse_u32;
use crate::server::Shared;
use crate::store::Worker;
use crate::store::table::BUCKETS;

/// memcached's slab classes; items are in number 1 here.
const SLAB_CLASSES: u32 = 64;
/// Most bytes of a `cachedump`, but for the item that goes beyond them.
pub const CACHEDUMP_MAX: usize = 2 << 20;
/// Most bytes of an item in it: its key, and two numbers.
const CACHEDUMP_ITEM: usize = KEY_MAX + 64;
const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format";

/// Writes "STAT name value" lines.
struct Stats<'a>(&'a mut Vec<u8>);

impl Stats<'_> {
    /// A line. What would end it early, in a path for instance, is written as an escape.
    fn put(&mut self, name: &str, value: impl Display) {
        self.0.extend_from_slice(b"STAT ");
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(b' ');
        let start = self.0.len();
        let _ = write!(self.0, "{value}");
        if self.0[start..].iter().any(u8::is_ascii_control) {
            let plain = self.0.split_off(start);
            let escaped = plain.iter().map(|b| if b.is_ascii_control() { b.escape_ascii().to_string().into() } else { vec![*b] });
            self.0.extend(escaped.flatten());
        }
        self.0.extend_from_slice(b"\r\n");
    }
}

pub(super) fn stats(shared: &Shared, worker: &mut Worker, (what, more, rest): (&[u8], &[u8], &[u8]), out: &mut Vec<u8>) {
    let mut stats = Stats(out);
    match what {
        b"" => {
            general(shared, worker, &mut stats);
            durability(shared, &mut stats);
        }
        b"towa" => durability(shared, &mut stats),
        b"settings" => settings(shared, &mut stats),
        b"items" => items(shared, &mut stats),
        b"slabs" => slabs(shared, &mut stats),
        b"sizes" => stats.put("sizes_status", "disabled"),
        b"conns" => connections(shared, &mut stats),
        b"reset" => {
            shared.reset_counters();
            return line(out, b"RESET");
        }
        b"detail" => {
            return line(
                out,
                match more {
                    b"off" => b"OK",
                    _ => b"CLIENT_ERROR usage: stats detail on|off|dump",
                },
            );
        }
        b"cachedump" if rest.is_empty() => return line(out, b"CLIENT_ERROR bad command line"),
        b"cachedump" => {
            let (Some(class), Some(limit)) = (parse_u32(more), parse_u32(rest)) else {
                return line(out, BAD_FORMAT);
            };
            if class >= SLAB_CLASSES {
                return line(out, b"CLIENT_ERROR Illegal slab id");
            }
            cachedump(shared, worker, class, limit, out);
        }
        _ => return line(out, b"ERROR"),
    }
    line(out, b"END");
}

/// Some keys, at most 2 MB of answer, for which it takes exactly the memory that they may need (`unsent`). All items are in class 1.
fn cachedump(shared: &Shared, worker: &Worker, class: u32, limit: u32, out: &mut Vec<u8>) {
    if class != 1 {
        return;
    }
    // A limit of 0 is none.
    let items = shared.store.items().min(if limit == 0 { u64::MAX } else { limit.into() });
    let len = (items as usize).saturating_mul(CACHEDUMP_ITEM).min(CACHEDUMP_MAX);
    out.reserve_exact(len + CACHEDUMP_ITEM + "END\r\n".len());
    let (mut left, most) = (limit, out.len() + len);
    shared.store.visit(worker.now, |item| {
        out.extend_from_slice(b"ITEM ");
        out.extend_from_slice(item.key());
        out.extend_from_slice(format!(" [{} b; {} s]\r\n", item.value_len(), item.expires()).as_bytes());
        left = left.wrapping_sub(1);
        left != 0 && out.len() < most
    });
}

fn general(shared: &Shared, worker: &Worker, stats: &mut Stats<'_>) {
    let (store, config, sums) = (&*shared.store, &shared.config, shared.sums());
    let count = |counter| sums.get(counter);
    stats.put("pid", std::process::id());
    stats.put("uptime", worker.now.saturating_sub(shared.clock.started()));
    stats.put("time", worker.now);
    stats.put("version", crate::server::VERSION);
    stats.put("pointer_size", usize::BITS);
    let (user, system) = cpu_time();
    stats.put("rusage_user", user);
    stats.put("rusage_system", system);
    stats.put("max_connections", config.max_connections);
    stats.put("curr_connections", shared.seats.taken());
    stats.put("total_connections", count(Counter::Connections));
    if config.reject_when_full {
        stats.put("rejected_connections", count(Counter::Rejected));
    }
    stats.put("cmd_get", count(Counter::GetCommands));
    stats.put("cmd_set", count(Counter::SetCommands));
    stats.put("cmd_flush", count(Counter::FlushCommands));
    stats.put("cmd_touch", count(Counter::TouchCommands));
    stats.put("cmd_meta", count(Counter::MetaCommands));
    stats.put("cmd_durable", count(Counter::Barriers));
    stats.put("get_hits", count(Counter::GetHits));
    stats.put("get_misses", count(Counter::GetMisses));
    stats.put("get_expired", count(Counter::GetExpired));
    stats.put("get_flushed", count(Counter::GetFlushed));
    stats.put("delete_misses", count(Counter::DeleteMisses));
    stats.put("delete_hits", count(Counter::DeleteHits));
    stats.put("incr_misses", count(Counter::IncrMisses));
    stats.put("incr_hits", count(Counter::IncrHits));
    stats.put("decr_misses", count(Counter::DecrMisses));
    stats.put("decr_hits", count(Counter::DecrHits));
    stats.put("cas_misses", count(Counter::CasMisses));
    stats.put("cas_hits", count(Counter::CasHits));
    stats.put("cas_badval", count(Counter::CasMismatches));
    stats.put("touch_hits", count(Counter::TouchHits));
    stats.put("touch_misses", count(Counter::TouchMisses));
    stats.put("store_too_large", count(Counter::StoreTooLarge));
    stats.put("store_no_memory", count(Counter::StoreNoMemory));
    stats.put("store_failed", count(Counter::StoreFailed));
    stats.put("auth_cmds", 0);
    stats.put("auth_errors", 0);
    if config.idle_timeout.is_some() {
        stats.put("idle_kicks", count(Counter::IdleKicks));
    }
    stats.put("request_kicks", count(Counter::RequestKicks));
    stats.put("read_buf_bytes", shared.receiving.budget.held());
    stats.put("response_obj_bytes", shared.unsent.held());
    stats.put("bytes_read", count(Counter::BytesRead));
    stats.put("bytes_written", count(Counter::BytesWritten));
    stats.put("limit_maxbytes", store.limit());
    stats.put("accepting_conns", u8::from(shared.accepting.load(Relaxed)));
    stats.put("listen_disabled_num", count(Counter::ListenDisabled));
    stats.put("time_in_listen_disabled_us", shared.listen_disabled_us.load(Relaxed));
    stats.put("threads", config.threads);
    stats.put("conn_yields", count(Counter::Yields));
    let shape = store.shape();
    stats.put("hash_power_level", shape.bits);
    stats.put("hash_buckets", shape.lines() * BUCKETS as u64);
    stats.put("hash_bytes", shape.lines() * 64);
    stats.put("hash_is_expanding", u8::from(shape.splitting));
    stats.put("lru_crawler_running", u8::from(store.crawler_enabled()));
    stats.put("bytes", store.bytes());
    stats.put("curr_items", store.items());
    stats.put("total_items", count(Counter::TotalItems));
    stats.put("expired_unfetched", count(Counter::ExpiredUnfetched));
    stats.put("evicted_unfetched", count(Counter::EvictedUnfetched));
    stats.put("evicted_active", 0);
    stats.put("evictions", count(Counter::Evictions));
    stats.put("reclaimed", count(Counter::Reclaimed));
    stats.put("crawler_reclaimed", count(Counter::CrawlerReclaimed));
    stats.put("lrutail_reflocked", 0);
    stats.put("panics", count(Counter::Panics));
    let space = store.pool().space();
    stats.put("chunk_bytes", space.in_use);
    stats.put("chunk_bytes_max", space.bound);
    stats.put("chunk_bytes_free", space.free);
    stats.put("chunk_bytes_free_longest", space.longest_free);
    stats.put("slab_bytes_free", space.free_in_slabs);
    stats.put("windows_cleared", count(Counter::WindowsCleared));
    stats.put("windows_kept", count(Counter::WindowsKept));
    stats.put("window_evictions", count(Counter::WindowEvictions));
}

fn durability(shared: &Shared, stats: &mut Stats<'_>) {
    let pool = shared.store.pool();
    let engine = pool.stats();
    let mode = match pool.mode() {
        towa_epoch::Mode::NonStop => "non-stop",
        towa_epoch::Mode::StopTheWorld => "stop-the-world",
        towa_epoch::Mode::Volatile => "volatile",
    };
    stats.put("towa_mode", mode);
    if let Some(medium) = pool.medium() {
        stats.put("towa_medium", format_args!("{:?}", medium.kind()).to_string().to_lowercase());
        stats.put("towa_pool", medium.location());
    }
    for (name, value) in &shared.config.labels {
        stats.put(name, value);
    }
    stats.put("epoch", engine.epoch);
    stats.put("durable_epoch", engine.durable_epoch);
    stats.put("durable_age_us", engine.durable_age_us);
    stats.put("epoch_interval_us", pool.interval().as_micros());
    stats.put("checkpoints", engine.checkpoints);
    stats.put("boundary_us_max", engine.boundary_us_max);
    stats.put("checkpoint_us_max", engine.checkpoint_us_max);
    stats.put("log_bytes", engine.log_bytes);
    stats.put("log_capacity", engine.log_capacity);
    stats.put("lines_logged", engine.lines_logged);
    stats.put("medium_bytes", engine.medium_bytes);
    let sums = shared.sums();
    stats.put("stalls", engine.stalls + sums.get(Counter::LogWaits));
    stats.put("stall_us", engine.stall_us + sums.get(Counter::LogWaitMicros));
    stats.put("heap_used", engine.heap_used);
    stats.put("heap_len", engine.heap_len);
    stats.put("memory_most", Footprint::with_limit(shared, shared.store.limit()).total());
    stats.put("recovered_lines", engine.recovered_lines);
    stats.put("recovery_us", engine.recovery_us);
}

fn settings(shared: &Shared, stats: &mut Stats<'_>) {
    let config = &shared.config;
    let yes = |on: bool| if on { "yes" } else { "no" };
    stats.put("maxbytes", shared.store.limit());
    stats.put("maxconns", config.max_connections);
    stats.put("tcpport", config.port);
    stats.put("udpport", 0);
    stats.put("inter", if config.listen.is_empty() { "NULL".to_owned() } else { config.listen.join(",") });
    stats.put("verbosity", shared.verbosity.load(Relaxed));
    stats.put("oldest", 0);
    stats.put("evictions", if config.evict { "on" } else { "off" });
    let socket = config.unix_socket.as_ref().map_or("NULL".into(), |path| path.display().to_string());
    stats.put("domain_socket", socket);
    stats.put("umask", format_args!("{:o}", config.unix_socket_mode));
    stats.put("shutdown_command", yes(config.shutdown_command));
    stats.put("num_threads", config.threads);
    stats.put("detail_enabled", "no");
    stats.put("cas_enabled", "yes");
    stats.put("tcp_backlog", config.backlog);
    stats.put("binding_protocol", "ascii");
    stats.put("auth_enabled_sasl", "no");
    stats.put("auth_enabled_ascii", "no");
    stats.put("item_size_max", config.item_size_max);
    stats.put("maxconns_fast", yes(config.reject_when_full));
    stats.put("lru_crawler", yes(shared.store.crawler_enabled()));
    stats.put("flush_enabled", yes(config.flush_enabled));
    stats.put("dump_enabled", "no");
    stats.put("hash_algorithm", "xxh3");
    stats.put("idle_timeout", config.idle_timeout.map_or(0, |timeout| timeout.as_secs()));
    stats.put("request_timeout", config.request_timeout.map_or(0, |timeout| timeout.as_secs()));
}

/// Everything is in one class, number 1.
fn items(shared: &Shared, stats: &mut Stats<'_>) {
    let (store, sums) = (&*shared.store, shared.sums());
    if store.items() == 0 {
        return;
    }
    stats.put("items:1:number", store.items());
    stats.put("items:1:mem_requested", store.bytes());
    for (name, counter) in [
        ("evicted", Counter::Evictions),
        ("evicted_nonzero", Counter::EvictedExpiring),
        ("outofmemory", Counter::StoreNoMemory),
        ("reclaimed", Counter::Reclaimed),
        ("expired_unfetched", Counter::ExpiredUnfetched),
        ("evicted_unfetched", Counter::EvictedUnfetched),
        ("crawler_reclaimed", Counter::CrawlerReclaimed),
    ] {
        stats.put(&format!("items:1:{name}"), sums.get(counter));
    }
}

fn slabs(shared: &Shared, stats: &mut Stats<'_>) {
    let (store, sums) = (&*shared.store, shared.sums());
    stats.put("1:used_chunks", store.items());
    stats.put("1:get_hits", sums.get(Counter::GetHits));
    stats.put("1:cmd_set", sums.get(Counter::SetCommands));
    stats.put("active_slabs", 1);
    stats.put("total_malloced", store.pool().stats().heap_used);
}

/// The listeners; connections are counted, not listed.
fn connections(shared: &Shared, stats: &mut Stats<'_>) {
    for (index, address) in shared.listening.lock().iter().enumerate() {
        stats.put(&format!("{index}:addr"), address);
        stats.put(&format!("{index}:state"), "conn_listening");
    }
}

fn cpu_time() -> (String, String) {
    // SAFETY: all-zero bytes are a valid rusage, and the call fills it in.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let show = |time: libc::timeval| format!("{}.{:06}", time.tv_sec, time.tv_usec);
    (show(usage.ru_utime), show(usage.ru_stime))
}
