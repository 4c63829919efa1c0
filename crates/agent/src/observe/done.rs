//! What became of a task.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use machine::instance::{
    Configured, Contact, Mode, Process, Promise, Purpose, Refused, Reply, Route, SyncSetting, Work, heard,
};
use machine::protocol::{FailsafeReply, Lsn, MemberId, PromiseReply};
use machine::quorum::SyncRule;
use machine::timing::{BootTime, Timing};

use super::{Running, Scan, World};
use crate::kubernetes::Written;
use crate::peer::Signed;
use crate::postgres::{Following, Server, Status};

/// A task has ended.
pub struct Done {
    /// Which.
    pub work: Work,
    /// How.
    pub result: Result<Effect, Failure>,
}

/// What a task has brought about.
pub enum Effect {
    /// The volume was changed, and read again.
    Volume(Box<Scan>),
    /// Something that was set aside is gone; this is left.
    Discarded(BTreeSet<String>),
    /// PostgreSQL was started.
    Started {
        /// The server.
        server: Arc<Server>,
        /// As what.
        mode: Mode,
        /// With which configuration.
        configured: Configured,
        /// How it finds whom it follows.
        following: Following,
        /// `synchronous_standby_names` of a primary.
        rule: SyncRule,
        /// What was promised before a primary is followed.
        promise: Option<Promise>,
    },
    /// Nothing is received any more from an epoch below the promised one.
    Promised(Promise),
    /// The others were asked; their answers have come by themselves.
    Asked,
    /// The standby was promoted, closed to applications.
    Promoted {
        /// With which `synchronous_standby_names`.
        rule: SyncRule,
        /// With which settings.
        configured: Configured,
        /// End of its WAL after that: what may be in doubt is before it.
        in_doubt: Lsn,
        /// What is promised, the note of the promotion dropped.
        promise: Promise,
        /// What PostgreSQL said of itself after that.
        status: Box<Status>,
        /// When it was asked.
        asked: BootTime,
    },
    /// Every WAL sender uses a rule.
    Synced {
        /// The rule.
        rule: SyncRule,
        /// End of the WAL when that was proven.
        at: Lsn,
    },
    /// Applications may connect.
    Opened,
    /// A checkpoint was made.
    Checkpointed,
    /// PostgreSQL was configured anew.
    Configured {
        /// What is in the files now.
        configured: Configured,
        /// How it finds whom it follows.
        following: Following,
        /// What PostgreSQL said of itself after that.
        status: Box<Status>,
        /// When it was asked.
        asked: BootTime,
        /// What was promised before a primary is followed.
        promise: Option<Promise>,
    },
    /// The Lease was written.
    Lease {
        /// The Lease.
        written: Box<Written>,
        /// What for.
        purpose: Purpose,
        /// The times promised in it.
        timing: Timing,
    },
    /// The Lease was read.
    LeaseRead(Box<Lease>),
    /// `-rw` points here.
    Routed(Option<Route>),
    /// A member's role and slot exist.
    Admitted(MemberId),
    /// Slots of others than these are dropped.
    Kept(BTreeSet<MemberId>),
    /// The primary has answered.
    Reported {
        /// The answer.
        reply: Box<Reply>,
        /// The holder's run that was called.
        run: Option<String>,
    },
}

/// How a call to the holder's agent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contacted {
    /// It answered as the holder.
    Heard,
    /// Its address refused the connection.
    Refused,
    /// Neither.
    Silent,
}

/// A task has failed.
pub struct Failure {
    /// Why, in words.
    pub message: String,
    /// What was learned by it.
    pub news: Option<News>,
}

/// What a failed task can teach.
pub enum News {
    /// The Lease as it is now.
    Lease(Box<Lease>),
    /// Settings that PostgreSQL refuses.
    Refused(Refused),
    /// What is on the volume now.
    Scan(Box<Scan>),
    /// What is promised now.
    Promise(Promise),
    /// How the call to the holder's agent ended.
    Contact {
        /// How.
        contacted: Contacted,
        /// The holder's run that was called.
        run: Option<String>,
    },
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self {
            message: format!("{:#}", anyhow::Error::new(error)),
            news: None,
        }
    }
}

impl Failure {
    /// A failure of which only words are known.
    pub fn said(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            news: None,
        }
    }
}

impl World {
    /// A task begins.
    pub fn begun(&mut self, work: Work) {
        self.observed.tasks.of_mut(work).running = Some(work);
    }

    /// Another member has answered to a request for a promise.
    pub fn promise_answered(&mut self, pod: String, reply: Signed<PromiseReply>, now: BootTime) {
        let Signed { message, key } = reply;
        if let Err(reason) = heard::answer(&mut self.observed, pod, message, key.as_deref(), now) {
            self.refusals.tell("promise", &reason, now);
        }
    }

    /// Another member has promised not to take the lease, asked at `sent`.
    pub fn failsafe_answered(&mut self, pod: String, reply: Signed<FailsafeReply>, sent: BootTime) {
        let Signed { message, key } = reply;
        if let Err(reason) = heard::leaves_lease(&mut self.observed, pod, message, key.as_deref(), sent) {
            self.refusals.tell("promise to leave the lease", &reason, sent);
        }
    }

    /// A task has ended.
    pub fn done(&mut self, done: Done, now: BootTime) {
        let Done { work, result } = done;
        let task = self.observed.tasks.of_mut(work);
        task.running = None;
        task.ended = now;
        if matches!(work, Work::Rewind | Work::Clone | Work::SetAside) {
            // Its slots are gone, even if the work was broken off: none is copied from another member.
            self.observed.admitted.clear();
        }
        match result {
            Ok(effect) => {
                // What a failed task left was cleared away: that is no success of it.
                if work != Work::DiscardStaging {
                    task.failures = 0;
                    task.error = None;
                }
                self.effect(effect, now);
            }
            Err(Failure { message, news }) => {
                let refused = matches!(news, Some(News::Refused(_)));
                if refused {
                    // The next try is another one: with the settings of before.
                    task.failures = 0;
                } else {
                    task.failures = task.failures.saturating_add(1);
                }
                if task.error.as_ref() != Some(&message) {
                    tracing::warn!(work = ?work, "{message}");
                }
                task.error = Some(message);
                self.learn(news, now);
                if work == Work::Promote
                    && let Some(configured) = &mut self.observed.postgres.configured
                {
                    // Its files may be a primary's by now, closed to applications: they are to be written anew.
                    configured.settings.clear();
                    configured.upstream = None;
                }
            }
        }
    }

    fn effect(&mut self, effect: Effect, now: BootTime) {
        match effect {
            Effect::Volume(scan) => self.scanned(Ok(*scan)),
            Effect::Discarded(left) => self.observed.kept = left,
            Effect::Started {
                server,
                mode,
                configured,
                following,
                rule,
                promise,
            } => {
                self.following = following;
                self.learn(promise.map(News::Promise), now);
                self.started(server, mode, configured, now);
                self.observed.forget_overtaken_upstream();
                self.closed_with(rule);
            }
            Effect::Promised(promise) => self.promised(promise, now),
            Effect::Asked => {}
            Effect::Promoted {
                rule,
                configured,
                in_doubt,
                promise,
                status,
                asked,
            } => {
                self.promised(promise, now);
                if self.server.is_some() {
                    self.observed.postgres.process = Process::Running { mode: Mode::Primary };
                    self.closed_with(rule);
                    self.observed.postgres.in_doubt = Some(in_doubt);
                    self.observed.postgres.sync.proven_at = in_doubt;
                    self.observed.postgres.wrote = Some(asked);
                    self.configured(configured, status, asked);
                }
            }
            Effect::Synced { rule, at } => {
                if self.server.is_some() {
                    self.observed.postgres.sync = SyncSetting {
                        proven: rule,
                        proven_at: at,
                        pending: None,
                    };
                }
            }
            Effect::Checkpointed => {}
            Effect::Opened => self.observed.postgres.open = self.server.is_some(),
            Effect::Configured {
                configured,
                following,
                status,
                asked,
                promise,
            } => {
                self.following = following;
                self.learn(promise.map(News::Promise), now);
                if self.server.is_some() {
                    self.configured(configured, status, asked);
                }
            }
            Effect::Lease {
                written,
                purpose,
                timing,
            } => self.lease_written(*written, purpose, timing, now),
            Effect::LeaseRead(lease) => self.lease_version(*lease, now),
            Effect::Routed(route) => self.observed.route = route,
            Effect::Admitted(member) => {
                self.observed.admitted.insert(member);
            }
            Effect::Kept(keep) => {
                self.observed.admitted.retain(|member| keep.contains(member));
                self.observed.postgres.slots.retain(|member| keep.contains(member));
            }
            Effect::Reported { reply, run } => {
                self.contacted(Contacted::Heard, run.as_ref(), now);
                self.observed.reply = Some(*reply);
            }
        }
    }

    fn configured(&mut self, configured: Configured, status: Box<Status>, asked: BootTime) {
        self.raised(&configured);
        self.observed.postgres.configured = Some(configured);
        self.observed.forget_overtaken_upstream();
        self.take_answer(status, asked);
        self.configured_at = asked;
    }

    /// A primary begins closed to applications, with `rule` in force from its first WAL sender on.
    fn closed_with(&mut self, rule: SyncRule) {
        self.observed.postgres.open = false;
        self.observed.postgres.sync = SyncSetting {
            proven: rule,
            // Measured when it has left recovery; nobody has flushed so far.
            proven_at: Lsn(u64::MAX),
            pending: None,
        };
    }

    /// Notes how a call to the agent of the holder's `run` ended; what was heard of another run says nothing.
    fn contacted(&mut self, contacted: Contacted, run: Option<&String>, now: BootTime) {
        let holder = self
            .observed
            .lease
            .record
            .is()
            .and_then(|record| record.holder.as_ref());
        if holder.map(|holder| &holder.incarnation.run) != run {
            return;
        }
        let contact = &mut self.observed.contact;
        match contacted {
            Contacted::Heard => {
                *contact = Contact {
                    heard: Some(now),
                    refused: None,
                }
            }
            Contacted::Refused => contact.refused = contact.refused.or(Some(now)),
            Contacted::Silent => contact.refused = None,
        }
    }

    /// Limits were raised to what the control file demanded just now.
    fn raised(&mut self, configured: &Configured) {
        let enforced = &mut self.observed.postgres.enforced;
        *enforced = configured.raised.unwrap_or(*enforced);
    }

    fn started(&mut self, server: Arc<Server>, mode: Mode, configured: Configured, now: BootTime) {
        self.raised(&configured);
        let pid = server.pid();
        let ended = server.exited().is_some();
        self.server = Some(Running {
            server,
            since: now,
            asked: false,
        });
        self.stopped(None);
        self.observed.postgres.process = Process::Running { mode };
        self.observed.postgres.configured = Some(configured);
        if ended {
            // Its end was reported before its start.
            self.server_exited(pid, now);
        }
    }

    fn learn(&mut self, news: Option<News>, now: BootTime) {
        match news {
            None => {}
            Some(News::Lease(lease)) => self.lease_version(*lease, now),
            Some(News::Refused(refused)) => {
                tracing::error!(settings = refused.settings, "settings are refused: {}", refused.error);
                self.observed.postgres.refused = Some(refused);
            }
            Some(News::Scan(scan)) => self.scanned(Ok(*scan)),
            Some(News::Promise(promise)) => self.promised(promise, now),
            Some(News::Contact { contacted, run }) => self.contacted(contacted, run.as_ref(), now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{peer, world};
    use super::*;
    use machine::instance::Reading;
    use machine::lease_object;
    use machine::protocol::Epoch;

    /// The Lease, held by `run`.
    fn held_by(world: &mut World, run: &str, version: &str, now: u64) {
        let holder = serde_json::json!({
            "pod": "orders-1", "podUid": "pod-1", "run": run, "member": "cdb_1_aaaa_00000001", "address": "10.0.0.2",
        });
        let lease = serde_json::json!({
            "metadata": {"name": "orders", "uid": "lease", "resourceVersion": version,
                         "annotations": {(api::names::LEASE_HOLDER): holder.to_string()}},
            "spec": {"leaseTransitions": 4, "holderIdentity": format!("orders-1/pod-1/{run}/cdb_1_aaaa_00000001")},
        });
        let lease: Lease = serde_json::from_value(lease).expect("a Lease");
        assert!(lease_object::read(&lease).is_ok());
        world.lease_read(Reading::Is(lease), BootTime(now));
    }

    fn called(world: &mut World, contacted: Contacted, run: &str, now: u64) -> Contact {
        let run = Some(run.to_owned());
        let failure = Failure {
            message: "no".to_owned(),
            news: Some(News::Contact { contacted, run }),
        };
        let done = Done {
            work: Work::Report,
            result: Err(failure),
        };
        world.done(done, BootTime(now));
        world.observed.contact
    }

    #[test]
    fn the_holder_is_heard_refuses_or_is_silent() {
        let mut world = world();
        held_by(&mut world, "first", "1", 10);
        assert_eq!(world.observed.lease.holder_since, BootTime(10));
        let refused = called(&mut world, Contacted::Refused, "first", 100);
        assert_eq!((refused.heard, refused.refused), (None, Some(BootTime(100))));
        let again = called(&mut world, Contacted::Refused, "first", 200);
        assert_eq!(again.refused, Some(BootTime(100)), "since then");
        assert_eq!(called(&mut world, Contacted::Silent, "first", 300).refused, None);
        let heard = called(&mut world, Contacted::Heard, "first", 400);
        assert_eq!((heard.heard, heard.refused), (Some(BootTime(400)), None));
        // A renewal changes nothing; another run is not known yet, and what the first one said is no news of it.
        held_by(&mut world, "first", "2", 450);
        assert_eq!(world.observed.contact, heard);
        held_by(&mut world, "second", "3", 500);
        assert_eq!(world.observed.lease.holder_since, BootTime(500));
        assert_eq!(world.observed.contact, Contact::default());
        assert_eq!(called(&mut world, Contacted::Heard, "first", 600), Contact::default());
    }

    #[test]
    fn a_position_from_before_a_promise_counts_for_nothing() {
        let mut world = world();
        let promise = |epoch| Promise {
            epoch: Epoch(epoch),
            promoting: None,
        };
        world.scanned(Ok(Scan {
            view: machine::instance::VolumeView {
                promise: Some(promise(1)),
                ..Default::default()
            },
            limits: None,
            good_settings: None,
            key: None,
        }));
        world.observed.postgres.answer = Some(machine::instance::Answer {
            asked: BootTime(0),
            in_recovery: true,
            position: None,
            begins: None,
            replayed: None,
            streaming: false,
            waits_for_wal: false,
            other_upstream: false,
            pending_restart: false,
            lowers_limits: false,
            heard: None,
            received_all: true,
            knows_end: true,
        });
        let upstream = |epoch| machine::instance::Upstream {
            address: "10.0.0.2".to_owned(),
            epoch: Epoch(epoch),
        };
        world.observed.postgres.configured = Some(Configured {
            settings: String::new(),
            upstream: Some(upstream(1)),
            raised: None,
        });
        world.effect(Effect::Promised(promise(2)), BootTime(50));
        assert!(
            world
                .observed
                .postgres
                .answer
                .is_some_and(|answer| !answer.received_all)
        );
        assert_eq!(
            world.configured_at,
            BootTime(50),
            "what was asked for earlier is dropped"
        );
        // Word of an older promise is late, and what was to be followed under it is not.
        world.observed.postgres.configured.as_mut().expect("it").upstream = Some(upstream(1));
        world.promised(promise(1), BootTime(60));
        world.observed.forget_overtaken_upstream();
        assert_eq!(
            world.observed.volume.is().and_then(|volume| volume.promise),
            Some(promise(2))
        );
        assert_eq!(world.observed.postgres.configured.as_ref().expect("it").upstream, None);
        // One that was written down counts, though the WAL receiver was not seen to end.
        world.observed.postgres.configured.as_mut().expect("it").upstream = Some(upstream(2));
        let failed = |epoch| Done {
            work: Work::Promise,
            result: Err(Failure {
                message: "the WAL receiver still runs".to_owned(),
                news: Some(News::Promise(promise(epoch))),
            }),
        };
        world.done(failed(2), BootTime(70));
        assert_eq!(
            world.observed.postgres.configured.as_ref().expect("it").upstream,
            Some(upstream(2)),
            "it is of the promised epoch"
        );
        world.done(failed(3), BootTime(80));
        assert_eq!(world.observed.postgres.configured.as_ref().expect("it").upstream, None);
    }

    #[test]
    fn a_promise_outlives_a_reading_of_the_volume_that_began_before_it() {
        let mut world = world();
        let scan = |read, epoch| Scan {
            view: machine::instance::VolumeView {
                promise: Some(Promise {
                    epoch: Epoch(epoch),
                    promoting: None,
                }),
                read: BootTime(read),
                ..Default::default()
            },
            limits: None,
            good_settings: None,
            key: None,
        };
        let epoch = |world: &World| {
            world
                .observed
                .volume
                .is()
                .and_then(|volume| volume.promise)
                .map(|p| p.epoch)
        };
        world.scanned(Ok(scan(10, 1)));
        let promise = Promise {
            epoch: Epoch(3),
            promoting: None,
        };
        world.done(
            Done {
                work: Work::Promise,
                result: Ok(Effect::Promised(promise)),
            },
            BootTime(30),
        );
        world.scanned(Ok(scan(20, 1)));
        assert_eq!(epoch(&world), Some(Epoch(3)));
        world.scanned(Ok(scan(40, 5)));
        assert_eq!(epoch(&world), Some(Epoch(5)));
    }

    #[test]
    fn nobody_is_admitted_where_the_slots_are_gone() {
        let admitted = |work: Work, result: Result<Effect, Failure>| {
            let mut world = world();
            let member = MemberId::new(1, "aaaa", 1);
            let done = Done {
                work: Work::Admit,
                result: Ok(Effect::Admitted(member)),
            };
            world.done(done, BootTime(10));
            world.done(Done { work, result }, BootTime(20));
            !world.observed.admitted.is_empty()
        };
        let read = || {
            Ok(Effect::Volume(Box::new(Scan {
                view: machine::instance::VolumeView::default(),
                limits: None,
                good_settings: None,
                key: None,
            })))
        };
        for work in [Work::Rewind, Work::Clone, Work::SetAside] {
            assert!(!admitted(work, read()), "{work:?}");
            assert!(!admitted(work, Err(Failure::said("no space"))), "{work:?}");
        }
        assert!(!admitted(Work::DropSlots, Ok(Effect::Kept(BTreeSet::new()))));
        assert!(admitted(Work::StoreCertificate, read()), "its data is as it was");
    }

    #[test]
    fn answers_to_a_candidate_are_kept_by_pod() {
        let mut world = world();
        let reply = |promised, key: Option<&str>| Signed {
            message: PromiseReply {
                member: MemberId::new(2, "aaaa", 1),
                promised: Epoch(promised),
                suspects: true,
                position: None,
            },
            key: key.map(str::to_owned),
        };
        world.observed.peers.insert("orders-2".to_owned(), peer("key"));
        world.promise_answered("orders-2".to_owned(), reply(1, Some("key")), BootTime(5));
        world.promise_answered("orders-2".to_owned(), reply(2, Some("key")), BootTime(6));
        world.promise_answered("orders-2".to_owned(), reply(3, None), BootTime(7));
        world.promise_answered("orders-2".to_owned(), reply(3, Some("another")), BootTime(7));
        assert_eq!(world.observed.promises["orders-2"].reply.promised, Epoch(2));
        assert_eq!(world.observed.promises["orders-2"].at, BootTime(6));
    }
}
