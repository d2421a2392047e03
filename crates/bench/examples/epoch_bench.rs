//! `towa bench epoch` without the rest of `towa`: for work on the benchmark itself and for its tests. It serves, too, as far as
//! the benchmark asks `towa serve` to.
//!
//! `cargo run --release -p towa-bench --example epoch_bench -- --quick`

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use towa_epoch::Options;
use towa_server::{Config, PoolChoice};

#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    serve: Option<Mode>,
    #[command(flatten)]
    bench: towa_bench::epoch::EpochBenchArgs,
}

#[derive(Subcommand)]
enum Mode {
    /// The server, with the options that the benchmark gives it.
    Serve(Serve),
}

#[derive(Args)]
struct Serve {
    #[arg(short)]
    listen: String,
    #[arg(short)]
    port: u16,
    #[arg(short)]
    threads: usize,
    #[arg(short)]
    memory_mb: u64,
    #[arg(long)]
    pool: Option<PathBuf>,
    #[arg(long)]
    medium: Option<towa_bench::epoch::MediumArg>,
    #[arg(long, default_value_t = 100)]
    interval_ms: u64,
    #[arg(long)]
    volatile: bool,
}

fn serve(args: Serve) -> anyhow::Result<()> {
    let config = Config {
        listen: vec![args.listen],
        port: args.port,
        threads: args.threads,
        memory_limit: Some(args.memory_mb << 20),
        ..Config::default()
    };
    let interval = std::time::Duration::from_millis(args.interval_ms);
    let options = Options { medium: args.medium.map(Into::into), interval, ..Options::default() };
    let pool = match args.pool {
        Some(dir) if !args.volatile => PoolChoice::Directory(dir),
        _ => PoolChoice::Volatile,
    };
    Ok(towa_server::run(config, &pool, &options, |_| ())?)
}

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some((first, rest)) = words.split_first()
        && first == "bench-child"
    {
        return towa_bench::child_main(rest);
    }
    let cli = Cli::parse();
    match cli.serve {
        Some(Mode::Serve(args)) => serve(args),
        None => towa_bench::epoch::run(cli.bench),
    }
}
