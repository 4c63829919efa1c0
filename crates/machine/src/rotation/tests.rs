//! A small model of everybody who presents or verifies certificates, explored whole.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::*;

const CLIENT_TRUST: TimeDelta = TimeDelta::hours(1);
/// So many operations ask for another authority, the last one perhaps because it is compromised.
const WISHES: u8 = 2;

/// An authority, by the order in which they are made.
type Id = u8;

/// Authorities, one in each bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Trusted(u8);

impl Trusted {
    fn of(all: impl IntoIterator<Item = Id>) -> Self {
        Self(all.into_iter().fold(0, |bits, id| bits | 1 << id))
    }

    const fn has(self, id: Id) -> bool {
        self.0 & (1 << id) != 0
    }
}

/// What the Secret `-tls` holds, or what a member has loaded of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shared {
    issuer: Id,
    trusted: Trusted,
}

impl Shared {
    /// Each set of authorities has a certificate of its own.
    fn digest(self) -> String {
        format!("{} {}", self.issuer, self.trusted.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Agent {
    /// `None`: it has no pod.
    loaded: Option<Shared>,
    /// What the primary has heard of it last: what it has loaded, and who has issued what it has stored.
    reported: Option<(Shared, Id)>,
    /// Who has issued its certificate in the status.
    signed: Id,
    /// And that on its volume.
    stored: Id,
    /// That was of a former authority when it came back: it is refused, and then gets another.
    came_back: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct World {
    issuing: Id,
    next: Option<Id>,
    former: Option<Id>,
    /// Applications are being given time.
    waits: bool,
    compromised: bool,
    asked: Option<u8>,
    /// The last authority that was made.
    made: Id,
    tls: Shared,
    /// What the application's Secret trusts, and what the application has read.
    app: Trusted,
    client: Trusted,
    /// Who has issued the certificate in its Secret, and the one that it presents.
    issued: Id,
    presented: Id,
    /// The application's time is over.
    elapsed: bool,
    agents: [Agent; 2],
    wish: Option<(u8, bool)>,
}

fn begin() -> DateTime<Utc> {
    DateTime::UNIX_EPOCH
}

fn first() -> World {
    let trusted = Trusted::of([1]);
    let tls = Shared { issuer: 1, trusted };
    let agent = Agent {
        loaded: Some(tls),
        reported: Some((tls, 1)),
        signed: 1,
        stored: 1,
        came_back: false,
    };
    World {
        issuing: 1,
        next: None,
        former: None,
        waits: false,
        compromised: false,
        asked: None,
        made: 1,
        tls,
        app: trusted,
        client: trusted,
        issued: 1,
        presented: 1,
        elapsed: false,
        agents: [agent; 2],
        wish: None,
    }
}

/// How the operator decides: the shipped functions, or a spoilt copy.
struct Rules {
    next: fn(&Authorities, &View<'_>) -> Next,
    late: fn(&World, &Authorities) -> Vec<String>,
}

const SHIPPED: Rules = Rules {
    next,
    late: who_is_late,
};

fn who_is_late(world: &World, authorities: &Authorities) -> Vec<String> {
    let living = world.agents.iter().filter(|agent| agent.loaded.is_some());
    let texts: Vec<_> = living
        .map(|agent| {
            let reported = agent.reported;
            (
                reported.map(|(loaded, _)| loaded.digest()),
                agent.signed.to_string(),
                reported.map(|(_, stored)| stored.to_string()),
            )
        })
        .collect();
    let members = texts.iter().map(|(loaded, signed, stored)| Member {
        name: "a",
        loaded: loaded.as_deref(),
        signed: Some((signed, signed)),
        stored: stored.as_deref(),
    });
    let mut late = late(authorities, &world.tls.digest(), members);
    late.extend((world.issued != world.issuing).then(|| "client".to_owned()));
    late
}

impl World {
    fn authorities(&self) -> Authorities {
        Authorities {
            issuing: self.issuing.to_string(),
            next: self.next.map(|id| id.to_string()),
            former: self.former.map(|id| id.to_string()),
            record: Record {
                since: self.waits.then(begin),
                compromised: self.compromised,
                asked: self.asked.map(|uid| uid.to_string()),
            },
        }
    }

    fn trusted(&self) -> Trusted {
        Trusted::of([Some(self.issuing), self.next, self.former].into_iter().flatten())
    }

    /// The operator brings the Secrets to what the authorities ask for, then takes the next step.
    fn operate(&self, rules: &Rules) -> Option<Self> {
        let (mut after, trusted) = (*self, self.trusted());
        let tls = Shared {
            issuer: self.issuing,
            trusted,
        };
        if self.tls != tls {
            after.tls = tls;
            return Some(after);
        }
        if self.app != trusted {
            after.app = trusted;
            return Some(after);
        }
        let authorities = self.authorities();
        let late = (rules.late)(self, &authorities);
        let view = View {
            now: if self.elapsed { begin() + CLIENT_TRUST } else { begin() },
            wish: self.wish.map(|(number, compromised)| Wish {
                compromised,
                asked: Some(number.to_string()),
            }),
            expired: false,
            late: &late,
            client_trust: CLIENT_TRUST,
            has_clients: true,
        };
        let Next::Step(step) = (rules.next)(&authorities, &view) else {
            return None;
        };
        match &step {
            Step::Introduce(_) => {
                after.made += 1;
                after.next = Some(after.made);
            }
            Step::Follow(_) => {}
            Step::GiveTime => after.elapsed = false,
            Step::Issue => after.former = Some(std::mem::replace(&mut after.issuing, after.next.take()?)),
            Step::Retire => after.former = None,
        }
        let record = authorities.record.after(&step, begin());
        after.waits = record.since.is_some();
        after.compromised = record.compromised;
        after.asked = record.asked.and_then(|uid| uid.parse().ok());
        Some(after)
    }

    fn steps(&self, rules: &Rules) -> Vec<Self> {
        let mut all: Vec<Self> = self.operate(rules).into_iter().collect();
        let mut with = |change: &dyn Fn(&mut Self)| {
            let mut after = *self;
            change(&mut after);
            if after != *self {
                all.push(after);
            }
        };
        let trusted = self.trusted();
        for index in 0..self.agents.len() {
            with(&|world| world.agents[index].signed = world.issuing);
            if self.agents[index].loaded.is_none() {
                with(&|world| {
                    let agent = &mut world.agents[index];
                    (agent.loaded, agent.came_back) = (Some(self.tls), !trusted.has(agent.stored));
                });
                continue;
            }
            with(&|world| world.agents[index].loaded = Some(self.tls));
            with(&|world| {
                let agent = &mut world.agents[index];
                agent.stored = agent.signed;
                agent.came_back &= !trusted.has(agent.stored);
            });
            with(&|world| {
                let agent = &mut world.agents[index];
                agent.reported = agent.loaded.map(|loaded| (loaded, agent.stored));
            });
            with(&|world| (world.agents[index].loaded, world.agents[index].reported) = (None, None));
        }
        let reads = |world: &mut Self| (world.client, world.presented) = (self.app, self.issued);
        with(&|world| world.issued = self.issuing);
        with(&reads);
        if self.waits {
            // The assumption behind `clientTrustHours`: an application reads its Secret in that time.
            with(&|world| {
                reads(world);
                world.elapsed = true;
            });
        }
        let wished = self.wish.map_or(0, |(number, _)| number);
        if wished < WISHES {
            for compromised in [false, true] {
                with(&|world| world.wish = Some((wished + 1, compromised && wished + 1 == WISHES)));
            }
        }
        all
    }

    /// What the invariant forbids.
    fn violation(&self) -> Option<String> {
        let living = self.agents.iter().filter_map(|agent| Some((agent, agent.loaded?)));
        for (_, verifier) in living.clone() {
            for (agent, loaded) in living.clone() {
                if !verifier.trusted.has(loaded.issuer) {
                    return Some(format!("an agent presents {}, another has {verifier:?}", loaded.issuer));
                }
                if !agent.came_back && !verifier.trusted.has(agent.stored) {
                    return Some(format!("a member presents {}, a server has {verifier:?}", agent.stored));
                }
            }
        }
        let compromised = self.wish.is_some_and(|(_, compromised)| compromised);
        let mut living = living.filter(|_| !compromised);
        let mut servers = living.clone();
        if let Some((_, server)) = servers.find(|(_, server)| !server.trusted.has(self.presented)) {
            return Some(format!(
                "an application presents {}, a server has {server:?}",
                self.presented
            ));
        }
        let (_, server) = living.find(|(_, loaded)| !self.client.has(loaded.issuer))?;
        Some(format!(
            "a server presents {}, an application has {:?}",
            server.issuer, self.client
        ))
    }

    const fn is_at_rest(&self) -> bool {
        self.next.is_none() && self.former.is_none()
    }
}

/// All worlds that can be reached, with those that follow each; or what the first says that breaks the invariant.
fn explore(rules: &Rules) -> Result<BTreeMap<World, Vec<World>>, String> {
    let (mut seen, mut open) = (BTreeMap::new(), VecDeque::from([first()]));
    while let Some(world) = open.pop_front() {
        if seen.contains_key(&world) {
            continue;
        }
        if let Some(violation) = world.violation() {
            return Err(violation);
        }
        let after = world.steps(rules);
        open.extend(&after);
        seen.insert(world, after);
    }
    Ok(seen)
}

#[test]
fn nobody_presents_what_a_living_verifier_does_not_trust_and_each_rotation_ends() {
    let worlds = explore(&SHIPPED).unwrap();
    let rotated = |world: &&World| world.issuing == 3 && world.is_at_rest();
    assert!(worlds.keys().any(|world| rotated(&world)) && worlds.len() > 1_000);
    // From everywhere there is a way to the end.
    let mut before: BTreeMap<&World, Vec<&World>> = BTreeMap::new();
    for (world, after) in &worlds {
        for after in after {
            before.entry(after).or_default().push(world);
        }
    }
    let mut open: Vec<&World> = worlds.keys().filter(|world| world.is_at_rest()).collect();
    let mut ends: BTreeSet<&World> = open.iter().copied().collect();
    while let Some(world) = open.pop() {
        for before in before.get(world).into_iter().flatten() {
            if ends.insert(before) {
                open.push(before);
            }
        }
    }
    assert_eq!(ends.len(), worlds.len());
}

#[test]
fn each_wait_is_needed() {
    let without_waiting: fn(&Authorities, &View<'_>) -> Next = |authorities, view| {
        next(
            authorities,
            &View {
                late: &[],
                ..view.clone()
            },
        )
    };
    let without_overlap: fn(&Authorities, &View<'_>) -> Next = |authorities, view| match next(authorities, view) {
        Next::Until(_) => Next::Step(Step::Issue),
        other => other,
    };
    let retired_at_once: fn(&Authorities, &View<'_>) -> Next = |authorities, view| match authorities.state() {
        Some(RotationState::Issue) => Next::Step(Step::Retire),
        _ => next(authorities, view),
    };
    let without_the_silent: fn(&World, &Authorities) -> Vec<String> = |world, authorities| {
        let mut heard = *world;
        for agent in heard.agents.iter_mut().filter(|agent| agent.reported.is_none()) {
            agent.loaded = None;
        }
        who_is_late(&heard, authorities)
    };
    let without_their_own: fn(&World, &Authorities) -> Vec<String> = |world, authorities| {
        let mut loaded = *world;
        for agent in &mut loaded.agents {
            agent.signed = world.issuing;
            agent.reported = agent.reported.map(|(shared, _)| (shared, world.issuing));
        }
        who_is_late(&loaded, authorities)
    };
    let late = who_is_late;
    let spoilt = [
        (
            "an agent presents 2",
            Rules {
                next: without_waiting,
                late,
            },
        ),
        (
            "an application has",
            Rules {
                next: without_overlap,
                late,
            },
        ),
        (
            "presents 1",
            Rules {
                next: retired_at_once,
                late,
            },
        ),
        (
            "an agent presents 2",
            Rules {
                next,
                late: without_the_silent,
            },
        ),
        (
            "a member presents 1",
            Rules {
                next,
                late: without_their_own,
            },
        ),
    ];
    for (number, (expected, rules)) in spoilt.iter().enumerate() {
        let violation = explore(rules).unwrap_err();
        assert!(violation.contains(expected), "{number}, {expected}: {violation}");
    }
}

#[test]
fn what_has_ended_is_replaced_without_waiting_for_anybody() {
    let late = ["demo-1".to_owned()];
    let mut authorities = Authorities {
        issuing: "1".to_owned(),
        next: None,
        former: None,
        record: Record::default(),
    };
    let view = View {
        now: begin(),
        wish: Some(Wish::default()),
        expired: true,
        late: &late,
        client_trust: CLIENT_TRUST,
        has_clients: false,
    };
    assert_eq!(next(&authorities, &view), Next::Step(Step::Introduce(Wish::default())));
    authorities.next = Some("2".to_owned());
    assert_eq!(next(&authorities, &view), Next::Step(Step::Issue));
    (authorities.issuing, authorities.former) = ("2".to_owned(), authorities.next.take());
    let issued = View {
        expired: false,
        wish: None,
        ..view
    };
    assert_eq!(next(&authorities, &issued), Next::Late, "they can say so again");
}

#[test]
fn one_operation_is_followed_once_and_an_urgent_one_hurries() {
    let record = Record::default();
    let wish = |compromised: bool, asked: &str| Wish {
        compromised,
        asked: Some(asked.to_owned()),
    };
    let mut authorities = Authorities {
        issuing: "1".to_owned(),
        next: None,
        former: None,
        record: record.after(&Step::Introduce(wish(false, "a")), begin()),
    };
    let view = |wish: Wish| View {
        now: begin(),
        wish: Some(wish),
        expired: false,
        late: &[],
        client_trust: CLIENT_TRUST,
        has_clients: false,
    };
    assert_eq!(next(&authorities, &view(wish(false, "a"))), Next::Rest);
    authorities.next = Some("2".to_owned());
    authorities.record = authorities.record.after(&Step::GiveTime, begin());
    assert_eq!(
        next(&authorities, &view(wish(false, "a"))),
        Next::Until(begin() + CLIENT_TRUST)
    );
    let follow = Step::Follow(wish(false, "b"));
    assert_eq!(next(&authorities, &view(wish(false, "b"))), Next::Step(follow.clone()));
    authorities.record = authorities.record.after(&follow, begin());
    assert!(authorities.record.since.is_some());
    // Who has read the Secret has the next key, too.
    let urgent = wish(true, "c");
    let again = Step::Introduce(urgent.clone());
    assert_eq!(next(&authorities, &view(urgent.clone())), Next::Step(again.clone()));
    authorities.record = authorities.record.after(&again, begin());
    assert_eq!(authorities.state(), Some(RotationState::Distribute));
    assert_eq!(
        next(&authorities, &view(urgent.clone())),
        Next::Step(Step::Issue),
        "applications get no time"
    );
    authorities.record = authorities.record.after(&Step::Issue, begin());
    (authorities.issuing, authorities.former) = ("2".to_owned(), authorities.next.take());
    let later = wish(true, "d");
    assert_eq!(
        next(&authorities, &view(later.clone())),
        Next::Step(Step::Retire),
        "then this one is replaced"
    );
    authorities.record = authorities.record.after(&Step::Retire, begin());
    authorities.former = None;
    assert_eq!(
        next(&authorities, &view(later.clone())),
        Next::Step(Step::Introduce(later))
    );
    assert_eq!(
        authorities.record,
        Record {
            asked: Some("c".to_owned()),
            ..Record::default()
        }
    );
}
