//! A rule of a machine, as data. The order of a machine's list of rules is the order of importance.

/// One rule. `D` is the function that says whether the rule applies, and if so, what to do: one function, so that the two
/// cannot disagree. It sees only what is observed and remembered, and returns what it decides; it changes nothing.
#[derive(Clone, Copy, Debug)]
pub struct Rule<D> {
    /// Its name, in logs, metrics and the documentation.
    pub name: &'static str,
    /// The family (file) that it belongs to.
    pub family: &'static str,
    /// What it does, in a sentence for the documentation.
    pub what: &'static str,
    /// The rules of the failover protocol that it carries out, by number (docs/protocol.md).
    pub protocol: &'static [u8],
    /// Whether it acts.
    pub kind: RuleKind,
    /// Whether it applies, and if so, what to do.
    pub decide: D,
    /// Whether the rules behind it go on while its action backs off.
    pub on_backoff: OnBackoff,
}

/// What a rule is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleKind {
    /// It does something, or waits for the moment to do it.
    Act,
    /// It only says what is waited for, and who can end that.
    Explain,
}

/// What happens while the action of a rule backs off after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnBackoff {
    /// The rules behind it wait for it.
    Hold,
    /// The rules behind it go on.
    Yield,
}

impl RuleKind {
    /// Its name in the documentation.
    pub const fn as_str(self) -> &'static str {
        match self {
            RuleKind::Act => "act",
            RuleKind::Explain => "explain",
        }
    }
}

impl OnBackoff {
    /// Its name in the documentation.
    pub const fn as_str(self) -> &'static str {
        match self {
            OnBackoff::Hold => "hold",
            OnBackoff::Yield => "yield",
        }
    }
}
