//! `cargo xtask soak`: random faults, and clients whose histories are checked.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::names::{CONTAINER, LABEL_CLUSTER, Names};
use clap::Args;
use e2e::availability::pod::wall_clock;
use e2e::availability::subject::Subject;
use e2e::install::NAMESPACE as OPERATOR_NAMESPACE;
use e2e::soak::check::describe;
use e2e::soak::run::{Done, Plan, judge, run as make, spec, transactions};
use e2e::{Images, Namespace};
use suites::shell::repository;
use testbed::{Options, POOLER_IMAGE, POSTGRES_IMAGE, Testbed};

use super::image;

/// Bound of a creation.
const BOUND: Duration = Duration::from_secs(240);
/// StorageClass of the testbed whose volumes have file systems of their own.
const LOOP_CLASS: &str = "loop";
/// Selects our operator's pods.
const OPERATOR_SELECTOR: &str = "app.kubernetes.io/name=clustereddatabase-operator";
/// The clients' notes.
const HISTORY: &str = "history.jsonl";
/// The final lists.
const LISTS: &str = "lists.json";
/// The database's name.
const NAME: &str = "db";

/// Random faults for some time, while clients append numbers to lists and read them; then all answers to them are checked.
///
/// Without --context it brings up the local testbed and installs this operator, and all faults of the machine are drawn. With it,
/// the operator must be installed there, and the faults are those that can be made through the API server.
#[derive(Debug, Args)]
pub struct Arguments {
    /// After this no further fault begins.
    #[arg(long, default_value_t = 30)]
    minutes: u64,
    /// What all random choices follow from; another one each time, if absent. It is printed.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Context of your kubeconfig; the local testbed if absent.
    #[arg(long, requires = "image")]
    context: Option<String>,
    /// Image of the clients (`images/writer`), which the cluster has or can pull; built from the working tree and loaded into the
    /// testbed if absent.
    #[arg(long)]
    image: Option<String>,
    /// Image of the operator to install into the testbed; built from the working tree if absent.
    #[arg(long, conflicts_with = "context")]
    operator_image: Option<String>,
    /// The namespace; it is made anew.
    #[arg(long, default_value = "cdb-soak")]
    namespace: String,
    /// Where the summary, the clients' notes and the final lists go.
    #[arg(long, value_name = "DIR", default_value = "target/soak")]
    out: PathBuf,
    /// Only check what an earlier soak wrote to this folder.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["minutes", "seed", "context", "image", "operator_image", "namespace", "out"])]
    check: Option<PathBuf>,
}

/// Makes the soak, and prints and writes its results.
///
/// # Errors
/// When it cannot be made, the database does not come back by itself, or the history is none that may be.
pub async fn run(arguments: Arguments) -> Result<()> {
    if let Some(folder) = &arguments.check {
        return check(folder);
    }
    let seed = arguments.seed.unwrap_or_else(|| wall_clock() / 1_000_000);
    println!("==> a soak of {} minutes with --seed {seed}", arguments.minutes);
    let (subject, image) = prepare(&arguments).await?;
    let plan = Plan {
        seed,
        time: Duration::from_secs(arguments.minutes * 60),
        image,
        loop_volumes: subject.testbed.is_some(),
    };
    let done = make(&subject, &plan).await?;
    write(&arguments.out, &done)?;
    println!("\n{}\nwritten to {}", done.summary(), arguments.out.display());
    ensure!(done.is_good(), "--seed {seed} shows what must never happen: see above");
    // A database that did not pass stays, for inspection.
    subject.namespace.remove().await
}

fn check(folder: &Path) -> Result<()> {
    let read = |name: &str| {
        let path = folder.join(name);
        std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    };
    let transactions = transactions(&read(HISTORY)?)?;
    let lists = serde_json::from_str(&read(LISTS)?).context("read the lists")?;
    let findings = judge(&transactions, &lists);
    println!("{} transactions, {} findings", transactions.len(), findings.len());
    print!("{}", describe(&findings, &transactions, usize::MAX));
    ensure!(
        findings.is_empty(),
        "the history shows what must never happen: see above"
    );
    Ok(())
}

async fn prepare(arguments: &Arguments) -> Result<(Subject, String)> {
    let (client, testbed, image) = match (&arguments.context, &arguments.image) {
        (Some(context), image) => {
            let image = image.clone().context("--context needs --image")?;
            (e2e::connect(None, Some(context)).await?, None, image)
        }
        (None, image) => {
            let (testbed, _) = Testbed::up(Options::from_env()?).await?;
            let given = [arguments.operator_image.as_ref(), image.as_ref()];
            let [operator, image] = image::given_or_built(&testbed, given).await?;
            let client = e2e::connect(Some(testbed.kubeconfig_path()), None).await?;
            let images = Images {
                operator,
                postgres: POSTGRES_IMAGE.to_owned(),
                pooler: POOLER_IMAGE.to_owned(),
            };
            e2e::install::install(&client, &repository()?, &images).await?;
            (client, Some(Arc::new(testbed)), image)
        }
    };
    let namespace = Namespace::fresh(client, &arguments.namespace).await?;
    println!("==> making a database");
    let class = testbed.is_some().then_some(LOOP_CLASS);
    namespace.create(NAME, spec(class)).await?;
    namespace.wait_ready(NAME, BOUND).await?;
    let names = Names::new(NAME);
    let subject = Subject {
        namespace,
        service: names.rw(),
        secret: names.app_secret(),
        database: None,
        selector: format!("{LABEL_CLUSTER}={NAME}"),
        container: CONTAINER.to_owned(),
        replicas: 3,
        own: Some(NAME.to_owned()),
        operator: Some((OPERATOR_NAMESPACE.to_owned(), OPERATOR_SELECTOR.to_owned())),
        testbed,
    };
    Ok((subject, image))
}

fn write(folder: &Path, done: &Done) -> Result<()> {
    std::fs::create_dir_all(folder).context("make the results' folder")?;
    let put = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    };
    let lists = serde_json::to_string(&done.lists).context("write the lists")?;
    put("summary.txt", &done.summary())?;
    put(HISTORY, &done.notes)?;
    put(LISTS, &lists)
}
