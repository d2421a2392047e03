//! `towa stats --watch`: what happened since the line before.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::Figures;
use super::wire::Connection;
use crate::report::{self, bytes, micros};

/// Rows between headings.
const PAGE: usize = 20;

/// Prints a row each period from `first` on, until the server goes or somebody interrupts.
pub fn watch(connection: &mut Connection, first: Figures, period: Duration, as_json: bool) -> Result<()> {
    let mut before = (first, Instant::now());
    for row in 0.. {
        std::thread::sleep(period);
        let now = (Figures::get(connection)?, Instant::now());
        let seconds = (now.1 - before.1).as_secs_f64();
        if as_json {
            let mut value = now.0.json();
            value["seconds"] = json!(seconds);
            report::json_line(&value)?;
        } else {
            let row = Row::between(&before.0, &now.0, seconds).text(row % PAGE == 0);
            report::print(&row)?;
        }
        before = now;
    }
    Ok(())
}

/// One row: rates over the period, and levels at its end.
#[derive(Debug, PartialEq)]
struct Row {
    gets_per_s: f64,
    sets_per_s: f64,
    hit_percent: Option<f64>,
    items: u64,
    bytes: u64,
    connections: u64,
    durable: Option<Durable>,
}

#[derive(Debug, PartialEq)]
struct Durable {
    checkpoints_per_s: f64,
    age_us: u64,
    log_percent: f64,
    stall_percent: f64,
}

fn number(map: &Map<String, Value>, name: &str) -> u64 {
    map.get(name).and_then(Value::as_u64).unwrap_or(0)
}

impl Row {
    fn between(before: &Figures, now: &Figures, seconds: f64) -> Row {
        // Counters start again with the server, or by `stats reset`: then nothing is known of this period.
        let grown = |before: &Map<String, Value>, now: &Map<String, Value>, name| {
            number(now, name).saturating_sub(number(before, name)) as f64
        };
        let server = |name| grown(&before.server, &now.server, name);
        let (gets, hits) = (server("cmd_get"), server("get_hits"));
        let durable = before.towa.as_ref().zip(now.towa.as_ref()).map(|(before, now)| Durable {
            checkpoints_per_s: grown(before, now, "checkpoints") / seconds,
            age_us: number(now, "durable_age_us"),
            log_percent: 100.0 * number(now, "log_bytes") as f64 / number(now, "log_capacity").max(1) as f64,
            stall_percent: grown(before, now, "stall_us") / 1e4 / seconds,
        });
        Row {
            gets_per_s: gets / seconds,
            sets_per_s: server("cmd_set") / seconds,
            hit_percent: (gets > 0.0).then_some(100.0 * hits / gets),
            items: number(&now.server, "curr_items"),
            bytes: number(&now.server, "bytes"),
            connections: number(&now.server, "curr_connections"),
            durable,
        }
    }

    fn text(&self, heading: bool) -> String {
        let mut text = String::new();
        if heading {
            text += "    gets/s     sets/s  hits %       items       bytes  conns  ckpts/s       age  log %  stalled %\n";
        }
        let hits = self.hit_percent.map_or("-".into(), |p| format!("{p:.1}"));
        let (items, size, connections) = (self.items, bytes(self.bytes), self.connections);
        text += &format!("{:10.0} {:10.0} {hits:>7} {items:>11} {size:>11} {connections:>6} ", self.gets_per_s, self.sets_per_s);
        text += &match &self.durable {
            Some(d) => {
                format!("{:8.1} {:>9} {:6.1} {:10.1}\n", d.checkpoints_per_s, micros(d.age_us), d.log_percent, d.stall_percent)
            }
            None => format!("{:>8} {:>9} {:>6} {:>10}\n", "-", "-", "-", "-"),
        };
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(gets: u64, hits: u64, checkpoints: u64) -> Figures {
        let map = |value: Value| value.as_object().cloned().unwrap();
        Figures {
            server: map(
                json!({ "cmd_get": gets, "get_hits": hits, "cmd_set": 5, "curr_items": 3, "bytes": 2048, "curr_connections": 1 }),
            ),
            towa: Some(map(
                json!({ "checkpoints": checkpoints, "durable_age_us": 1500, "log_bytes": 1, "log_capacity": 4, "stall_us": 0 }),
            )),
        }
    }

    #[test]
    fn rates_are_of_the_period() {
        let row = Row::between(&figures(100, 90, 7), &figures(300, 190, 27), 2.0);
        assert_eq!((row.gets_per_s, row.sets_per_s, row.hit_percent), (100.0, 0.0, Some(50.0)));
        assert_eq!(row.durable.as_ref().map(|d| (d.checkpoints_per_s, d.log_percent)), Some((10.0, 25.0)));
        let text = row.text(true);
        let (heading, values) = text.trim_end().split_once('\n').unwrap();
        assert_eq!(heading.len(), values.len(), "columns under their headings:\n{text}");
    }

    #[test]
    fn counters_that_start_again_are_no_rate() {
        let row = Row::between(&figures(300, 190, 27), &figures(1, 0, 1), 1.0);
        assert_eq!((row.gets_per_s, row.hit_percent), (0.0, None));
    }
}
