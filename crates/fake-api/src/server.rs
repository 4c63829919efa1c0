//! The store behind a service that [`kube::Client`] takes, on tokio's clock.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use futures::{Stream, StreamExt};
use http::{Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::faults::{Fate, Faults, WatchFate};
use crate::kinds::Kind;
use crate::process::{Answered, Process};
use crate::reply::{Refusal, Reply};
use crate::request::{Call, Verb};
use crate::store::Store;
use crate::watch::Watching;

/// Interval of the bookmarks of a watch without events.
const BOOKMARKS: Duration = Duration::from_secs(60);

type Answer = UnsyncBoxBody<Bytes, io::Error>;

/// Tokio's time as a date: with a paused clock the run's own.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch: DateTime<Utc>,
    start: Instant,
}

impl Clock {
    /// A clock that shows `epoch` now.
    pub fn starting(epoch: DateTime<Utc>) -> Self {
        Self {
            epoch,
            start: Instant::now(),
        }
    }

    /// The time.
    pub fn now(&self) -> DateTime<Utc> {
        self.epoch + TimeDelta::from_std(self.start.elapsed()).unwrap_or(TimeDelta::MAX)
    }
}

/// A client that is killed: from its request with this number on, counted from 1, nothing of it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kill {
    /// Which request.
    pub at: usize,
    /// That request is still carried out.
    pub carried_out: bool,
}

/// An API server; clones share it.
#[derive(Clone)]
pub struct Server(Arc<Inner>);

struct Inner {
    clock: Clock,
    state: Mutex<State>,
    changed: Notify,
    killed: Notify,
}

struct State {
    store: Store,
    faults: Faults,
    trace: Vec<String>,
    arrived: usize,
    kill: Option<Kill>,
}

impl Server {
    /// A server with these objects and faults.
    pub fn new(store: Store, faults: Faults, clock: Clock) -> Self {
        let state = State {
            store,
            faults,
            trace: Vec::new(),
            arrived: 0,
            kill: None,
        };
        Self(Arc::new(Inner {
            clock,
            state: Mutex::new(state),
            changed: Notify::new(),
            killed: Notify::new(),
        }))
    }

    /// Its clock.
    pub fn clock(&self) -> Clock {
        self.0.clock
    }

    /// A client that suffers from the faults and can be killed. Clients with retries of their own are not made here.
    pub fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request| {
            let server = server.clone();
            async move { server.answer(request, None).await }
        });
        Client::new(service, "default")
    }

    /// A client of this process: it stops with the process and sees what the process sees. A request that was sent arrives, even
    /// if its caller no longer waits for the answer.
    pub fn client_of(&self, process: &Process) -> Client {
        let (server, process) = (self.clone(), process.clone());
        let service = tower::service_fn(move |request| {
            let (server, process) = (server.clone(), process.clone());
            let sent = tokio::spawn(async move { server.answer(request, Some(process)).await });
            async move { sent.await.map_err(io::Error::other)? }
        });
        Client::new(service, "default")
    }

    /// From now on lists and watches show this process these kinds as they are now.
    pub fn freeze(&self, process: &Process, plurals: &[&str]) {
        let view = Arc::new(self.lock().store.snapshot());
        process.freeze(plurals, &view);
    }

    /// Watches deliver the events that the process has missed.
    pub fn thaw(&self, process: &Process) {
        process.thaw();
        self.0.changed.notify_waiters();
    }

    /// Works on the objects from within, where nothing goes wrong: as controllers, kubelets and users do.
    pub fn within<R>(&self, work: impl FnOnce(&mut Store, DateTime<Utc>) -> R) -> R {
        let mut state = self.lock();
        let before = state.store.version();
        let result = work(&mut state.store, self.0.clock.now());
        let changed = state.store.version() != before;
        drop(state);
        if changed {
            self.0.changed.notify_waiters();
        }
        result
    }

    /// Changes what goes wrong.
    pub fn faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.lock().faults);
        self.0.changed.notify_waiters();
    }

    /// All requests so far, each with its answer's code.
    pub fn trace(&self) -> Vec<String> {
        self.lock().trace.clone()
    }

    /// All requests so far, which are forgotten with that.
    pub fn take_trace(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().trace)
    }

    /// Forgets the requests so far, and sets when the client is killed: the requests are counted from here.
    pub fn kill(&self, kill: Option<Kill>) {
        let mut state = self.lock();
        state.trace.clear();
        state.arrived = 0;
        state.kill = kill;
    }

    /// Returns when the client has been killed.
    pub async fn killed(&self) {
        self.0.killed.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) async fn answer(
        &self,
        request: Request<Body>,
        process: Option<Process>,
    ) -> Result<Response<Answer>, io::Error> {
        let call = match read(request).await? {
            Ok(call) => call,
            Err(refusal) => {
                self.lock().trace.push(format!("{} {}", refusal.code, refusal.message));
                return Ok(whole(refusal.into()));
            }
        };
        let stops = match &process {
            None => None,
            Some(process) => {
                process.goes_on().await;
                let stops = process.meets(&call.summary());
                process.goes_on().await;
                stops
            }
        };
        let answer = self.handle(&call, process.as_ref(), stops == Some(false)).await?;
        if let Some(process) = process {
            if stops == Some(true) {
                process.stop();
            }
            process.goes_on().await;
        }
        Ok(answer)
    }

    async fn handle(&self, call: &Call, process: Option<&Process>, late: bool) -> Result<Response<Answer>, io::Error> {
        let (delay, fate, killed) = self.arrives(call);
        if let Some(kill) = killed {
            if kill.carried_out {
                self.within(|store, now| store.call(call, now));
            }
            self.0.killed.notify_one();
            return std::future::pending().await;
        }
        tokio::time::sleep(delay).await;
        let reply = match fate {
            Fate::Refused(code) => unavailable(code),
            Fate::Lost => return std::future::pending().await,
            Fate::Answered | Fate::CarriedOut(_) | Fate::AnswerLost => {
                if call.verb == Verb::Watch {
                    return Ok(self.watch(call, process));
                }
                // Lists that watches begin with come in pages.
                let begins = call.verb == Verb::List && call.query.number("limit").is_some();
                let frozen = process.filter(|_| begins);
                match frozen.and_then(|process| process.frozen(call.kind)) {
                    Some(view) => view.list_for(call),
                    None => self.within(|store, now| store.call(call, now)),
                }
            }
        };
        let reply = match fate {
            Fate::CarriedOut(code) => unavailable(code),
            _ => reply,
        };
        self.lock().trace.push(format!("{} {}", reply.code, call.summary()));
        if let Some(process) = process {
            process.note(Answered {
                at: self.0.clock.now(),
                code: reply.code,
                what: call.summary(),
                late,
            });
        }
        if fate == Fate::AnswerLost {
            return std::future::pending().await;
        }
        // The way back takes its time, too: watches may be faster.
        let delay = self.lock().faults.delay();
        tokio::time::sleep(delay).await;
        Ok(whole(reply))
    }

    fn arrives(&self, call: &Call) -> (Duration, Fate, Option<Kill>) {
        let mut state = self.lock();
        let (delay, fate) = (state.faults.delay(), state.faults.request(call.verb));
        state.trace.push(format!("{} ({fate:?})", call.summary()));
        state.arrived += 1;
        let arrived = state.arrived;
        let killed = state.kill.filter(|kill| arrived >= kill.at);
        (
            delay,
            fate,
            killed.map(|kill| Kill {
                carried_out: kill.carried_out && arrived == kill.at,
                ..kill
            }),
        )
    }

    fn watch(&self, call: &Call, process: Option<&Process>) -> Response<Answer> {
        let watching = Watching::new(call);
        let mut state = self.lock();
        let fate = state.faults.watch();
        let from = call.query.number("resourceVersion").filter(|version| *version > 0);
        let mut first = VecDeque::new();
        if from.is_none() {
            first.extend(state.store.all(&watching));
        }
        let opened = Instant::now();
        let timeout = Duration::from_secs(call.query.number("timeoutSeconds").unwrap_or(300));
        let open = Open {
            server: self.clone(),
            process: process.cloned(),
            kind: call.kind,
            watching,
            fate,
            version: from.unwrap_or(state.store.version()),
            queue: first,
            opened,
            ends: opened + timeout,
            bookmarks: call.query.is("allowWatchBookmarks"),
            bookmarked: opened,
            over: false,
        };
        drop(state);
        let body = StreamBody::new(open.events().map(|event| event.map(Frame::data)));
        response(200, body.boxed_unsync())
    }
}

/// A watch that is open.
struct Open {
    server: Server,
    process: Option<Process>,
    kind: &'static Kind,
    watching: Watching,
    fate: WatchFate,
    version: u64,
    queue: VecDeque<Value>,
    opened: Instant,
    ends: Instant,
    bookmarks: bool,
    bookmarked: Instant,
    over: bool,
}

impl Open {
    fn events(self) -> impl Stream<Item = Result<Bytes, io::Error>> + Send {
        futures::stream::unfold(self, |mut open| async move {
            let next = open.next().await?;
            Some((next, open))
        })
    }

    /// The next line; `None` at the end.
    async fn next(&mut self) -> Option<Result<Bytes, io::Error>> {
        loop {
            if let Some(process) = &self.process {
                process.goes_on().await;
            }
            if let Some(event) = self.queue.pop_front() {
                return Some(Ok(Bytes::from(format!("{event}\n"))));
            }
            let now = Instant::now();
            if self.over || now >= self.ends {
                return None;
            }
            if self.breaks().is_some_and(|at| now >= at) {
                self.over = true;
                return Some(Err(io::Error::new(
                    io::ErrorKind::ConnectionReset,
                    "connection reset by peer",
                )));
            }
            let server = self.server.clone();
            let changed = server.0.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let wake = self.look(now);
            if self.queue.is_empty() {
                tokio::select! { biased; () = changed => {}, () = tokio::time::sleep_until(wake) => {} }
            }
        }
    }

    fn breaks(&self) -> Option<Instant> {
        self.fate.breaks_after.map(|after| self.opened + after)
    }

    /// Takes the events that are due; returns when to check again if nothing happens.
    fn look(&mut self, now: Instant) -> Instant {
        let mut wake = self.breaks().map_or(self.ends, |breaks| breaks.min(self.ends));
        if let Some((from, until)) = self.fate.frozen
            && now >= self.opened + from
            && now < self.opened + until
        {
            return wake.min(self.opened + until);
        }
        if self
            .process
            .as_ref()
            .is_some_and(|process| process.frozen(self.kind).is_some())
        {
            return wake;
        }
        let state = self.server.lock();
        let lag = state.faults.lag(self.fate.server);
        let clock = self.server.clock();
        let seen = clock.now() - TimeDelta::from_std(lag).unwrap_or_default();
        match state.store.news(&self.watching, self.version, seen) {
            Ok(news) => {
                self.version = news.version;
                self.queue.extend(news.events);
                if let Some(next) = news.next {
                    wake = wake.min(now + (next - seen).to_std().unwrap_or_default().max(Duration::from_millis(1)));
                }
            }
            Err(refusal) => {
                self.queue
                    .push_back(json!({"type": "ERROR", "object": refusal.status()}));
                self.over = true;
            }
        }
        if self.bookmarks && now >= self.bookmarked + BOOKMARKS {
            self.bookmarked = now;
            self.queue.push_back(self.watching.bookmark(self.version));
        }
        match self.bookmarks {
            true => wake.min(self.bookmarked + BOOKMARKS),
            false => wake,
        }
    }
}

async fn read(request: Request<Body>) -> Result<Result<Call, Refusal>, io::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect_bytes().await.map_err(io::Error::other)?;
    let header = |name| {
        parts
            .headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    };
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let (kind, accept) = (header(header::CONTENT_TYPE), header(header::ACCEPT));
    Ok(Call::parse(parts.method.as_str(), path, kind, accept, &body))
}

fn unavailable(code: u16) -> Reply {
    let (reason, message) = match code {
        429 => ("TooManyRequests", "too many requests, please try again later"),
        504 => (
            "Timeout",
            "the server was unable to return a response in the time allotted",
        ),
        _ => ("InternalError", "an internal error occurred"),
    };
    Refusal::new(code, reason, message).into()
}

fn whole(reply: Reply) -> Response<Answer> {
    let body = Full::new(Bytes::from(reply.body.to_string())).map_err(|never| match never {});
    response(reply.code, body.boxed_unsync())
}

fn response(code: u16, body: Answer) -> Response<Answer> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
