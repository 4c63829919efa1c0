//! How a certificate authority is replaced by another one without an outage: first everybody is made to trust the next one,
//! then it issues, and when everybody presents what it has issued, the former is trusted no more.
//!
//! `Stable → Distribute → Overlap → Issue → Retire → Stable`. The invariant, which a small model in the tests holds: nobody presents a
//! certificate that a living verifier does not trust. Members say what they have loaded. Applications cannot: so they are given
//! time. Those that verify the server need it before the next authority issues, those with a certificate of their own after it.

use std::collections::BTreeSet;

use api::status::RotationState;
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

/// The authorities in the Secret `-ca`, by their key identifiers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Authorities {
    /// The one that issues.
    pub issuing: String,
    /// The one that will.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The one that did, and is trusted still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former: Option<String>,
    /// What is noted beside them.
    #[serde(default)]
    pub record: Record,
}

/// What the Secret holds beside the authorities.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Since when applications are given time: all that can say so trust the next authority, or present what it has issued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<DateTime<Utc>>,
    /// The key of the one that is replaced is in wrong hands.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub compromised: bool,
    /// UID of the operation that was last followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<String>,
}

/// Why the authority is to be replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Wish {
    /// Its key is in wrong hands.
    pub compromised: bool,
    /// UID of the operation that asks for it; absent if its time has come.
    pub asked: Option<String>,
}

/// What a step depends on.
#[derive(Clone, Debug)]
pub struct View<'a> {
    /// The time.
    pub now: DateTime<Utc>,
    /// Whether, and why, the authority is to be replaced.
    pub wish: Option<Wish>,
    /// The authority that issues has ended: nobody trusts what it has issued.
    pub expired: bool,
    /// Who does not have what the Secrets hold now, or cannot say so.
    pub late: &'a [String],
    /// How long applications are given.
    pub client_trust: TimeDelta,
    /// There are applications with certificates of their own.
    pub has_clients: bool,
}

/// One write of the Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Step {
    /// Make the next authority, also in place of one that has not issued yet.
    Introduce(Wish),
    /// Note another operation that asks for what is under way.
    Follow(Wish),
    /// Note that applications are given time from now on.
    GiveTime,
    /// The next one issues; the one that did is the former.
    Issue,
    /// Forget the former.
    Retire,
}

/// A member whose agent lives, by its report and the status.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// Its pod's name.
    pub name: &'a str,
    /// Digest of what it has loaded of the Secret `-tls`; `None` if it does not say.
    pub loaded: Option<&'a str>,
    /// Who has issued its own certificate, as it stands in the status, and the digest of that.
    pub signed: Option<(&'a str, &'a str)>,
    /// Digest of the one that it has stored, and presents.
    pub stored: Option<&'a str>,
}

/// The names of the members that do not have yet what the Secret `-tls` of this digest holds, or still present a certificate that
/// another authority has issued, or do not say.
pub fn late<'a>(authorities: &Authorities, digest: &str, members: impl Iterator<Item = Member<'a>>) -> Vec<String> {
    let is_late = |member: &Member<'_>| {
        member.loaded != Some(digest)
            || member.signed.is_some_and(|(issuer, _)| issuer != authorities.issuing)
            || member
                .stored
                .is_some_and(|stored| member.signed.map(|(_, signed)| signed) != Some(stored))
    };
    members.filter(is_late).map(|member| member.name.to_owned()).collect()
}

/// What is next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing.
    Rest,
    /// This step.
    Step(Step),
    /// Nothing until nobody is late any more.
    Late,
    /// Nothing until this time, while applications read the new authority.
    Until(DateTime<Utc>),
}

impl Authorities {
    /// All that are trusted.
    pub fn trusted(&self) -> BTreeSet<String> {
        let others = self.next.iter().chain(&self.former);
        others.chain([&self.issuing]).cloned().collect()
    }

    /// How far the rotation is; `None` if there is none.
    pub fn state(&self) -> Option<RotationState> {
        match (&self.next, &self.former) {
            (None, None) => None,
            (Some(_), _) if self.record.since.is_none() => Some(RotationState::Distribute),
            (Some(_), _) => Some(RotationState::Overlap),
            (None, Some(_)) if self.record.since.is_none() => Some(RotationState::Issue),
            (None, Some(_)) => Some(RotationState::Retire),
        }
    }
}

impl Record {
    /// What is noted with this step.
    #[must_use]
    pub fn after(self, step: &Step, now: DateTime<Utc>) -> Self {
        match step {
            Step::Introduce(wish) => Self {
                since: None,
                compromised: wish.compromised,
                asked: wish.asked.clone().or(self.asked),
            },
            Step::Follow(wish) => Self {
                asked: wish.asked.clone().or(self.asked),
                ..self
            },
            Step::GiveTime => Self {
                since: Some(now),
                ..self
            },
            Step::Issue => Self { since: None, ..self },
            Step::Retire => Self {
                since: None,
                compromised: false,
                ..self
            },
        }
    }
}

/// What is next for these authorities.
pub fn next(authorities: &Authorities, view: &View<'_>) -> Next {
    let record = &authorities.record;
    let wish = view.wish.clone();
    let asked = wish.filter(|wish| wish.asked.is_none() || wish.asked != record.asked);
    let Some(state) = authorities.state() else {
        return asked.map_or(Next::Rest, |wish| Next::Step(Step::Introduce(wish)));
    };
    let mut hurry = record.compromised;
    match asked.filter(|wish| wish.asked.is_some()) {
        // Whoever has read the Secret has the next key, too. It has issued nothing yet.
        Some(wish) if wish.compromised && authorities.next.is_some() => {
            return Next::Step(Step::Introduce(wish));
        }
        // The key that issues now is in wrong hands: when the former is gone, this one is replaced in its turn.
        Some(wish) if wish.compromised => hurry = true,
        Some(wish) => return Next::Step(Step::Follow(wish)),
        None => {}
    }
    // Members cannot tell each other what they trust: what they present has ended.
    if authorities.next.is_some() && view.expired {
        return Next::Step(Step::Issue);
    }
    if !view.late.is_empty() {
        return Next::Late;
    }
    let given = record.since.map(|since| since + view.client_trust);
    if let Some(end) = given.filter(|end| view.now < *end && !hurry) {
        return Next::Until(end);
    }
    Next::Step(match state {
        RotationState::Distribute if !hurry => Step::GiveTime,
        RotationState::Distribute | RotationState::Overlap => Step::Issue,
        RotationState::Issue if view.has_clients && !hurry => Step::GiveTime,
        RotationState::Issue | RotationState::Retire => Step::Retire,
    })
}

#[cfg(test)]
mod tests;
