//! The plots of the page, as inline SVG drawn by hand: five shapes are less than a plotting library.
//!
//! What must hold: colours come from the page's classes (so light and dark both work); every mark carries its value as a
//! tool tip; every figure drawn is in the page's tables too.

use std::fmt::Write;

/// Width and height of a plot, in SVG units.
const SIZE: (f64, f64) = (760.0, 260.0);
/// Left, right, top and bottom margins.
const MARGIN: (f64, f64, f64, f64) = (58.0, 24.0, 12.0, 34.0);

/// A scale from values to units along one side.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    from: f64,
    to: f64,
    log: bool,
    px: (f64, f64),
}

impl Scale {
    /// Linear from `from` to `to`.
    pub fn linear(from: f64, to: f64) -> Self {
        Self { from, to: if to > from { to } else { from + 1.0 }, log: false, px: (0.0, 1.0) }
    }

    /// Logarithmic, whole decades around `from..=to`; both positive.
    pub fn decades(from: f64, to: f64) -> Self {
        let (from, to) = (10f64.powf(from.log10().floor()), 10f64.powf(to.log10().ceil()));
        Self { from, to: if to > from { to } else { from * 10.0 }, log: true, px: (0.0, 1.0) }
    }

    /// Logarithmic, exactly `from..=to`; both positive.
    pub fn log(from: f64, to: f64) -> Self {
        Self { from, to: if to > from { to } else { from * 10.0 }, log: true, px: (0.0, 1.0) }
    }

    fn along_x(mut self) -> Self {
        self.px = (MARGIN.0, SIZE.0 - MARGIN.1);
        self
    }

    fn along_y(mut self) -> Self {
        self.px = (SIZE.1 - MARGIN.3, MARGIN.2);
        self
    }

    /// Where `value` lies; values beyond the ends lie at the ends.
    fn at(&self, value: f64) -> f64 {
        let value = value.clamp(self.from, self.to);
        let share = if self.log {
            (value / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        self.px.0 + share * (self.px.1 - self.px.0)
    }

    /// Values to mark: decades, or about five round steps.
    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let (lo, hi) = (self.from.log10().ceil() as i32, self.to.log10().floor() as i32);
            return (lo..=hi).map(|e| 10f64.powi(e)).collect();
        }
        let rough = (self.to - self.from) / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|s| s * power).find(|s| *s >= rough).unwrap_or(power);
        let first = (self.from / step).ceil() as i64;
        (first..).map(|i| i as f64 * step).take_while(|v| *v <= self.to + step * 1e-9).collect()
    }
}

/// A named colour: text of the legend, class of the page's style.
pub type Series<'a> = (&'a str, &'a str);

/// One plot under construction.
#[derive(Debug)]
pub struct Plot {
    svg: String,
    x: Scale,
    y: Scale,
}

/// Text made safe within markup.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A figure in as many digits as tell something.
pub fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        v if v >= 1e6 => format!("{:.2}M", value / 1e6),
        v if v >= 1e4 => format!("{:.0}k", value / 1e3),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 1.0 => format!("{value:.2}").trim_end_matches('0').trim_end_matches('.').to_owned(),
        v if v >= 0.001 => format!("{value:.4}").trim_end_matches('0').to_owned(),
        _ => format!("{value:.0e}"),
    }
}

impl Plot {
    /// Axes and grid; `label` says what the plot shows, for those who cannot see it; `y_title` names the unit.
    pub fn new(label: &str, x: Scale, y: Scale, y_title: &str) -> Self {
        let (x, y) = (x.along_x(), y.along_y());
        let mut svg = format!("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">", SIZE.0, SIZE.1, escape(label));
        for tick in y.ticks() {
            let at = y.at(tick);
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                x.px.0,
                x.px.1,
                x.px.0 - 6.0,
                at + 4.0,
                short(tick)
            );
        }
        let middle = (y.px.0 + y.px.1) / 2.0;
        let _ = write!(
            svg,
            "<text class=\"tick\" transform=\"translate(12 {middle:.0}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            escape(y_title)
        );
        Self { svg, x, y }
    }

    /// Marks along x with a text each.
    pub fn x_ticks<'a>(mut self, ticks: impl IntoIterator<Item = (f64, &'a str)>) -> Self {
        for (value, text) in ticks {
            self.x_label(self.x.at(value), text);
        }
        self
    }

    /// Round figures along x, with a unit.
    pub fn x_numbers(mut self, unit: &str) -> Self {
        for tick in self.x.ticks() {
            self.x_label(self.x.at(tick), &format!("{} {unit}", short(tick)));
        }
        self
    }

    fn x_label(&mut self, at: f64, text: &str) {
        let y = self.y.px.0 + 18.0;
        let _ = write!(self.svg, "<text class=\"tick\" x=\"{at:.1}\" y=\"{y}\" text-anchor=\"middle\">{}</text>", escape(text));
    }

    /// A dashed line at a height, with its name.
    pub fn level(mut self, value: f64, name: &str) -> Self {
        let at = self.y.at(value);
        let _ = write!(
            self.svg,
            "<line class=\"level\" x1=\"{}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            self.x.px.0,
            self.x.px.1,
            self.x.px.1,
            at - 4.0,
            escape(name)
        );
        self
    }

    /// A line through points, with a dot on each if they are few.
    pub fn line(mut self, series: Series<'_>, points: &[(f64, f64)]) -> Self {
        let at: Vec<_> = points.iter().map(|(x, y)| (self.x.at(*x), self.y.at(*y))).collect();
        let path: String = at.iter().map(|(x, y)| format!("{x:.1},{y:.1} ")).collect();
        let _ = write!(self.svg, "<polyline class=\"line {}\" points=\"{}\"/>", series.1, path.trim_end());
        for ((cx, cy), (x, y)) in at.iter().zip(points).filter(|_| points.len() <= 60) {
            let tip = escape(&format!("{}: {} at {}", series.0, short(*y), short(*x)));
            let _ = write!(
                self.svg,
                "<circle class=\"dot {}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3\"><title>{tip}</title></circle>",
                series.1
            );
        }
        self
    }

    /// Groups of bars side by side. `x` must be `Scale::linear(0, groups)`; a bar at `None` is left out.
    pub fn bars(mut self, series: &[Series<'_>], groups: &[(String, Vec<Option<f64>>)]) -> Self {
        let room = self.x.at(1.0) - self.x.at(0.0);
        let width = (room * 0.76 / series.len() as f64).min(34.0);
        for (group, (name, values)) in groups.iter().enumerate() {
            let centre = self.x.at(group as f64) + room / 2.0;
            self.x_label(centre, name);
            let left = centre - width * series.len() as f64 / 2.0;
            for (n, (value, (label, class))) in values.iter().zip(series).enumerate() {
                let Some(value) = value else { continue };
                let (x, top) = (left + n as f64 * width, self.y.at(*value));
                let tip = escape(&format!("{name}, {label}: {}", short(*value)));
                let _ = write!(
                    self.svg,
                    "<rect class=\"fill {class}\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"2\"><title>{tip}</title></rect>",
                    x + 1.0,
                    width - 2.0,
                    (self.y.px.0 - top).max(0.0)
                );
            }
        }
        self
    }

    /// Many counts as thin columns: one every 100 us, say; drawn as one stepped outline.
    pub fn steps(mut self, series: Series<'_>, values: &[u32]) -> Self {
        let base = self.y.at(self.y.from);
        let mut path = format!("M{:.1} {base:.1}", self.x.at(0.0));
        for (i, value) in values.iter().enumerate() {
            let _ = write!(path, "V{:.1}H{:.2}", self.y.at(f64::from(*value)), self.x.at((i + 1) as f64 * 0.1));
        }
        let _ = write!(self.svg, "<path class=\"fill {}\" d=\"{path}V{base:.1}Z\"/>", series.1);
        self
    }

    /// The markup, with a legend if there is more than one series.
    pub fn finish(self, series: &[Series<'_>]) -> String {
        let (y, x) = (self.y.px.0, self.x.px);
        let axis = format!("<line class=\"axis\" x1=\"{}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\"/></svg>", x.0, x.1);
        let legend: String =
            series.iter().map(|(name, class)| format!("<span><i class=\"{class}\"></i>{}</span>", escape(name))).collect();
        let legend = if series.len() > 1 { format!("<p class=\"legend\">{legend}</p>") } else { String::new() };
        format!("{legend}{}{axis}", self.svg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_map_ends_to_ends() {
        let y = Scale::decades(3.0, 900.0).along_y();
        assert_eq!((y.from, y.to), (1.0, 1000.0));
        assert_eq!(y.at(1.0), SIZE.1 - MARGIN.3);
        assert_eq!(y.at(1000.0), MARGIN.2);
        assert!((y.at(10.0) - (y.at(1.0) * 2.0 + y.at(1000.0)) / 3.0).abs() < 1e-9, "a decade is a third of the way");
        assert_eq!(y.at(0.0), y.at(1.0), "below the end lies at the end");
        assert_eq!(y.ticks(), [1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(Scale::linear(0.0, 1.2).ticks().len(), 5);
    }

    #[test]
    fn bars_are_as_high_as_their_values_and_gaps_stay_gaps() {
        let groups = vec![("a".to_owned(), vec![Some(0.5), None]), ("b".to_owned(), vec![Some(1.0), Some(0.25)])];
        let series = [("one", "c1"), ("two", "c2")];
        let plot = Plot::new("t", Scale::linear(0.0, 2.0), Scale::linear(0.0, 1.0), "x").bars(&series, &groups);
        let svg = plot.finish(&series);
        assert_eq!(svg.matches("<rect").count(), 3);
        let full = SIZE.1 - MARGIN.3 - MARGIN.2;
        assert!(svg.contains(&format!("height=\"{:.1}\"", full / 2.0)), "{svg}");
        assert!(svg.contains("b, two: 0.25") && svg.ends_with("</svg>"));
    }

    #[test]
    fn figures_are_short_and_text_is_safe() {
        let cases = [(0.0, "0"), (1_234_567.0, "1.23M"), (12_345.0, "12k"), (123.4, "123"), (1.5, "1.5"), (0.02, "0.02")];
        for (value, text) in cases {
            assert_eq!(short(value), text);
        }
        assert_eq!(escape("<a & \"b\">"), "&lt;a &amp; &quot;b&quot;&gt;");
    }
}
