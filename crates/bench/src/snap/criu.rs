//! CRIU beside us, where it is installed and works on this kernel: the same program, dumped while it goes on, and restored.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::board::{Order, now_ns};
use super::program::{Program, Shape};
use super::report::CriuRow;
use super::stats::{longest, ms};
use crate::peers::find_program;

const CRIU: &str = "criu";

/// Why it cannot be measured here, if so.
pub fn missing() -> Option<String> {
    if find_program(CRIU).is_none() {
        return Some("criu is not installed".into());
    }
    let check = Command::new(CRIU).arg("check").stdin(Stdio::null()).output();
    match check {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!("criu check: {}", last_line(&output))),
        Err(e) => Some(format!("criu check: {e}")),
    }
}

fn last_line(output: &Output) -> String {
    let text = [&output.stdout[..], b"\n", &output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing").trim().to_owned()
}

/// One size, in an empty directory.
pub fn measure(children: &Path, dir: &Path, shape: Shape) -> Result<CriuRow> {
    let mut program = Program::start(children, dir, shape)?;
    let images = dir.join("images");
    std::fs::create_dir(&images)?;
    let run = |more: &[&str]| -> Result<Output> {
        let mut command = Command::new(CRIU);
        command.args(more).arg("--images-dir").arg(&images).args(["--shell-job", "--display-stats"]).stdin(Stdio::null());
        let output = command.output().context("criu")?;
        ensure!(output.status.success(), "criu {}: {}", more[0], last_line(&output));
        Ok(output)
    };
    let (mut read, mut gaps) = (0, Vec::new());
    let _ = program.board.gaps(&mut read, &mut gaps);
    gaps.clear();
    let began = now_ns();
    let dumped = run(&["dump", "--leave-running", "--tree", &program.pid().to_string()])?;
    let ended = now_ns();
    std::thread::sleep(std::time::Duration::from_millis(50));
    program.board.gaps(&mut read, &mut gaps)?;
    let seen = longest(&gaps, began, ended);
    program.kill()?;
    let began_restore = now_ns();
    run(&["restore", "--restore-detached"])?;
    let first = program.first_look_after(began_restore, &mut read);
    // It is nobody's child: it is told to end, and else killed.
    let answered = program.order(Order::Touch, 0);
    program.board.ask(Order::End, 0);
    if first.is_err() || answered.is_err() {
        // SAFETY: a number; the process has it since the restore.
        unsafe { libc::kill(program.pid(), libc::SIGKILL) };
        bail!("the program that criu restored does not run");
    }
    Ok(CriuRow {
        mb: shape.mb,
        pause_ms: ms(seen),
        frozen_ms: frozen_us(&String::from_utf8_lossy(&dumped.stdout)).map(|us| us as f64 / 1e3),
        total_ms: ms(ended - began),
        first_instruction_ms: ms(first? - began_restore),
    })
}

/// "Frozen time: 12345 us"
fn frozen_us(stats: &str) -> Option<u64> {
    let line = stats.lines().find_map(|line| line.trim().strip_prefix("Frozen time:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_figures_are_read() {
        let text = "Displaying dump stats:\nFreezing time: 114 us\nFrozen time: 361234 us\nMemory dump time: 1 us\n";
        assert_eq!(frozen_us(text), Some(361_234));
        assert_eq!(frozen_us("nothing"), None);
    }
}
