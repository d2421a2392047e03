//! Man pages and shell completions, made from the same definitions as the help.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, CommandFactory};

use crate::cli::Cli;
use crate::report;

/// Print completions for a shell.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  towa completions bash > ~/.local/share/bash-completion/completions/towa
  towa completions zsh  > ~/.zfunc/_towa
  towa completions fish > ~/.config/fish/completions/towa.fish")]
pub struct CompletionsArgs {
    /// Which shell.
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

/// Write man pages into a directory, one for each command.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  towa man ~/.local/share/man/man1 && man towa-serve")]
pub struct ManArgs {
    /// Where to; made if it is not there.
    dir: PathBuf,
}

/// `towa completions`.
pub fn completions(args: &CompletionsArgs) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "towa", &mut text);
    report::verbatim(&String::from_utf8(text).context("completions are text")?)
}

/// `towa man`.
pub fn man(args: &ManArgs) -> Result<()> {
    let place = || format!("{}: man pages cannot be written", args.dir.display());
    std::fs::create_dir_all(&args.dir).with_context(place)?;
    clap_mangen::generate_to(Cli::command(), &args.dir).with_context(place)
}
