//! Reading timeline history files.

use machine::protocol::{Fork, Timeline};

/// The ancestors that a history file names, oldest first.
///
/// # Errors
/// Fails if a line is not understood; the text holds the line.
pub(crate) fn forks(text: &str) -> Result<Vec<Fork>, String> {
    let lines = text.lines().map(str::trim);
    let entries = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let fork = |line: &str| {
        let mut words = line.split_whitespace();
        let timeline = Timeline::new(words.next()?.parse().ok()?).ok()?;
        let end = words.next()?.parse().ok()?;
        Some(Fork { timeline, end })
    };
    entries
        .map(|line| fork(line).ok_or_else(|| format!("a history file has the line {line:?}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use machine::protocol::Lsn;

    use super::*;

    #[test]
    fn ancestors_are_read() {
        let text = "1\t0/3000000\tno recovery target specified\n\n# remark\n2\t16/B374D848\t\n";
        let fork = |timeline, end| Fork {
            timeline: Timeline(timeline),
            end: Lsn(end),
        };
        assert_eq!(forks(text), Ok(vec![fork(1, 0x300_0000), fork(2, 0x16_B374_D848)]));
        for wrong in [
            "1\tsomewhere\n",
            "-1\t0/1\n",
            "2147483648\t0/1\n",
            "4294967296\t0/1\n",
            "1\n",
        ] {
            assert!(forks(wrong).is_err(), "{wrong}");
        }
    }
}
