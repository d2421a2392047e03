//! What is printed: JSON for programs, aligned lines and readable units for people.
//!
//! What must always hold: pools, stores, checkpoints, servers and traced programs may say anything, and none of it steers a terminal
//! or looks like a line of ours. All output goes through here: [`line()`], [`Lines`] and [`say`] print each text they are given as one
//! line; [`print()`], for texts that are laid out already, lets nothing but line ends through; JSON has escapes of its own.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Error, Result};
use serde::Serialize;
use serde_json::{Value, json};

use crate::failure;

/// Prints `value` as JSON, on several lines.
pub fn json(value: &impl Serialize) -> Result<()> {
    verbatim(&format!("{}\n", plain_json(&serde_json::to_string_pretty(value).context("making JSON")?)))
}

/// Prints `value` as JSON, on one line.
pub fn json_line(value: &impl Serialize) -> Result<()> {
    verbatim(&format!("{}\n", plain_json(&serde_json::to_string(value).context("making JSON")?)))
}

/// JSON text in which hidden characters are escapes. All of them are parts of strings: outside of these JSON has none but line ends.
fn plain_json(json: &str) -> Cow<'_, str> {
    let hidden = |c: char| c != '\n' && is_hidden(c);
    if !json.contains(hidden) {
        return json.into();
    }
    let escape = |c: char| c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect();
    json.chars().map(|c| if hidden(c) { escape(c) } else { c.to_string() }).collect::<String>().into()
}

/// Whether a character does something else than to show itself: controls, ends of lines and paragraphs, marks that turn the direction
/// of the text around them, and what has no width.
fn is_hidden(c: char) -> bool {
    let has_no_width =
        matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2060}'..='\u{2064}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}');
    let turns = matches!(c, '\u{61c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{206f}');
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') || has_no_width || turns
}

/// `path` as text on one line that tells every path from every other: hidden characters, backslashes and bytes that are no text are
/// written as escapes.
pub fn path(path: &Path) -> String {
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                c if is_hidden(c) => text.extend(c.escape_default()),
                c => text.push(c),
            }
        }
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

/// `text` without what would end a line or steer a terminal.
pub fn plain(text: &str) -> Cow<'_, str> {
    plain_but(text, |_| false)
}

/// [`plain`], of a text that is laid out on several lines.
pub fn plain_lines(text: &str) -> Cow<'_, str> {
    plain_but(text, |c| c == '\n')
}

fn plain_but(text: &str, kept: impl Fn(char) -> bool) -> Cow<'_, str> {
    let hidden = |c: char| is_hidden(c) && !kept(c);
    if !text.contains(hidden) {
        return text.into();
    }
    text.chars().map(|c| if hidden(c) { c.escape_default().to_string() } else { c.to_string() }).collect::<String>().into()
}

/// What a failure is in JSON. `about` names what was to be looked at.
pub fn problem((about, what): (&str, String), error: &Error) -> Value {
    json!({ about: what, "problem": failure::message(error), "exit_status": failure::code(error) })
}

/// Prints the JSON of a command that failed, where JSON was asked for; gives the result back.
pub fn bad_news<T>(asked: bool, about: (&str, String), result: Result<T>) -> Result<T> {
    if let (true, Err(error)) = (asked, &result) {
        json(&problem(about, error))?;
    }
    result
}

/// Says something on standard error, if anybody is there to hear it.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "towa: {}", plain(text));
}

/// Prints `text` as one line.
pub fn line(text: impl Display) -> Result<()> {
    verbatim(&format!("{}\n", plain(&text.to_string())))
}

/// Prints a text that is laid out already, at once. What it quotes must have been made [`plain`], so that no line is forged.
pub fn print(text: &str) -> Result<()> {
    verbatim(&plain_lines(text))
}

/// Prints a text that is for another program, as it is.
pub fn verbatim(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("writing to standard output")
}

/// Lines, some of a name and a value, with the values aligned.
#[derive(Debug, Default)]
pub struct Lines(String);

impl Lines {
    /// A heading on a line of its own.
    pub fn heading(&mut self, text: &str) {
        self.row(text);
    }

    /// A line without a name.
    pub fn row(&mut self, text: impl Display) {
        self.0.push_str(&plain(&text.to_string()));
        self.0.push('\n');
    }

    /// A name and its value.
    pub fn line(&mut self, name: &str, value: impl Display) {
        let value = value.to_string();
        self.row(format_args!("  {name:<13} {value}"));
    }

    /// Prints everything.
    pub fn print(self) -> Result<()> {
        print(&self.0)
    }
}

/// `1.5 GiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} bytes");
    }
    let (mut value, mut unit) = (n as f64 / 1024.0, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    if value.fract() < 0.05 || value >= 100.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// `850 us`, `12.3 ms`, `4 s`.
pub fn micros(us: u64) -> String {
    let (value, unit) = match us {
        0..1_000 => return format!("{us} us"),
        1_000..1_000_000 => (us as f64 / 1e3, "ms"),
        _ => (us as f64 / 1e6, "s"),
    };
    if value.fract() < 0.05 || value >= 100.0 { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
}

/// A point in time, seconds since 1970, as `2026-01-31 12:00:00 UTC`.
pub fn utc(unix_s: u64) -> String {
    let (days, seconds) = ((unix_s / 86_400) as i64, unix_s % 86_400);
    // Days to a date: Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days.
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let (day, month) = (day_of_year - (153 * shifted + 2) / 5 + 1, if shifted < 10 { shifted + 3 } else { shifted - 9 });
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_paths_are_one_line_of_text() {
        use std::os::unix::ffi::OsStrExt;
        let said = |bytes| path(Path::new(std::ffi::OsStr::from_bytes(bytes)));
        assert_eq!(said(b"/pl\xc3\xa4in/pool 1"), "/pl\u{e4}in/pool 1");
        assert_eq!(said(b"a\nEND\x1b[2J\xff\\"), "a\\nEND\\u{1b}[2J\\xff\\\\");
        assert_eq!(plain("STAT a\u{1b}[2J"), "STAT a\\u{1b}[2J");
        assert_eq!(said("a\u{202e}b\u{200b}\u{9b}1m".as_bytes()), "a\\u{202e}b\\u{200b}\\u{9b}1m");
    }

    #[test]
    fn what_is_quoted_is_no_line_of_ours() {
        let mut lines = Lines::default();
        lines.heading("name\nother: sound");
        lines.line("roots", "a\r\n  roots         b\u{2028}c\u{7f}");
        assert_eq!(lines.0, "name\\nother: sound\n  roots         a\\r\\n  roots         b\\u{2028}c\\u{7f}\n");
        assert_eq!(plain_lines("one\ntwo\r\u{85}"), "one\ntwo\\r\\u{85}");
    }

    #[test]
    fn json_says_the_same_in_escapes() {
        let text = "\u{1b}\u{7f}\u{9b}\u{202e}\u{e0041}\n\u{e4}\\\"";
        let printed = plain_json(&serde_json::to_string(text).unwrap()).into_owned();
        assert_eq!(printed, "\"\\u001b\\u007f\\u009b\\u202e\\udb40\\udc41\\n\u{e4}\\\\\\\"\"");
        assert_eq!(serde_json::from_str::<String>(&printed).unwrap(), text);
    }

    #[test]
    fn units_are_readable() {
        assert_eq!(bytes(17), "17 bytes");
        assert_eq!(bytes(1 << 20), "1 MiB");
        assert_eq!(bytes(1536 << 20), "1.5 GiB");
        assert_eq!(micros(999), "999 us");
        assert_eq!(micros(12_345), "12.3 ms");
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_782_399), "2000-02-28 23:59:59 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(1_767_225_599), "2025-12-31 23:59:59 UTC");
    }
}
