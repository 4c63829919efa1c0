//! The format of pages: times, sizes, tables, and colour on request.

use std::fmt::Write;

use api::Phase;
use chrono::{DateTime, TimeDelta, Utc};

/// Whether pages are coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Escape sequences may be used.
    pub colour: bool,
}

/// A colour, by its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// As it should be.
    Good,
    /// Under way, or waiting.
    Busy,
    /// Somebody must act.
    Bad,
    /// A heading.
    Strong,
}

/// First and last characters of the colours of [`Style::paint`]: the only escape sequences of a page.
const COLOURS: [&str; 5] = ["\u{1b}[32m", "\u{1b}[33m", "\u{1b}[31m", "\u{1b}[1m", "\u{1b}[0m"];

impl Style {
    /// Colour on a terminal, unless the environment variable `NO_COLOR` is set and not empty, or `TERM` is `dumb`.
    pub fn of(terminal: bool, variable: impl Fn(&str) -> Option<String>) -> Self {
        let refused = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = variable("TERM").is_some_and(|term| term == "dumb");
        Self {
            colour: terminal && !refused && !dumb,
        }
    }

    /// `text` in this tone.
    pub fn paint(self, tone: Tone, text: &str) -> String {
        let [good, busy, bad, strong, end] = COLOURS;
        let begin = match tone {
            Tone::Good => good,
            Tone::Busy => busy,
            Tone::Bad => bad,
            Tone::Strong => strong,
        };
        if self.colour {
            format!("{begin}{text}{end}")
        } else {
            text.to_owned()
        }
    }

    /// A phase, in its tone.
    pub fn phase(self, phase: Option<Phase>) -> String {
        match phase {
            None => "(none yet)".to_owned(),
            Some(phase @ (Phase::Ready | Phase::Hibernated)) => self.paint(Tone::Good, phase.as_str()),
            Some(phase @ (Phase::Failed | Phase::FailingOver)) => self.paint(Tone::Bad, phase.as_str()),
            Some(phase) => self.paint(Tone::Busy, phase.as_str()),
        }
    }
}

/// Column of a field's value.
const FIELD: usize = 12;

/// Longer lines are wrapped.
const WIDTH: usize = 100;

/// Replaces control characters, and those that change the direction of writing: much of a text comes from others, and a
/// terminal obeys such characters.
pub fn plain(text: &str) -> String {
    let turns = |c| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let shown = text.chars().map(|c| match c {
        '\n' => '\n',
        '\t' => ' ',
        c if c.is_control() || turns(c) => '\u{fffd}',
        c => c,
    });
    shown.collect()
}

/// [`plain`], but keeps our colours.
fn coloured(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\u{1b}') {
        let (before, after) = rest.split_at(at);
        let code = COLOURS.into_iter().find(|code| after.starts_with(code));
        out.push_str(&plain(before));
        out.push_str(code.unwrap_or("\u{fffd}"));
        rest = &after[code.map_or(1, str::len)..];
    }
    out + &plain(rest)
}

/// A page that is being written. It replaces control characters in all texts, except our colours.
#[derive(Debug, Default)]
pub struct Page {
    text: String,
}

impl Page {
    /// `name`, and `value` in a column of its own; a value of several lines stays in that column.
    pub fn field(&mut self, name: &str, value: impl AsRef<str>) {
        let mut name = name;
        for line in coloured(value.as_ref()).lines() {
            self.wrapped(format!("{name:<FIELD$}{line}"));
            name = "";
        }
    }

    /// A line, wrapped between words; what follows stands in the column of the fields' values.
    pub fn wrapped(&mut self, line: impl AsRef<str>) {
        let line = coloured(line.as_ref()).replace('\n', " ");
        let mut width = 0;
        for word in line.split_inclusive(' ') {
            let length = visible(word.trim_end());
            if width > FIELD && width + length > WIDTH {
                self.text.truncate(self.text.trim_end_matches(' ').len());
                // Writing to a String cannot fail.
                let _ = write!(self.text, "\n{:FIELD$}", "");
                width = FIELD;
            }
            self.text.push_str(word);
            width += visible(word);
        }
        self.text.truncate(self.text.trim_end_matches(' ').len());
        self.text.push('\n');
    }

    /// A line; line breaks in it are blanks.
    pub fn line(&mut self, line: impl AsRef<str>) {
        let line = coloured(line.as_ref()).replace('\n', " ");
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    /// Rows under their heads, in columns of the needed width. Without heads only the rows.
    pub fn table(&mut self, heads: &[&str], rows: &[Vec<String>]) {
        let heads: Vec<String> = heads.iter().map(|head| (*head).to_owned()).collect();
        let rows: Vec<Vec<String>> = rows
            .iter()
            .map(|row| row.iter().map(|cell| coloured(cell)).collect())
            .collect();
        let lines: Vec<&Vec<String>> = (!heads.is_empty()).then_some(&heads).into_iter().chain(&rows).collect();
        let columns = lines.iter().map(|line| line.len()).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = lines.iter().filter_map(|line| line.get(column));
            cells.map(|cell| visible(cell)).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        for line in &lines {
            let mut text = String::new();
            for (cell, width) in line.iter().zip(&widths) {
                text.push_str(cell);
                text.push_str(&" ".repeat(width.saturating_sub(visible(cell)) + 2));
            }
            self.line(text);
        }
    }

    /// The page.
    pub fn finish(self) -> String {
        self.text
    }
}

/// The number of columns of a text, without its colours.
fn visible(text: &str) -> usize {
    let mut coloured = false;
    let shown = text.chars().filter(|&c| {
        let shown = !coloured && c != '\u{1b}';
        coloured = (coloured || c == '\u{1b}') && c != 'm';
        shown
    });
    shown.count()
}

/// A time to the second, for people: `2027-01-01 12:00:00Z`.
pub fn instant(at: DateTime<Utc>) -> String {
    at.format("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// A time span in its two largest units: `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`.
pub fn span(span: TimeDelta) -> String {
    let seconds = span.num_seconds().max(0);
    let units = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let Some(first) = units.iter().position(|(size, _)| seconds >= *size) else {
        return "0 s".to_owned();
    };
    let mut rest = seconds;
    let mut parts = Vec::new();
    for (size, unit) in units.iter().skip(first).take(2) {
        if rest / size > 0 {
            parts.push(format!("{} {unit}", rest / size));
        }
        rest %= size;
    }
    parts.join(" ")
}

/// `one, two and three`.
pub fn list(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_two_units() {
        let of = |seconds| span(TimeDelta::seconds(seconds));
        assert_eq!(of(-4), "0 s");
        assert_eq!(of(59), "59 s");
        assert_eq!(of(60), "1 min");
        assert_eq!(of(200), "3 min 20 s");
        assert_eq!(of(7_500), "2 h 5 min");
        assert_eq!(of(86_400 * 3 + 5), "3 d");
    }

    #[test]
    fn colour_is_for_terminals_that_want_it() {
        let with = |terminal, name: &'static str, value: &'static str| {
            Style::of(terminal, |asked| (asked == name).then(|| value.to_owned())).colour
        };
        assert!(with(true, "NO_COLOR", ""));
        assert!(!with(true, "NO_COLOR", "1"));
        assert!(!with(true, "TERM", "dumb"));
        assert!(!with(false, "TERM", "xterm"));
        assert_eq!(Style { colour: true }.paint(Tone::Bad, "x"), "\u{1b}[31mx\u{1b}[0m");
    }

    #[test]
    fn a_page_has_nothing_that_a_terminal_obeys_but_our_colours() {
        let evil = "a\u{1b}]0;title\u{7}\u{1b}[2J\u{9b}2J\r\tb\u{202e}c\nforged";
        let red = Style { colour: true }.paint(Tone::Bad, evil);
        let mut page = Page::default();
        page.field("Name", evil);
        page.line(evil);
        page.table(&["HEAD"], &[vec![red.clone(), evil.to_owned()]]);
        let text = page.finish();
        let kept = text.replace("\u{1b}[31m", "").replace("\u{1b}[0m", "");
        assert!(
            kept.chars().all(|c| c == '\n' || !c.is_control() && c != '\u{202e}'),
            "{kept:?}"
        );
        assert!(text.contains("\u{1b}[31ma\u{fffd}]0;title"), "{text:?}");
        assert!(!text.lines().any(|line| line.starts_with("forged")), "{text:?}");
        assert_eq!(plain("\u{1b}[31mx\u{1b}[0m"), "\u{fffd}[31mx\u{fffd}[0m");
    }

    #[test]
    fn long_fields_are_wrapped_between_words_and_keep_their_blanks() {
        let of = |value: &str| {
            let mut page = Page::default();
            page.field("Name", value);
            page.finish()
        };
        assert_eq!(of(""), "", "no line");
        assert_eq!(of("a  b"), "Name        a  b\n");
        let word = "x".repeat(43);
        let red = Style { colour: true }.paint(Tone::Bad, &word);
        assert_eq!(
            of(&format!("{word} {red}")),
            format!("Name        {word} {red}\n"),
            "99 columns"
        );
        assert_eq!(
            of(&format!("{word}- {word}-")),
            format!("Name        {word}-\n            {word}-\n")
        );
        let long = "y".repeat(200);
        assert_eq!(of(&long), format!("Name        {long}\n"), "a word stays whole");
        assert_eq!(of("a\nb"), "Name        a\n            b\n");
    }

    #[test]
    fn colours_take_no_room_in_a_table() {
        let mut page = Page::default();
        let red = Style { colour: true }.paint(Tone::Bad, "ab");
        page.table(
            &["A", "B"],
            &[
                vec![red.clone(), "x".to_owned()],
                vec!["abc".to_owned(), "y".to_owned()],
            ],
        );
        assert_eq!(page.finish(), format!("A    B\n{red}   x\nabc  y\n"));
    }
}
