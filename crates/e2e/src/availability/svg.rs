//! A run as a picture: a lane for each stream, time from left to right.

use std::fmt::Write;

use crate::availability::agents::MARK;
use crate::availability::history::History;
use crate::availability::record::Outcome;
use crate::availability::report::GAP;

const WIDTH: f64 = 1_200.0;
const LEFT: f64 = 170.0;
const LANE: f64 = 26.0;
const TOP: f64 = 46.0;
const STYLE: &str = "text{font:12px sans-serif;fill:#222}.axis{stroke:#ccc}.mark{stroke:#555;stroke-dasharray:3 3}\
.acked{fill:#2a9d4b}.error{fill:#d7d7d7}.unknown{fill:#e9a23b}.follow{fill:#4a7fc1}";

/// A stretch of one lane.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bar {
    from: u64,
    to: u64,
    class: &'static str,
}

/// Draws the run; `injected` is when the fault began.
#[must_use]
pub fn draw(title: &str, history: &History, injected: u64) -> String {
    let (start, end) = history.span().unwrap_or((injected, injected + GAP));
    let end = end.max(start + GAP);
    let lanes = lanes(history);
    let height = TOP + LANE * size(lanes.len()) + 40.0;
    let x = |at: u64| LEFT + (WIDTH - LEFT - 20.0) * size(at.saturating_sub(start)) / size(end - start);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\">\n\
<style>{STYLE}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<text x=\"10\" y=\"20\">{}</text>\n",
        escaped(title)
    );
    axis(&mut svg, (start, end), injected, height, &x);
    for (number, (name, bars)) in lanes.iter().enumerate() {
        let y = TOP + LANE * size(number);
        let _ = writeln!(
            svg,
            "<text x=\"10\" y=\"{:.0}\">{}</text>",
            y + LANE * 0.65,
            escaped(name)
        );
        for bar in bars {
            let width = (x(bar.to) - x(bar.from)).max(0.6);
            let _ = writeln!(
                svg,
                "<rect class=\"{}\" x=\"{:.1}\" y=\"{y:.0}\" width=\"{width:.1}\" height=\"{:.0}\"/>",
                bar.class,
                x(bar.from),
                LANE * 0.7
            );
        }
    }
    for (at, what) in history.marks.iter().filter(|(at, _)| (start..=end).contains(at)) {
        let _ = writeln!(
            svg,
            "<line class=\"mark\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"28\" y2=\"{1:.0}\"><title>{2}</title></line>",
            x(*at),
            height - 34.0,
            escaped(what)
        );
        if !["lease", "route", MARK].iter().any(|usual| what.starts_with(usual)) {
            let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"38\">{}</text>", x(*at) + 3.0, escaped(what));
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// A label for about every tenth of the width, in seconds from the fault.
fn axis(svg: &mut String, (start, end): (u64, u64), injected: u64, height: f64, x: &dyn Fn(u64) -> f64) {
    const SECOND: u64 = 1_000_000_000;
    let steps = [1, 2, 5, 10, 20, 30, 60, 120];
    let seconds = (end - start) / SECOND;
    let step = steps.into_iter().find(|step| seconds / step <= 12).unwrap_or(300);
    let before = injected.saturating_sub(start) / SECOND / step;
    let mut at = injected - (before * step * SECOND).min(injected);
    while at <= end {
        let offset = if at >= injected {
            format!("{}", (at - injected) / SECOND)
        } else {
            format!("-{}", (injected - at) / SECOND)
        };
        let _ = writeln!(
            svg,
            "<line class=\"axis\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{TOP}\" y2=\"{1:.0}\"/><text x=\"{0:.1}\" y=\"{2:.0}\">{offset} s</text>",
            x(at),
            height - 34.0,
            height - 16.0
        );
        at += step * SECOND;
    }
}

fn lanes(history: &History) -> Vec<(String, Vec<Bar>)> {
    let mut lanes: Vec<(String, Vec<Bar>)> = Vec::new();
    for stream in history.streams() {
        let mut bars: Vec<Bar> = Vec::new();
        for attempt in history.attempts.iter().filter(|attempt| attempt.stream == stream) {
            let class = match attempt.outcome {
                Outcome::Acked => "acked",
                Outcome::Error => "error",
                Outcome::Unknown => "unknown",
            };
            extend(&mut bars, attempt.sent, attempt.done, class);
        }
        lanes.push((stream.to_string(), bars));
    }
    let mut pods: Vec<&String> = history.follows.iter().map(|(_, pod, _)| pod).collect();
    pods.sort();
    pods.dedup();
    for pod in pods {
        let mut bars: Vec<Bar> = Vec::new();
        let mut highest = 0;
        for (at, _, seq) in history.follows.iter().filter(|(_, follower, _)| follower == pod) {
            // Only a new row shows that the standby follows.
            if *seq > highest {
                extend(&mut bars, *at, *at, "follow");
                highest = *seq;
            }
        }
        lanes.push((format!("{pod} follows"), bars));
    }
    lanes
}

/// Joins equal stretches that are less than a gap apart.
fn extend(bars: &mut Vec<Bar>, from: u64, to: u64, class: &'static str) {
    // Standbys are checked every 100 ms, so their gap is longer.
    let gap = if class == "follow" { 4 * GAP } else { GAP };
    match bars.last_mut() {
        Some(last) if last.class == class && from.saturating_sub(last.to) < gap => last.to = to.max(last.to),
        _ => bars.push(Bar { from, to, class }),
    }
}

#[allow(clippy::cast_precision_loss, reason = "for a picture")]
fn size<T: TryInto<u64>>(number: T) -> f64 {
    number.try_into().unwrap_or(u64::MAX) as f64
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::availability::record::Attempt;

    fn ack(seq: u64, at: u64, outcome: Outcome) -> Attempt {
        Attempt {
            stream: "service".parse().unwrap(),
            seq,
            count: 1,
            sent: at * 1_000_000,
            done: at * 1_000_000 + 1,
            outcome,
            server: None,
            timeline: None,
            error: None,
        }
    }

    #[test]
    fn a_gap_divides_a_lane_and_steady_writes_are_one_bar() {
        let mut history = History {
            attempts: (0..50).map(|n| ack(n, n * 10, Outcome::Acked)).collect(),
            ..History::default()
        };
        history.attempts.push(ack(51, 600, Outcome::Error));
        history
            .attempts
            .extend((100..150).map(|n| ack(n, n * 10, Outcome::Acked)));
        let lanes = lanes(&history);
        let classes: Vec<&str> = lanes[0].1.iter().map(|bar| bar.class).collect();
        assert_eq!(classes, ["acked", "error", "acked"]);
    }

    #[test]
    fn names_cannot_break_the_picture() {
        let mut history = History::default();
        history.attempts.push(ack(1, 10, Outcome::Acked));
        history.attempts.push(ack(2, 5_000, Outcome::Acked));
        history.mark(1_000_000_000, "fault <b> & \"c\"");
        let svg = draw("a < b", &history, 1_000_000_000);
        assert!(svg.contains("a &lt; b") && svg.contains("fault &lt;b> &amp; &quot;c&quot;"));
        assert!(svg.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn a_standby_that_shows_no_new_row_does_not_follow() {
        let mut history = History::default();
        let at = |ms: u64| ms * 1_000_000;
        history.follows = vec![
            (at(0), "b".to_owned(), 1),
            (at(100), "b".to_owned(), 9),
            (at(900), "b".to_owned(), 9),
        ];
        assert_eq!(
            lanes(&history)[0].1,
            [Bar {
                from: 0,
                to: at(100),
                class: "follow"
            }]
        );
    }
}
