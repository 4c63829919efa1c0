//! Applications: one on each node, with a session that it keeps as long as possible. Each write is acknowledged,
//! refused, or has an unknown outcome.

use super::event::Event;
use super::postgres::Commit;
use super::world::World;

/// An application.
#[derive(Clone, Debug, Default)]
pub struct Client {
    /// The server that it is connected to.
    session: Option<(usize, u64)>,
    /// The write that it waits for, and since when.
    writing: Option<(u64, u64)>,
    /// Writes so far.
    pub writes: u64,
    /// How many of them were acknowledged.
    pub acknowledged: u64,
    /// How many of them got no answer: they may have been committed.
    pub unknown: u64,
    /// Refused tries: they were not committed.
    pub refused: u64,
}

/// How long an application waits for an answer, in milliseconds.
const LIMIT: u64 = 5_000;

impl World {
    /// The next step of an application: it waits, connects, or writes.
    pub fn client(&mut self, client: usize) {
        let pause = self.plan.pace / 2 + self.random.clients.below(self.plan.pace);
        self.after(pause, Event::Client { client });
        if !self.nodes[client].on {
            return;
        }
        if let Some((_, since)) = self.clients[client].writing {
            if self.now - since > LIMIT {
                let gives_up = &mut self.clients[client];
                (gives_up.writing, gives_up.session) = (None, None);
                gives_up.unknown += 1;
            }
            return;
        }
        let session = self.clients[client]
            .session
            .filter(|(node, server)| self.is_open(client, *node, Some(*server)));
        let session = session.or_else(|| self.connect_client(client));
        self.clients[client].session = session;
        let Some((node, _)) = session else {
            self.clients[client].refused += 1;
            return;
        };
        self.clients[client].writes += 1;
        let write = self.clients[client].writes;
        self.clients[client].writing = Some((write, self.now));
        if self.nodes[node].postgres_frozen > 0 {
            return;
        }
        let end = self.append(node, self.plan.size);
        if let Some(server) = self.nodes[node].postgres.as_mut() {
            server.commits.push_back(Commit { end, client, write });
        }
    }

    /// Connects through `-rw`, as the proxy of its node knows it.
    fn connect_client(&self, client: usize) -> Option<(usize, u64)> {
        let (_, node) = self.nodes[client].routes.range(..=self.now).next_back()?;
        let server = self.nodes[*node].postgres.as_ref()?.id;
        (self.is_open(client, *node, None) && self.nodes[*node].postgres_frozen == 0).then_some((*node, server))
    }

    fn is_open(&self, client: usize, node: usize, same: Option<u64>) -> bool {
        let place = &self.nodes[node];
        place.on
            && self.net.joined(client, node)
            && place.postgres.as_ref().is_some_and(|server| {
                server.up
                    && !server.in_recovery
                    && server.open
                    && server.stop.is_none()
                    && same.is_none_or(|id| id == server.id)
            })
    }

    /// A commit was acknowledged. The application learns of it if it still waits and can be reached.
    pub fn answer_client(&mut self, node: usize, client: usize, write: u64) {
        let reached = self.net.joined(client, node) && self.nodes[client].on;
        let waits = &mut self.clients[client];
        if reached && waits.writing.is_some_and(|(waiting, _)| waiting == write) {
            waits.writing = None;
            waits.acknowledged += 1;
        }
    }
}
