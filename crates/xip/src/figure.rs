//! Figures as data, and as text for a terminal; [`page`] draws them for a browser.
//!
//! What must hold: a figure is its numbers: every drawing carries or stands beside them, and nothing is drawn that is not in them.

mod html;

use std::fmt::Write;

use serde::Serialize;

pub use html::{Table, page};

/// A figure: lines over a common x.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// What it shows.
    pub title: String,
    /// The axis to the right.
    pub x: Axis,
    /// The axis upwards.
    pub y: Axis,
    /// The lines; all have the same x values, in rising order.
    pub series: Vec<Series>,
}

/// An axis.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Axis {
    /// What it measures, and its unit.
    pub name: String,
    /// Whether it is logarithmic. Where a value is not positive the axis is drawn linear, whatever this says.
    pub log: bool,
}

impl Axis {
    /// A linear one.
    pub fn linear(name: &str) -> Axis {
        Axis { name: name.into(), log: false }
    }

    /// A logarithmic one.
    pub fn log(name: &str) -> Axis {
        Axis { name: name.into(), log: true }
    }
}

/// A line of a figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// What it is.
    pub name: String,
    /// (x, y), by x.
    pub points: Vec<(f64, f64)>,
}

/// From values to a share of an axis, 0 to 1.
#[derive(Clone, Copy, Debug)]
struct Scale {
    from: f64,
    to: f64,
    log: bool,
}

impl Scale {
    /// Over all of `values`, to round ends: whole decades or whole steps; `exact` keeps linear ends as they are.
    fn over(values: impl Iterator<Item = f64> + Clone, log: bool, exact: bool) -> Scale {
        let (least, most) = values.filter(|v| v.is_finite()).fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(v), b.max(v)));
        if least > most {
            return Scale { from: 0.0, to: 1.0, log: false };
        }
        if log && least > 0.0 {
            let (from, to) = (10f64.powf(least.log10().floor()), 10f64.powf(most.log10().ceil()));
            return Scale { from, to: if to > from { to } else { from * 10.0 }, log: true };
        }
        let (from, to) = if exact { (least, most) } else { (least.min(0.0), most) };
        Scale { from, to: if to > from { to } else { from + 1.0 }, log: false }
    }

    fn of_x(figure: &Figure) -> Scale {
        Scale::over(figure.series.iter().flat_map(|s| s.points.iter().map(|p| p.0)), figure.x.log, true)
    }

    fn of_y(figure: &Figure) -> Scale {
        Scale::over(figure.series.iter().flat_map(|s| s.points.iter().map(|p| p.1)), figure.y.log, false)
    }

    fn at(&self, value: f64) -> f64 {
        let value = value.clamp(self.from, self.to);
        if self.log { (value / self.from).ln() / (self.to / self.from).ln() } else { (value - self.from) / (self.to - self.from) }
    }

    /// Values to mark: decades, or about five round steps.
    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let (least, most) = (self.from.log10().round() as i32, self.to.log10().round() as i32);
            return (least..=most).map(|e| 10f64.powi(e)).collect();
        }
        let rough = (self.to - self.from) / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|s| s * power).find(|s| *s >= rough * 0.999).unwrap_or(power);
        let first = (self.from / step - 1e-9).ceil() as i64;
        (first..).map(|i| i as f64 * step).take_while(|v| *v <= self.to + step * 1e-9).collect()
    }
}

/// A number in as many digits as tell something.
pub fn short(value: f64) -> String {
    let trimmed = |text: String| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    };
    match value.abs() {
        0.0 => "0".into(),
        v if !(1e-4..1e7).contains(&v) => format!("{value:.2e}"),
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 100.0 => trimmed(format!("{value:.1}")),
        v if v >= 1.0 => trimmed(format!("{value:.2}")),
        _ => trimmed(format!("{value:.4}")),
    }
}

/// Rows of cells as aligned lines: the first `left` columns to the left, the others to the right.
pub fn columns(left: usize, rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|t| t.chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..count).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (c, (text, width)) in row.iter().zip(&widths).enumerate() {
            let _ = if c < left { write!(line, "{text:<width$}  ") } else { write!(line, "{text:>width$}  ") };
        }
        out += line.trim_end();
        out.push('\n');
    }
    out
}

/// Columns and lines of a drawing on a terminal.
const GRID: (usize, usize) = (60, 14);
/// Most rows of the table below it.
const ROWS: usize = 11;

/// The figure for a terminal: a drawing with a letter for each line, and a table that names the letters.
pub fn terminal(figure: &Figure) -> String {
    let letters: Vec<char> = ('a'..='z').cycle().take(figure.series.len()).collect();
    let mut text = format!("{}\n\n", figure.title);
    text += &drawing(figure, &letters);
    let name = |(series, letter): (&Series, &char)| format!("  {letter} = {}\n", series.name);
    text.extend(figure.series.iter().zip(&letters).map(name));
    text.push('\n');
    let mut rows = vec![std::iter::once("x".to_owned()).chain(letters.iter().map(char::to_string)).collect::<Vec<_>>()];
    let points = figure.series.first().map_or(0, |s| s.points.len());
    for i in (0..points).step_by(points.div_ceil(ROWS).max(1)) {
        let x = short(figure.series[0].points[i].0);
        let values = figure.series.iter().map(|s| s.points.get(i).map_or("-".into(), |p| short(p.1)));
        rows.push(std::iter::once(x).chain(values).collect());
    }
    text + &columns(0, &rows)
}

fn drawing(figure: &Figure, letters: &[char]) -> String {
    let (x, y) = (Scale::of_x(figure), Scale::of_y(figure));
    let (width, height) = GRID;
    let line_of = |value: f64| height - 1 - (y.at(value) * (height - 1) as f64).round() as usize;
    let mut grid = vec![vec![' '; width]; height];
    for (series, letter) in figure.series.iter().zip(letters) {
        let shares = (0..width).map(|column| (column, column as f64 / (width - 1) as f64));
        for (column, value) in shares.filter_map(|(column, share)| Some((column, between(&series.points, &x, share)?))) {
            let cell = &mut grid[line_of(value)][column];
            *cell = if *cell == ' ' { *letter } else { '*' };
        }
    }
    let mut marks = vec![String::new(); height];
    y.ticks().iter().for_each(|tick| marks[line_of(*tick)] = short(*tick));
    let mut text = format!("  {}{}\n", figure.y.name, if y.log { " (logarithmic)" } else { "" });
    for (mark, line) in marks.iter().zip(&grid) {
        let line: String = line.iter().collect();
        let _ = writeln!(text, "{mark:>10} |{}", line.trim_end());
    }
    let (from, to) = (short(x.from), short(x.to));
    let _ = writeln!(text, "{:>10} +{}", "", "-".repeat(width));
    let room = width.saturating_sub(from.len() + to.len());
    let _ = writeln!(text, "{:>12}{from}{:^room$}{to}", "", figure.x.name);
    text + "  (* = several lines)\n"
}

/// The value of a line at a share of the x axis.
fn between(points: &[(f64, f64)], x: &Scale, share: f64) -> Option<f64> {
    let at = |i: usize| x.at(points[i].0);
    let after = (0..points.len()).find(|i| at(*i) >= share - 1e-12)?;
    if after == 0 || at(after) <= share {
        return Some(points[after].1);
    }
    let part = (share - at(after - 1)) / (at(after) - at(after - 1));
    Some(points[after - 1].1 + part * (points[after].1 - points[after - 1].1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(log: bool, ys: [f64; 3]) -> Figure {
        let points = ys.iter().enumerate().map(|(i, y)| (i as f64, *y)).collect();
        let level = vec![(0.0, 10.0), (1.0, 10.0), (2.0, 10.0)];
        let series = vec![Series { name: "rising <1>".into(), points }, Series { name: "level".into(), points: level }];
        let y = if log { Axis::log("ms") } else { Axis::linear("ms") };
        Figure { title: "T & t".into(), x: Axis::linear("n"), y, series }
    }

    #[test]
    fn the_terminal_shows_every_line_and_its_numbers() {
        let text = terminal(&figure(true, [1.0, 10.0, 100.0]));
        assert!(text.contains("a = rising <1>") && text.contains("b = level") && text.contains("(logarithmic)"), "{text}");
        let last = text.lines().last().unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(last, ["2", "100", "10"]);
        let top = text.lines().find(|l| l.contains("100 |")).unwrap();
        assert!(top.ends_with('a'), "it ends at the top on the right: {top}");
        let bottom = text.lines().find(|l| l.trim_start().starts_with("1 |a")).unwrap();
        assert!(bottom.trim_start().starts_with("1 |a"), "and begins at the bottom on the left");
    }

    #[test]
    fn zero_on_a_logarithmic_axis_makes_it_linear() {
        let text = terminal(&figure(true, [0.0, 10.0, 100.0]));
        assert!(!text.contains("(logarithmic)"), "{text}");
        let page = page("t", "", &[], &[figure(true, [0.0, 10.0, 100.0])]);
        assert!(!page.contains("NaN") && !page.contains("inf"));
    }

    #[test]
    fn nothing_is_drawn_without_breaking() {
        let empty = Figure { series: Vec::new(), ..figure(false, [0.0; 3]) };
        assert!(terminal(&empty).contains("T & t"));
        let flat = figure(false, [10.0; 3]);
        assert!(terminal(&flat).contains('*'));
    }

    #[test]
    fn numbers_are_short() {
        let cases = [
            (0.0, "0"),
            (51_610.0, "51610"),
            (600.25, "600.2"),
            (10.0, "10"),
            (0.98317, "0.9832"),
            (-0.595, "-0.595"),
            (1e-5, "1.00e-5"),
        ];
        for (value, text) in cases {
            assert_eq!(short(value), text);
        }
        assert_eq!(short(100.0), "100");
    }

    #[test]
    fn scales_and_ticks_are_round() {
        let linear = Scale { from: 0.9, to: 1.0, log: false };
        assert_eq!(linear.ticks().len(), 6);
        assert!((linear.at(0.95) - 0.5).abs() < 1e-9);
        let log = Scale::over([0.1, 620.0].into_iter(), true, false);
        assert_eq!((log.from, log.to), (0.1, 1000.0));
        assert_eq!(log.ticks(), [0.1, 1.0, 10.0, 100.0, 1000.0]);
    }
}
