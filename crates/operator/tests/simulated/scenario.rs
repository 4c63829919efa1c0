//! Runs by a script: what users, clusters and operators do, told as a transcript that is compared with what stands in
//! `golden/`. A transcript says what happens; what must hold whatever it says is asserted by the script.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use fake_api::faults::{Faults, Rates};
use fake_api::{Change, Process, Verb};
use operator::cache::Key;
use operator::config::Config;
use operator::decisions::Decisions;
use serde_json::Value;
use tokio::time::Instant;

use super::world::{LONG, NAME, NAMESPACE, Operator, World, run, switchover};

/// How long a pod takes from one thing to the next.
const PACE: Duration = Duration::from_secs(1);
/// How often it is looked what has happened.
const TICK: Duration = Duration::from_millis(200);

/// A script under way.
pub struct Scenario {
    /// The cluster.
    pub world: World,
    operators: BTreeMap<&'static str, Running>,
    lines: Vec<Line>,
    began: DateTime<Utc>,
    version: u64,
    primaries: usize,
    always: Vec<(&'static str, Rule)>,
}

/// What must hold all the time.
type Rule = Box<dyn Fn(&World) -> bool>;

/// One operator.
struct Running {
    process: Process,
    operator: Option<Operator>,
    decisions: Arc<Decisions>,
    /// How many of its decisions and answers are told.
    told: (u64, usize),
    last: String,
}

struct Line {
    at: DateTime<Utc>,
    who: String,
    what: String,
}

/// What becomes of a ready database, watched over by the operator `a`. The transcript begins when it is ready.
pub fn scenario(name: &str, spec: &Value, course: impl AsyncFnOnce(&mut Scenario)) {
    from_nothing(name, Rates::NONE, async |script| {
        script.start("a");
        script.world.create(spec);
        script.ready().await;
        script.forget();
        course(script).await;
    });
}

/// What happens in a cluster without operators and databases.
pub fn from_nothing(name: &str, rates: Rates, course: impl AsyncFnOnce(&mut Scenario)) {
    let transcript = run(1, async || {
        let world = World::new(Faults::new(1, rates), PACE);
        let mut script = Scenario {
            began: world.server.clock().now(),
            version: world.server.within(|store, _| store.version()),
            world,
            operators: BTreeMap::new(),
            lines: Vec::new(),
            primaries: 0,
            always: Vec::new(),
        };
        course(&mut script).await;
        script.look();
        script.transcript()
    });
    compare(name, &transcript);
}

impl Scenario {
    /// Starts an operator.
    pub fn start(&mut self, who: &'static str) {
        self.say("script", &format!("operator {who} starts"));
        let server = self.world.server.clone();
        let process = self.process(who);
        let operator = Operator::start_in(&server, Config::default(), &process);
        if let Some(running) = self.operators.get_mut(who) {
            running.decisions = Arc::clone(&operator.decisions);
            running.operator = Some(operator);
        }
    }

    /// Ends an operator where it is.
    pub fn kill(&mut self, who: &'static str) {
        self.look();
        self.say("script", &format!("operator {who} is killed"));
        if let Some(running) = self.operators.get_mut(who) {
            running.operator = None;
        }
    }

    /// Waits until the operator is about to send such a request, and stops it there, as by SIGSTOP.
    pub async fn stops_before(&mut self, who: &'static str, request: &'static str) {
        let process = self.process(who);
        process.stop_before(move |what| what.starts_with(request));
        self.stopped(
            &process,
            &format!("operator {who} is stopped before it sends: {request}"),
        )
        .await;
    }

    /// Waits until such a request of the operator was carried out, and stops it before it hears so.
    pub async fn stops_after(&mut self, who: &'static str, request: &'static str) {
        let process = self.process(who);
        process.stop_after(move |what| what.starts_with(request));
        self.stopped(&process, &format!("operator {who} is stopped after: {request}"))
            .await;
    }

    async fn stopped(&mut self, process: &Process, what: &str) {
        let end = Instant::now() + Duration::from_secs(600);
        while tokio::time::timeout(TICK, process.stopped()).await.is_err() {
            assert!(Instant::now() < end, "not so far: {what}\n{}", self.transcript());
            self.look();
        }
        self.look();
        self.say("script", what);
    }

    /// Lets a stopped operator go on.
    pub fn goes_on(&mut self, who: &'static str) {
        self.look();
        self.say("script", &format!("operator {who} goes on"));
        self.process(who).go_on();
    }

    /// From now on this operator, which need not run yet, is shown these kinds as they are now.
    pub fn freeze(&mut self, who: &'static str, plurals: &[&str]) {
        self.look();
        let what = if plurals.len() > 3 {
            "everything".to_owned()
        } else {
            plurals.join(" and ")
        };
        self.say("script", &format!("operator {who} is shown {what} as of now"));
        let process = self.process(who);
        self.world.server.freeze(&process, plurals);
    }

    /// Its view goes on.
    pub fn thaw(&mut self, who: &'static str) {
        self.look();
        self.say("script", &format!("operator {who} is shown what it has missed"));
        let process = self.process(who);
        self.world.server.thaw(&process);
    }

    fn process(&mut self, who: &'static str) -> Process {
        let running = self.operators.entry(who).or_insert_with(|| Running {
            process: Process::new(who),
            operator: None,
            decisions: Arc::default(),
            told: (0, 0),
            last: String::new(),
        });
        running.process.clone()
    }

    /// What somebody does.
    pub fn does<R>(&mut self, what: &str, action: impl FnOnce(&World) -> R) -> R {
        self.look();
        self.say("user", what);
        action(&self.world)
    }

    /// The user changes the spec.
    pub fn edit(&mut self, spec: &Value) {
        self.does(&format!("spec {spec}"), |world| world.edit(spec));
    }

    /// The user changes another object.
    pub fn merge(&mut self, plural: &str, name: &str, change: &Value) {
        self.does(&format!("{plural} {name}: {change}"), |world| {
            world.user(200, Verb::Merge, plural, name, change.clone());
        });
    }

    /// The user asks for a switchover to this instance, by an operation.
    pub fn ask(&mut self, operation: &str, to: &str) {
        self.does(&format!("operation {operation}: a switchover to {to}"), |world| {
            let asked = switchover(operation, to);
            world.user(201, Verb::Create, "clustereddatabaseoperations", "", asked);
        });
    }

    /// The user deletes an object.
    pub fn delete(&mut self, plural: &str, name: &str) {
        self.does(&format!("deletes {plural} {name}"), |world| world.delete(plural, name));
    }

    /// From now on this must hold whenever it is looked.
    pub fn always(&mut self, what: &'static str, so: impl Fn(&World) -> bool + 'static) {
        self.always.push((what, Box::new(so)));
    }

    /// Time passes.
    pub async fn sleep(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            tokio::time::sleep(TICK.min(end - Instant::now())).await;
            self.look();
        }
    }

    /// Waits until it is so, at most twenty minutes.
    pub async fn until(&mut self, what: &str, so: impl Fn(&World) -> bool) {
        let end = Instant::now() + Duration::from_secs(20 * 60);
        while !so(&self.world) {
            let so_far = || format!("not {what}: {:#}\n{}", self.world.status(), self.transcript());
            assert!(Instant::now() < end, "{}", so_far());
            self.sleep(TICK).await;
        }
        self.look();
    }

    /// Waits until the database is ready.
    pub async fn ready(&mut self) {
        self.until("ready", World::is_ready).await;
    }

    /// It is ready, and for long nothing is written.
    pub async fn rests(&mut self) {
        self.ready().await;
        self.world.rests(LONG).await;
        self.look();
    }

    /// Begins the transcript anew.
    pub fn forget(&mut self) {
        self.look();
        self.lines.clear();
        self.began = self.now();
    }

    /// UIDs of the objects of a kind, by name.
    pub fn uids(&self, plural: &str) -> BTreeMap<String, String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let objects = self.world.list(plural).into_iter();
        objects
            .map(|object| (text(&object["metadata"]["name"]), text(&object["metadata"]["uid"])))
            .collect()
    }

    /// Who has been primary so far, in order.
    pub fn primaries(&self) -> Vec<String> {
        self.world.agents.lock().unwrap().primaries.clone()
    }

    /// How many lines of the transcript say this.
    pub fn told(&self, what: &str) -> usize {
        self.lines.iter().filter(|line| line.what.contains(what)).count()
    }

    /// How many changes in the cluster begin so.
    pub fn happened(&self, what: &str) -> usize {
        let lines = self.lines.iter().filter(|line| line.who == "cluster");
        lines.filter(|line| line.what.starts_with(what)).count()
    }

    fn now(&self) -> DateTime<Utc> {
        self.world.server.clock().now()
    }

    fn say(&mut self, who: &str, what: &str) {
        let at = self.now();
        self.lines.push(Line {
            at,
            who: who.to_owned(),
            what: what.to_owned(),
        });
    }

    /// Takes down what has happened since the last look.
    fn look(&mut self) {
        let mut lines = Vec::new();
        let changes = self.world.server.within(|store, _| {
            let new = store.changes().iter().filter(|change| change.version > self.version);
            new.cloned().collect::<Vec<_>>()
        });
        for change in changes {
            self.version = change.version;
            let told = told_of(&change).into_iter();
            lines.extend(told.map(|what| Line {
                at: change.at,
                who: "cluster".to_owned(),
                what,
            }));
        }
        for (who, running) in &mut self.operators {
            lines.extend(running.news().into_iter().map(|(at, what)| Line {
                at,
                who: format!("operator {who}"),
                what,
            }));
        }
        let primaries = self.primaries();
        for primary in &primaries[self.primaries..] {
            lines.push(Line {
                at: self.now(),
                who: "agents".to_owned(),
                what: format!("{primary} is primary"),
            });
        }
        self.primaries = primaries.len();
        lines.sort_by_key(|line| line.at);
        self.lines.extend(lines);
        for (what, so) in &self.always {
            assert!(so(&self.world), "not: {what}\n{}", self.transcript());
        }
    }

    fn transcript(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            let seconds = (line.at - self.began).as_seconds_f64();
            text += &format!("{seconds:>7.1}  {:<10}  {}\n", line.who, line.what);
        }
        text
    }
}

impl Running {
    /// Decisions that are other ones than the last, and writes that were refused or came late.
    fn news(&mut self) -> Vec<(DateTime<Utc>, String)> {
        let mut news = Vec::new();
        let key = Key::database(NAMESPACE.to_owned(), NAME.to_owned());
        let text = self.decisions.text(&key).unwrap_or_default();
        let read = |line: &str| serde_json::from_str::<Value>(line).unwrap();
        let (header, decisions) = text.split_once('\n').unwrap_or_default();
        let dropped = if header.is_empty() {
            0
        } else {
            read(header)["dropped"].as_u64().unwrap_or(0)
        };
        let decisions: Vec<&str> = decisions.lines().collect();
        let all = dropped + decisions.len() as u64;
        // Another resource of the name begins anew.
        let known = if all < self.told.0 { 0 } else { self.told.0 };
        self.told.0 = all;
        for line in decisions
            .iter()
            .skip(usize::try_from(known.saturating_sub(dropped)).unwrap())
        {
            let entry = read(line);
            // The others are about operations and backups.
            let Some(decision) = entry.get("decision") else {
                continue;
            };
            let what = decided(decision);
            if what != self.last {
                self.last.clone_from(&what);
                news.push((entry["at"].as_str().unwrap().parse().unwrap(), what));
            }
        }
        let answered = self.process.answered();
        for answer in &answered[self.told.1..] {
            let reads = ["Get ", "List ", "Watch "]
                .iter()
                .any(|verb| answer.what.starts_with(verb));
            if !reads && (answer.late || answer.code >= 400) {
                let late = if answer.late {
                    " (the request that was held up)"
                } else {
                    ""
                };
                news.push((answer.at, format!("  {} for: {}{late}", answer.code, answer.what)));
            }
        }
        self.told.1 = answered.len();
        news
    }
}

/// Phase, action and reason.
fn decided(decision: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let step = decision["step"]
        .as_str()
        .map_or(String::new(), |step| format!("/{step}"));
    let (name, action) = variant(&decision["action"]);
    let action = match name.as_str() {
        "Wait" => format!("waits for: {}", text(&action["what"])),
        "WriteStatus" => {
            let changes = action.as_array().into_iter().flatten().map(variant);
            let changes: Vec<_> = changes.map(|(name, value)| format!("{name}{}", about(value))).collect();
            format!("WriteStatus {}", changes.join(", "))
        }
        "Apply" => format!("{} {}", variant(&action["how"]).0, text(&action["kind"])),
        _ => format!("{name}{}", about(action)),
    };
    format!(
        "{}{step}: {action}  [{}: {}]",
        text(&decision["phase"]),
        text(&decision["rule"]),
        text(&decision["because"])
    )
}

/// A variant's name and content.
fn variant(value: &Value) -> (String, &Value) {
    match value.as_object().and_then(|object| object.iter().next()) {
        Some((name, content)) => (name.clone(), content),
        None => (value.as_str().unwrap_or_default().to_owned(), &Value::Null),
    }
}

/// The object that it is about.
fn about(value: &Value) -> String {
    let named = ["name", "pod", "claim", "target", "memo", "role", "size"]
        .iter()
        .filter_map(|field| match &value[field] {
            Value::String(text) => Some(text.clone()),
            Value::Object(exact) => Some(exact.get("name").or(exact.get("target"))?.as_str()?.to_owned()),
            _ => None,
        });
    let own = value.as_str().map(str::to_owned).into_iter();
    own.chain(named).map(|text| format!(" {text}")).collect()
}

/// What is worth a line of a change in the cluster.
fn told_of(change: &Change) -> Vec<String> {
    let (after, name) = (&change.after, &change.key.name);
    let differs = |path: &str| {
        change
            .before
            .as_ref()
            .is_some_and(|before| before.pointer(path) != after.pointer(path))
    };
    let shown = |path: &str| {
        after
            .pointer(path)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let kind = change.key.kind.kind;
    let mut told = Vec::new();
    match kind {
        "Namespace" | "Pod" | "PersistentVolumeClaim" | "StatefulSet" | "Secret" | "Lease" | "ClusteredDatabase" => {
            let going = !after["metadata"]["deletionTimestamp"].is_null();
            match &change.before {
                _ if change.gone => told.push(format!("{kind} {name} is gone")),
                None => told.push(format!("{kind} {name} is made")),
                Some(before) if going && before["metadata"]["deletionTimestamp"].is_null() => {
                    told.push(format!("{kind} {name} is going"));
                }
                Some(_) => {}
            }
        }
        _ => return told,
    }
    if kind == "ClusteredDatabase" && differs("/status/phase") {
        told.push(format!("the phase is {}", shown("/status/phase")));
    }
    if kind == "PersistentVolumeClaim" && differs("/spec/resources/requests/storage") {
        told.push(format!(
            "{kind} {name} asks for {}",
            shown("/spec/resources/requests/storage")
        ));
    }
    told
}

/// Compares a transcript with the one that is kept; with `UPDATE=1` keeps it instead.
fn compare(name: &str, transcript: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/simulated/golden/{name}.txt"));
    if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
        std::fs::write(&path, transcript).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = kept.lines().zip(transcript.lines()).position(|(kept, now)| kept != now);
    let line = differs.unwrap_or(kept.lines().count().min(transcript.lines().count()));
    let at = |text: &str| text.lines().nth(line).unwrap_or("(nothing)").to_owned();
    assert!(
        kept == transcript,
        "golden/{name}.txt, line {}:\n  kept {}\n  now  {}\nif that is right: UPDATE=1 cargo test -p operator --test simulated scenarios\n{transcript}",
        line + 1,
        at(&kept),
        at(transcript)
    );
}
