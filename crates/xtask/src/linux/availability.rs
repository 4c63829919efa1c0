//! `cargo xtask availability`: how long writes stop when something happens, and whether anything acknowledged is lost.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use api::ClusteredDatabase;
use api::names::{CONTAINER, LABEL_CLUSTER, Names};
use clap::Args;
use e2e::availability::run::{Done, Plan, check, forget, run as make_run};
use e2e::availability::scenario::{self, Fault, Heal, Needs, Scenario};
use e2e::availability::subject::Subject;
use e2e::availability::svg;
use e2e::availability::table::Results;
use e2e::install::NAMESPACE as OPERATOR_NAMESPACE;
use e2e::{Images, Namespace};
use kube::api::DeleteParams;
use serde_json::{Value, json};
use suites::shell::repository;
use testbed::{Options, POOLER_IMAGE, POSTGRES_IMAGE, Testbed};

use super::{demo, image};

/// Bound of a creation or deletion.
const BOUND: Duration = Duration::from_secs(240);
/// StorageClass of the testbed whose volumes have file systems of their own.
const LOOP_CLASS: &str = "loop";
/// Selects our operator's pods.
const OPERATOR_SELECTOR: &str = "app.kubernetes.io/name=clustereddatabase-operator";

/// Measures outages of writes.
///
/// Without --service it brings up the local testbed, installs this operator, and measures a database of its own. With
/// --service it measures any PostgreSQL behind that Service: on the cluster of --context, or on the local testbed.
#[derive(Debug, Args)]
pub struct Arguments {
    /// A scenario, or several; all that can be run here but `load`, if absent. See --list.
    #[arg(long, value_name = "NAME")]
    scenario: Vec<String>,
    /// How long `--scenario load` keeps every CPU busy.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=180))]
    minutes: u64,
    /// Only print the scenarios, and what they need.
    #[arg(long)]
    list: bool,
    /// Runs of each scenario: 10, but of `load` one.
    #[arg(long)]
    runs: Option<usize>,
    /// Kill the operator's pods at the moment of each fault.
    #[arg(long)]
    operator_killed: bool,
    /// Seconds within which writes must be back; then the fault is undone.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    bound: u64,
    /// Where the table, the JSON, the pictures and the raw notes go.
    #[arg(long, default_value = "target/availability")]
    out: PathBuf,
    /// Instances of the database.
    #[arg(long, default_value_t = 3)]
    replicas: i32,
    /// Failover times of the database that is made (`failover.profile`).
    #[arg(long, conflicts_with = "service", value_parser = ["standard", "fast"])]
    profile: Option<String>,
    /// Whether a primary that is cut off may answer reads in the database that is made (`failover.staleReads`).
    #[arg(long, conflicts_with = "service", value_parser = ["allow", "forbid"])]
    stale_reads: Option<String>,
    /// A JSON merge patch for the spec of the database that is made, such as '{"durability":{"mode":"Async"}}'.
    #[arg(long, value_name = "JSON", conflicts_with = "service")]
    spec: Option<String>,
    /// The namespace; it is made anew unless --service is given.
    #[arg(long, default_value = "cdb-availability")]
    namespace: String,
    /// Image of the writer (`images/writer`), which the cluster has or can pull; built from the working tree and loaded into
    /// the testbed if absent.
    #[arg(long)]
    image: Option<String>,
    /// Image of the operator to install into the testbed; built from the working tree if absent.
    #[arg(long, conflicts_with_all = ["context", "service"])]
    operator_image: Option<String>,
    #[command(flatten)]
    other: Other,
}

/// Any PostgreSQL behind a Service.
#[derive(Debug, Args)]
struct Other {
    /// Context of your kubeconfig; the local testbed if absent.
    #[arg(long, requires_all = ["service", "image"])]
    context: Option<String>,
    /// The Service through which one writes.
    #[arg(long, requires_all = ["secret", "selector"])]
    service: Option<String>,
    /// Secret with the keys username (or user), password, and dbname (or database).
    #[arg(long, requires = "service")]
    secret: Option<String>,
    /// The database's name, if the Secret does not hold it.
    #[arg(long, requires = "service")]
    database: Option<String>,
    /// Label selector of the database's pods.
    #[arg(long, requires = "service")]
    selector: Option<String>,
    /// PostgreSQL's container in the pods.
    #[arg(long, requires = "service", default_value = CONTAINER)]
    container: String,
    /// A command that brings the fault about, run by `sh -c` with NAMESPACE, PRIMARY, PRIMARY_NODE, STANDBY and
    /// STANDBY_NODE in its environment; it is a scenario of its own, named by --inject-name.
    #[arg(long, value_name = "COMMAND")]
    inject: Option<String>,
    /// Name of the --inject scenario in the table.
    #[arg(long, value_name = "NAME", default_value = "command", requires = "inject")]
    inject_name: String,
    /// A command that undoes --inject, run when writes are back or --bound is over.
    #[arg(long, value_name = "COMMAND", requires = "inject")]
    heal: Option<String>,
    /// Watch for at least this many seconds after --inject: longer than it takes to show its effect.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, requires = "inject")]
    observe: u64,
    /// Namespace of the operator's pods, for --operator-killed.
    #[arg(long, requires = "operator_selector")]
    operator_namespace: Option<String>,
    /// Label selector of the operator's pods.
    #[arg(long, requires = "operator_namespace")]
    operator_selector: Option<String>,
}

/// Runs the measurements, and prints and writes their results.
///
/// # Errors
/// When a run cannot be made, or one shows a lost row, an unexplained row, or two servers that acknowledge at once.
pub async fn run(arguments: Arguments) -> Result<()> {
    if arguments.list {
        for scenario in arguments.known() {
            println!("{:20} needs {:?}", scenario.name, scenario.fault.needs());
        }
        return Ok(());
    }
    arguments.check()?;
    let bench = Bench::prepare(arguments).await?;
    let scenarios = bench.scenarios()?;
    std::fs::create_dir_all(&bench.arguments.out).context("make the results' folder")?;
    let mut results = Results {
        subject: bench.name(),
        ..Results::default()
    };
    let (disk, rest): (Vec<Scenario>, Vec<Scenario>) = scenarios
        .into_iter()
        .partition(|scenario| scenario.fault.needs() == Needs::TestbedWithLoopVolumes);
    let mut failures = Vec::new();
    for (class, group) in [(None, rest), (Some(LOOP_CLASS), disk)] {
        if group.is_empty() {
            continue;
        }
        let subject = bench.subject(class).await?;
        for scenario in group {
            failures.extend(bench.measure(&subject, &scenario, &mut results).await?);
        }
        bench.remove(&subject).await?;
    }
    println!("\n{}", page(&results));
    for failure in &failures {
        println!("not measured: {failure}");
    }
    println!("written to {}", bench.arguments.out.display());
    ensure!(results.is_safe(), "a run showed what must never happen: see the table");
    ensure!(failures.is_empty(), "{} runs could not be made", failures.len());
    Ok(())
}

impl Arguments {
    /// All scenarios that have a name.
    fn known(&self) -> Vec<Scenario> {
        let mut known = scenario::all();
        known.push(scenario::load(Duration::from_secs(60 * self.minutes)));
        known
    }

    /// Refuses what cannot be measured, before anything is built.
    fn check(&self) -> Result<()> {
        let known = self.known();
        if let Some(name) = self.scenario.iter().find(|name| known.iter().all(|k| k.name != **name)) {
            bail!("there is no scenario {name:?}; --list shows them");
        }
        let load = known
            .iter()
            .any(|k| k.fault == Fault::Load && self.scenario.contains(&k.name));
        ensure!(
            !load || self.other.service.is_none(),
            "`load` measures a database of this operator on the local testbed, without --context and --service: the use of \
             the CPUs is read in /proc/stat of this machine, and failovers are counted by the database's Lease"
        );
        Ok(())
    }

    fn runs_of(&self, scenario: &Scenario) -> usize {
        self.runs.unwrap_or(if scenario.fault == Fault::Load { 1 } else { 10 })
    }

    /// What `--profile` and `--stale-reads` ask of `spec.failover`.
    fn failover(&self) -> Vec<(&'static str, String)> {
        let asked = [("profile", &self.profile), ("staleReads", &self.stale_reads)];
        let asked = asked
            .into_iter()
            .filter_map(|(field, value)| Some((field, value.as_ref()?)));
        asked.map(|(field, value)| (field, capitalized(value))).collect()
    }

    /// A database of ours in the table: what was asked for, as far as it differs from the default.
    fn own_name(&self) -> String {
        let mut name = format!("this operator, {} instances", self.replicas);
        for (field, value) in self.failover() {
            name.push_str(&format!(", {field} {value}"));
        }
        if let Some(patch) = &self.spec {
            name.push_str(&format!(", {patch}"));
        }
        name
    }

    /// The spec of a database of ours, on volumes of `class`.
    fn spec(&self, class: Option<&str>) -> Result<Value> {
        let mut spec = demo::small(self.replicas);
        // Another request is set in the running pods; the first one needs new pods (another class of service).
        merge(&mut spec, &json!({"resources": {"requests": {"cpu": "100m"}}}));
        if let Some(class) = class {
            merge(&mut spec, &json!({"storage": {"data": {"storageClassName": class}}}));
        }
        for (field, value) in self.failover() {
            merge(&mut spec, &json!({"failover": {field: value}}));
        }
        if let Some(patch) = &self.spec {
            merge(&mut spec, &serde_json::from_str(patch).context("read --spec")?);
        }
        Ok(spec)
    }
}

/// As enums are written in a spec.
fn capitalized(word: &str) -> String {
    let (first, rest) = word.split_at(word.len().min(1));
    first.to_uppercase() + rest
}

/// What all runs share.
struct Bench {
    arguments: Arguments,
    namespace: Namespace,
    testbed: Option<Arc<Testbed>>,
    image: String,
}

impl Bench {
    async fn prepare(arguments: Arguments) -> Result<Self> {
        if let Some(context) = &arguments.other.context {
            let client = e2e::connect(None, Some(context)).await?;
            return Ok(Self {
                namespace: Namespace {
                    client,
                    name: arguments.namespace.clone(),
                },
                testbed: None,
                image: arguments.image.clone().context("--context needs --image")?,
                arguments,
            });
        }
        let (testbed, _) = Testbed::up(Options::from_env()?).await?;
        let given = [arguments.operator_image.as_ref(), arguments.image.as_ref()];
        let [operator, image] = image::given_or_built(&testbed, given).await?;
        let client = e2e::connect(Some(testbed.kubeconfig_path()), None).await?;
        let namespace = if arguments.other.service.is_some() {
            Namespace {
                client,
                name: arguments.namespace.clone(),
            }
        } else {
            let images = Images {
                operator,
                postgres: POSTGRES_IMAGE.to_owned(),
                pooler: POOLER_IMAGE.to_owned(),
            };
            e2e::install::install(&client, &repository()?, &images).await?;
            Namespace::fresh(client, &arguments.namespace).await?
        };
        Ok(Self {
            arguments,
            namespace,
            testbed: Some(Arc::new(testbed)),
            image,
        })
    }

    fn name(&self) -> String {
        match &self.arguments.other.service {
            Some(service) => format!("Service {service}"),
            None => self.arguments.own_name(),
        }
    }

    /// The scenarios that were asked for; without any, all that can be run here.
    fn scenarios(&self) -> Result<Vec<Scenario>> {
        let mut known = self.arguments.known();
        let (wanted, other) = (&self.arguments.scenario, &self.arguments.other);
        let own = other.service.is_none();
        let possible = |scenario: &Scenario| match scenario.fault.needs() {
            Needs::Nothing => true,
            Needs::Testbed => self.testbed.is_some(),
            // Another operator's volumes are what they are: ask for it by name.
            Needs::TestbedWithLoopVolumes => own && self.testbed.is_some(),
            Needs::Own => own,
            Needs::OwnOnTestbed => own && self.testbed.is_some(),
        };
        if wanted.is_empty() {
            known.retain(|scenario| other.inject.is_none() && scenario.fault != Fault::Load && possible(scenario));
        } else {
            known.retain(|scenario| wanted.contains(&scenario.name));
        }
        if let Some(inject) = &other.inject {
            known.push(Scenario {
                name: other.inject_name.clone(),
                fault: Fault::Command {
                    inject: inject.clone(),
                    heal: other.heal.clone(),
                },
                heal: other.heal.as_ref().map_or(Heal::Nothing, |_| Heal::WhenBack),
                observe: Duration::from_secs(other.observe),
            });
        }
        Ok(known)
    }

    /// The database that is measured; ours is made, on volumes of `class`.
    async fn subject(&self, class: Option<&str>) -> Result<Subject> {
        let other = &self.arguments.other;
        let replicas = usize::try_from(self.arguments.replicas).context("read --replicas")?;
        if let (Some(service), Some(secret), Some(selector)) = (&other.service, &other.secret, &other.selector) {
            let operator = other.operator_namespace.clone().zip(other.operator_selector.clone());
            return Ok(Subject {
                namespace: self.namespace.clone(),
                service: service.clone(),
                secret: secret.clone(),
                database: other.database.clone(),
                selector: selector.clone(),
                container: other.container.clone(),
                replicas,
                own: None,
                operator,
                testbed: self.testbed.clone(),
            });
        }
        let name = class.unwrap_or("db");
        let names = Names::new(name);
        println!("==> making a database of {replicas} instances");
        self.namespace.create(name, self.arguments.spec(class)?).await?;
        self.namespace.wait_ready(name, BOUND).await?;
        Ok(Subject {
            namespace: self.namespace.clone(),
            service: names.rw(),
            secret: names.app_secret(),
            database: None,
            selector: format!("{LABEL_CLUSTER}={name}"),
            container: CONTAINER.to_owned(),
            replicas,
            own: Some(name.to_owned()),
            operator: Some((OPERATOR_NAMESPACE.to_owned(), OPERATOR_SELECTOR.to_owned())),
            testbed: self.testbed.clone(),
        })
    }

    /// All runs of a scenario. Returns those that could not be made, with the reason.
    async fn measure(&self, subject: &Subject, scenario: &Scenario, results: &mut Results) -> Result<Vec<String>> {
        check(subject, scenario)?;
        let mut failures = Vec::new();
        let runs = self.arguments.runs_of(scenario);
        for number in 1..=runs {
            let plan = Plan {
                scenario: scenario.clone(),
                number,
                operator_killed: self.arguments.operator_killed,
                image: self.image.clone(),
                bound: Duration::from_secs(self.arguments.bound),
            };
            println!("==> {} {number}/{runs}", scenario.name);
            match make_run(subject, &plan).await {
                Ok(done) => {
                    tell(&done);
                    self.write(&done)?;
                    results.runs.push(done.run.clone());
                    self.write_results(results)?;
                    if number < runs {
                        forget(subject, scenario, &done.run).await?;
                    }
                }
                Err(error) => {
                    println!("    could not be made: {error:#}");
                    failures.push(format!("{} {number}: {error:#}", scenario.name));
                    // The next one would fail alike; other scenarios may not.
                    break;
                }
            }
        }
        Ok(failures)
    }

    fn write(&self, done: &Done) -> Result<()> {
        let run = &done.run;
        let killed = if run.operator_killed { "-operator-killed" } else { "" };
        let base = format!("{}{killed}-{}", run.scenario, run.run);
        let picture = svg::draw(&format!("{base}: {}", self.name()), &done.history, done.injected);
        let rows: Vec<String> = done.rows.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
        let figures = serde_json::to_string_pretty(run).context("write a run's figures")?;
        put(&self.arguments.out.join(format!("{base}.json")), &figures)?;
        put(&self.arguments.out.join(format!("{base}.svg")), &picture)?;
        put(&self.arguments.out.join(format!("{base}.jsonl")), &done.notes)?;
        put(&self.arguments.out.join(format!("{base}.rows.jsonl")), &rows.join("\n"))
    }

    /// After every run, so that a broken-off benchmark has its results.
    fn write_results(&self, results: &Results) -> Result<()> {
        let json = serde_json::to_string_pretty(results).context("write the results")?;
        put(&self.arguments.out.join("results.json"), &json)?;
        put(&self.arguments.out.join("results.md"), &page(results))
    }

    /// Removes a database that we made.
    async fn remove(&self, subject: &Subject) -> Result<()> {
        if let Some(name) = &subject.own {
            let databases = self.namespace.api::<ClusteredDatabase>();
            databases.delete(name, &DeleteParams::default()).await?;
            self.namespace.wait_gone(name, BOUND).await?;
        }
        Ok(())
    }
}

/// What is printed, and written beside the figures.
fn page(results: &Results) -> String {
    let (table, loads) = (results.table(), results.loads());
    let gap = if loads.is_empty() { "" } else { "\n" };
    format!("{}:\n\n{table}{gap}{loads}", results.subject)
}

fn put(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

/// RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in changes {
        if value.is_null() {
            if let Some(object) = target.as_object_mut() {
                object.remove(key);
            }
        } else {
            merge(&mut target[key], value);
        }
    }
}

/// One line about a run.
fn tell(done: &Done) {
    let (run, report) = (&done.run, &done.run.report);
    let seconds = |millis: f64| format!("{:.2} s", millis / 1_000.0);
    let optional = |millis: Option<f64>| millis.map_or("-".to_owned(), seconds);
    let stages = &report.stages;
    println!(
        "    outage {}{}, gaps above 0.1 s {} in {}; stopped {}, elected {}, promoted {}, routed {}, reconnected {}",
        seconds(report.outage),
        if report.outage_open { " (did not end)" } else { "" },
        report.gaps,
        seconds(report.gaps_sum),
        optional(stages.stopped),
        optional(stages.elected),
        optional(stages.promoted),
        optional(stages.routed),
        optional(stages.reconnected),
    );
    let agents = &report.agents;
    println!(
        "    by the agents: detected {}, fenced {}, elected {}, promoted {}, routed {}, opened {}",
        optional(agents.detected),
        optional(agents.fenced),
        optional(agents.elected),
        optional(agents.promoted),
        optional(agents.routed),
        optional(agents.opened),
    );
    println!(
        "    {} -> {}; old primary streams {}, held session ended {}, as before {}; lost {}, ghosts {}, unexplained {}, overlap {}",
        report.primary,
        report.primary_after,
        optional(report.old_primary_streaming()),
        optional(report.held_until),
        optional(run.ready),
        report.lost.count,
        report.ghosts.count,
        report.unexplained.count,
        report
            .overlap
            .as_ref()
            .map_or("none".to_owned(), |overlap| seconds(overlap.milliseconds)),
    );
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn arguments(line: &str) -> Result<Arguments, clap::Error> {
        Line::try_parse_from(format!("availability {line}").split_whitespace()).map(|line| line.arguments)
    }

    #[test]
    fn profile_and_reads_are_in_the_spec_and_in_the_name() {
        let arguments = arguments("--profile fast --stale-reads forbid").unwrap();
        let spec = arguments.spec(Some("loop")).unwrap();
        assert_eq!(spec["failover"], json!({"profile": "Fast", "staleReads": "Forbid"}));
        assert_eq!(spec["storage"]["data"]["storageClassName"], "loop");
        let spec: api::spec::ClusteredDatabaseSpec = serde_json::from_value(spec).unwrap();
        assert_eq!(spec.failover.profile, api::spec::FailoverProfile::Fast);
        assert_eq!(
            arguments.own_name(),
            "this operator, 3 instances, profile Fast, staleReads Forbid"
        );
    }

    #[test]
    fn another_profile_or_one_for_another_operator_is_refused() {
        assert!(arguments("--profile quick").is_err());
        assert!(arguments("--service db --secret s --selector a=b --image i --stale-reads forbid").is_err());
        assert!(arguments("--service db --secret s --selector a=b --image i").is_ok());
        assert_eq!(arguments("").unwrap().spec(None).unwrap().get("failover"), None);
    }

    #[test]
    fn a_load_is_asked_for_by_name_and_measured_where_its_figures_can_be_had() {
        let long = arguments("--scenario load --minutes 90").unwrap();
        long.check().unwrap();
        let load = long.known().pop().unwrap();
        assert_eq!((load.observe, long.runs_of(&load)), (Duration::from_secs(5_400), 1));
        assert_eq!(long.runs_of(&scenario::all()[0]), 10);
        for line in ["--minutes 0", "--minutes 181", "--minutes -1"] {
            assert!(arguments(&format!("--scenario load {line}")).is_err(), "{line}");
        }
        let other = "--service db --secret s --selector a=b --image i";
        for line in [other, &format!("{other} --context c")] {
            let refused = arguments(&format!("{line} --scenario load")).unwrap().check();
            assert!(refused.unwrap_err().to_string().contains("/proc/stat"), "{line}");
            arguments(line).unwrap().check().unwrap();
        }
        let unknown = arguments("--scenario node-cat").unwrap().check();
        assert!(unknown.unwrap_err().to_string().contains("node-cat"));
    }

    #[test]
    fn a_patch_is_merged_into_the_spec() {
        let mut spec = json!({"replicas": 3, "storage": {"data": {"size": "1Gi"}}});
        merge(
            &mut spec,
            &json!({"storage": {"data": {"storageClassName": "loop"}}, "replicas": null, "failover": {"profile": "Fast"}}),
        );
        let wanted =
            json!({"storage": {"data": {"size": "1Gi", "storageClassName": "loop"}}, "failover": {"profile": "Fast"}});
        assert_eq!(spec, wanted);
    }
}
