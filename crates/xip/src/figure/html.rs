//! Figures and tables as one page that needs nothing else.
//!
//! What must hold: no script, no request; every point carries its value as a tool tip and stands in a table; colours follow the reader's choice
//! of light or dark; text from outside is escaped.

use std::fmt::Write;

use super::{Figure, Scale, Series, short};

const STYLE: &str = include_str!("page.css");
/// Width and height of a plot, in SVG units.
const SIZE: (f64, f64) = (760.0, 300.0);
/// Left, right, top and bottom of what is drawn in.
const PLOT: (f64, f64, f64, f64) = (66.0, 740.0, 12.0, 252.0);
/// How many colours the style has.
const COLOURS: usize = 6;

/// A table of a page.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Above it.
    pub title: String,
    /// What it says, in a sentence.
    pub text: String,
    /// Names of the columns.
    pub head: Vec<String>,
    /// Cells.
    pub rows: Vec<Vec<String>>,
}

/// A whole page: `intro` below the title, then the tables, then the figures.
pub fn page(title: &str, intro: &str, tables: &[Table], figures: &[Figure]) -> String {
    let title = escape(title);
    let mut body = format!("<h1>{title}</h1><p>{}</p>", escape(intro));
    for table in tables {
        let _ = write!(body, "<section><h2>{}</h2><p>{}</p>{}</section>", escape(&table.title), escape(&table.text), rows(table));
    }
    for figure in figures {
        let _ = write!(body, "<section><h2>{}</h2>{}{}</section>", escape(&figure.title), legend(figure), plot(figure));
        let _ = write!(body, "<details><summary>numbers</summary>{}</details>", rows(&numbers(figure)));
    }
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head><body><main>{body}</main></body></html>\n"
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn rows(table: &Table) -> String {
    let cells = |tag: &str, cells: &[String]| -> String { cells.iter().map(|c| format!("<{tag}>{}</{tag}>", escape(c))).collect() };
    let body: String = table.rows.iter().map(|r| format!("<tr>{}</tr>", cells("td", r))).collect();
    let head = cells("th", &table.head);
    format!("<div class=\"scroll\"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>")
}

fn numbers(figure: &Figure) -> Table {
    let head = std::iter::once(figure.x.name.clone()).chain(figure.series.iter().map(|s| s.name.clone())).collect();
    let points = figure.series.first().map_or(&[][..], |s| &s.points);
    let line = |(i, (x, _)): (usize, &(f64, f64))| {
        let values = figure.series.iter().map(|s| s.points.get(i).map_or("-".into(), |p| short(p.1)));
        std::iter::once(short(*x)).chain(values).collect()
    };
    Table { head, rows: points.iter().enumerate().map(line).collect(), ..Table::default() }
}

fn legend(figure: &Figure) -> String {
    let one = |(i, s): (usize, &Series)| format!("<span><i class=\"c{}\"></i>{}</span>", i % COLOURS, escape(&s.name));
    format!("<p class=\"legend\">{}</p>", figure.series.iter().enumerate().map(one).collect::<String>())
}

fn plot(figure: &Figure) -> String {
    let (x, y) = (Scale::of_x(figure), Scale::of_y(figure));
    let (left, right, top, bottom) = PLOT;
    let right_at = |value: f64| left + x.at(value) * (right - left);
    let up_at = |value: f64| bottom - y.at(value) * (bottom - top);
    let label = escape(&figure.title);
    let mut svg = format!("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{label}\">", SIZE.0, SIZE.1);
    for tick in y.ticks() {
        let at = up_at(tick);
        let _ = write!(svg, "<line class=\"grid\" x1=\"{left}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>");
        text(&mut svg, (left - 6.0, at + 4.0), "end", &short(tick));
    }
    for tick in x.ticks() {
        let at = right_at(tick);
        let _ = write!(svg, "<line class=\"axis\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{bottom}\" y2=\"{}\"/>", bottom + 4.0);
        text(&mut svg, (at, bottom + 18.0), "middle", &short(tick));
    }
    let (across, down) = ((left + right) / 2.0, (top + bottom) / 2.0);
    text(&mut svg, (across, bottom + 38.0), "middle", &figure.x.name);
    let turned = format!("class=\"tick\" transform=\"translate(12 {down:.0}) rotate(-90)\" text-anchor=\"middle\"");
    let _ = write!(svg, "<text {turned}>{}{}</text>", escape(&figure.y.name), if y.log { ", logarithmic" } else { "" });
    for (i, series) in figure.series.iter().enumerate() {
        line(&mut svg, i, series, &|(x, y)| (right_at(x), up_at(y)));
    }
    let _ = write!(svg, "<line class=\"axis\" x1=\"{left}\" x2=\"{right}\" y1=\"{bottom}\" y2=\"{bottom}\"/></svg>");
    svg
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, what: &str) {
    let _ = write!(svg, "<text class=\"tick\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", escape(what));
}

fn line(svg: &mut String, index: usize, series: &Series, at: &dyn Fn((f64, f64)) -> (f64, f64)) {
    let class = index % COLOURS;
    let path: Vec<_> = series.points.iter().map(|p| at(*p)).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = write!(svg, "<polyline class=\"line c{class}\" points=\"{}\"/>", path.join(" "));
    for point in &series.points {
        let (x, y) = at(*point);
        let tip = escape(&format!("{}: {} at {}", series.name, short(point.1), short(point.0)));
        let _ = write!(svg, "<circle class=\"dot c{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"><title>{tip}</title></circle>");
    }
}

#[cfg(test)]
mod tests {
    use super::super::Axis;
    use super::*;

    #[test]
    fn a_page_holds_everything_and_asks_for_nothing() {
        let series = vec![Series { name: "a<b".into(), points: vec![(1.0, 1.0), (2.0, 100.0)] }];
        let figure = Figure { title: "F \"1\"".into(), x: Axis::linear("n"), y: Axis::log("ms"), series };
        let table = Table { title: "T".into(), text: "t".into(), head: vec!["h".into()], rows: vec![vec!["<&>".into()]] };
        let page = page("P", "i", &[table], &[figure]);
        for part in
            ["a&lt;b: 100 at 2", "&lt;&amp;&gt;", "prefers-color-scheme: dark", "aria-label=\"F &quot;1&quot;\"", "ms, logarithmic"]
        {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(!page.contains("<script") && !page.contains("http") && !page.contains("url("));
        // One decade up from the bottom is half of two.
        assert!(page.contains("cy=\"252.0\"") && page.contains("cy=\"12.0\""), "{page}");
    }
}
