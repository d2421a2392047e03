//! The machine a run was made on, so that a figure can be read for what it is.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// The machine and the state it was in.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Processor, as the kernel names it.
    pub cpu: String,
    /// Cores this process may use.
    pub cores: usize,
    /// Memory in MiB.
    pub memory_mb: u64,
    /// Kernel release.
    pub kernel: String,
    /// Transparent huge pages, as `/sys/kernel/mm/transparent_hugepage/enabled` says.
    pub huge_pages: String,
    /// One-minute load average at the start: well above 0, others were using the cores.
    pub load_at_start: f64,
    /// One-minute load average at the end.
    pub load_at_end: f64,
    /// Share of processor time taken by other processes during the run (0..=1): what disturbed it.
    pub others_cpu_share: Option<f64>,
    /// Share of processor time stolen by the hypervisor during the run (0..=1).
    pub stolen_cpu_share: Option<f64>,
    /// Commit the benchmark was built from, if it was built within a repository.
    pub commit: Option<String>,
    /// Version of the programs.
    pub version: String,
}

/// Processor time used up to a moment, in seconds over all cores.
#[derive(Clone, Copy, Debug)]
pub struct CpuTimes {
    all: f64,
    busy: f64,
    stolen: f64,
    ours: f64,
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

impl Machine {
    /// Looks at the machine; the figures of the run's end are filled in by [`finish`](Self::finish).
    pub fn here() -> Self {
        let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpuinfo.lines().find(|l| l.starts_with("model name")).and_then(|l| l.split_once(": "));
        let load_at_start = load();
        Self {
            cpu: cpu.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mb: meminfo_mb("MemTotal").unwrap_or(0),
            kernel: read("/proc/sys/kernel/osrelease").map_or_else(|| "unknown".into(), |s| s.trim().to_owned()),
            huge_pages: read("/sys/kernel/mm/transparent_hugepage/enabled")
                .and_then(|s| Some(s.split_once('[')?.1.split_once(']')?.0.to_owned()))
                .unwrap_or_else(|| "unknown".into()),
            load_at_start,
            load_at_end: load_at_start,
            others_cpu_share: None,
            stolen_cpu_share: None,
            commit: option_env!("TOWA_COMMIT").map(str::to_owned),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Fills in what is known at the end of a run that began at `start`.
    pub fn finish(&mut self, start: Option<CpuTimes>) {
        self.load_at_end = load();
        if let (Some(a), Some(b)) = (start, CpuTimes::now()) {
            let all = (b.all - a.all).max(1e-9);
            let ours = b.ours - a.ours;
            self.others_cpu_share = Some(((b.busy - a.busy - ours) / all).clamp(0.0, 1.0));
            self.stolen_cpu_share = Some(((b.stolen - a.stolen) / all).clamp(0.0, 1.0));
        }
    }
}

/// Memory that can still be used, in MiB.
pub fn memory_available_mb() -> Option<u64> {
    meminfo_mb("MemAvailable")
}

fn meminfo_mb(field: &str) -> Option<u64> {
    let text = read("/proc/meminfo")?;
    let line = text.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':'))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? / 1024)
}

fn load() -> f64 {
    read("/proc/loadavg").and_then(|s| s.split_whitespace().next()?.parse().ok()).unwrap_or(0.0)
}

impl CpuTimes {
    /// Times up to now; children count as ours once they have been waited for.
    pub fn now() -> Option<Self> {
        // SAFETY: sysconf reads a constant of the system; no memory is involved.
        let hz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64;
        let stat = read("/proc/stat")?;
        let fields: Vec<f64> =
            stat.lines().next()?.split_whitespace().skip(1).filter_map(|f| f.parse::<f64>().ok()).map(|t| t / hz).collect();
        // user nice system idle iowait irq softirq steal (guest times are within user and nice)
        let &[user, nice, system, idle, iowait, irq, softirq, stolen, ..] = fields.as_slice() else {
            return None;
        };
        let busy = user + nice + system + irq + softirq;
        let own = read("/proc/self/stat")?;
        // After the name in parentheses: utime, stime, cutime, cstime are fields 14 to 17 of the line.
        let ours = own.rsplit_once(')')?.1.split_whitespace().skip(11).take(4).filter_map(|f| f.parse::<f64>().ok());
        Some(Self { all: busy + idle + iowait + stolen, busy, stolen, ours: ours.sum::<f64>() / hz })
    }
}

/// Now, as `2026-01-31T23:59:59Z`.
pub fn date_utc() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    format_utc(seconds)
}

/// Civil date from a day number (Hinnant's algorithm; years from 1970 on).
fn format_utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(format_utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(format_utc(951_826_154), "2000-02-29T12:09:14Z");
        assert_eq!(format_utc(1_767_225_599), "2025-12-31T23:59:59Z");
    }

    #[test]
    fn the_machine_is_described() {
        let start = CpuTimes::now().expect("/proc/stat has times");
        let mut machine = Machine::here();
        machine.finish(Some(start));
        assert!(machine.cores > 0 && machine.memory_mb > 100 && machine.kernel.contains('.'), "{machine:?}");
        assert!(memory_available_mb().unwrap() <= machine.memory_mb);
    }

    #[test]
    fn our_own_time_is_not_others() {
        let start = CpuTimes::now().unwrap();
        let t = std::time::Instant::now();
        let ours = || CpuTimes::now().unwrap().ours - start.ours;
        // As long as it takes on a busy machine.
        while ours() <= 0.05 {
            assert!(t.elapsed().as_secs() < 30, "{start:?} {:?}", CpuTimes::now());
        }
    }
}
