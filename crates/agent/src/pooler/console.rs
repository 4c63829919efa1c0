//! What PgBouncer tells of its pools on its console, at the socket of each process.

use std::path::Path;
use std::time::{Duration, Instant};

use api::names::{POOLER_PORT, RUN_PATH};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_postgres::{NoTls, SimpleQueryMessage, SimpleQueryRow};

use super::Event;
use super::metrics::{self, Values};

/// Time limit of an answer.
const LIMIT: Duration = Duration::from_secs(1);

/// The pools of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pools {
    /// Clients.
    pub clients: u64,
    /// Connections to PostgreSQL.
    pub servers: u64,
    /// Those of them that log in.
    pub logins: u64,
    /// What scrapers are told.
    pub values: Values,
}

/// Columns of `SHOW POOLS` (<https://www.pgbouncer.org/usage.html>).
const CLIENTS: [&str; 2] = ["cl_active", "cl_waiting"];
const SERVERS: [&str; 7] = [
    "sv_active",
    "sv_active_cancel",
    "sv_being_canceled",
    "sv_idle",
    "sv_used",
    "sv_tested",
    "sv_login",
];

/// Asks each process again and again: `every` says after which time, and is looked at when it changes.
pub(super) async fn follow(processes: usize, mut every: watch::Receiver<Duration>, events: UnboundedSender<Event>) {
    loop {
        for number in 0..processes {
            let asked = Instant::now();
            let pools = timeout(LIMIT, pools(number)).await.ok().and_then(Result::ok);
            let pools = pools.map(|rows| read(&rows));
            if events.send(Event::Pools { number, asked, pools }).is_err() {
                return;
            }
        }
        let wait = *every.borrow_and_update();
        if let Ok(Err(_)) = timeout(wait, every.changed()).await {
            return;
        }
    }
}

async fn pools(number: usize) -> Result<Vec<SimpleQueryRow>, tokio_postgres::Error> {
    let mut config = tokio_postgres::Config::new();
    config
        .host_path(Path::new(RUN_PATH).join((number + 1).to_string()))
        .port(POOLER_PORT)
        .user("pgbouncer")
        .dbname("pgbouncer");
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    let answer = client.simple_query("SHOW POOLS").await?;
    let rows = answer.into_iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    Ok(rows.collect())
}

fn read(rows: &[SimpleQueryRow]) -> Pools {
    let mut pools = Pools::default();
    for row in rows {
        let column = |name: &str| row.try_get(name).ok().flatten();
        let number = |name: &str| column(name).and_then(|text| text.parse().ok()).unwrap_or(0);
        let (Some(database), Some(user)) = (column("database"), column("user")) else {
            continue;
        };
        metrics::add(&mut pools.values, database, user, number);
        // The console itself.
        if database != "pgbouncer" {
            pools.clients += CLIENTS.map(number).iter().sum::<u64>();
            pools.servers += SERVERS.map(number).iter().sum::<u64>();
            pools.logins += number("sv_login");
        }
    }
    pools
}
