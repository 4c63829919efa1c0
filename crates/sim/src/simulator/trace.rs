//! The record of a run: a fingerprint of everything that happened and, if requested, a table.

/// Fingerprint and table.
#[derive(Clone, Debug)]
pub struct Trace {
    hash: u64,
    lines: Option<Vec<Line>>,
}

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Line {
    /// The time, in milliseconds.
    pub at: u64,
    /// The member; `None`: the world.
    pub node: Option<usize>,
    /// What happened, or what was decided and why.
    pub what: String,
}

impl Trace {
    pub fn new(explained: bool) -> Self {
        Self {
            hash: 0xcbf2_9ce4_8422_2325,
            lines: explained.then(Vec::new),
        }
    }
    /// Adds a value to the fingerprint.
    pub fn mark(&mut self, word: u64) {
        self.hash = (self.hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
    pub fn mark_text(&mut self, text: &str) {
        text.bytes().for_each(|byte| self.mark(byte.into()));
    }
    pub fn line(&mut self, at: u64, node: Option<usize>, what: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(Line { at, node, what: what() });
        }
    }
    pub fn explains(&self) -> bool {
        self.lines.is_some()
    }
    pub fn fingerprint(&self) -> u64 {
        self.hash
    }
    /// The lines, without those that repeat the same member's previous line.
    pub fn lines(self) -> Vec<Line> {
        let mut last: std::collections::BTreeMap<Option<usize>, String> = std::collections::BTreeMap::new();
        let lines = self.lines.unwrap_or_default().into_iter();
        lines
            .filter(|line| last.insert(line.node, line.what.clone()).as_ref() != Some(&line.what))
            .collect()
    }
}
