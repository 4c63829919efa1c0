//! Clients of pgbench that write all the time, in the pod of a [`SqlClient`], and what they feel.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::SqlClient;
use crate::wait::{Seen, until};

/// Bound for the first rows.
const BOUND: Duration = Duration::from_secs(120);

/// Clients that write into the table `load` until they are told to end.
pub struct Load<'a> {
    sql: &'a SqlClient,
}

/// What the clients have felt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Felt {
    /// Transactions that have ended well.
    pub transactions: usize,
    /// Clients that were cut off. Each ends, and is there again in the next run of pgbench.
    pub cut_off: usize,
    /// Runs of pgbench that could not begin, because a client could not connect.
    pub refused: usize,
    /// The longest transaction.
    pub longest: Duration,
    /// The longest time in which no transaction ended.
    pub gap: Duration,
}

impl std::fmt::Display for Felt {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            transactions,
            cut_off,
            refused,
            longest,
            gap,
        } = self;
        let (longest, gap) = (longest.as_secs_f64(), gap.as_secs_f64());
        write!(
            out,
            "{transactions} transactions, {cut_off} clients cut off, {refused} times refused, none ended for {gap:.2} s, the longest took {longest:.2} s"
        )
    }
}

impl<'a> Load<'a> {
    /// So many clients, each of which inserts a row and waits for `pause`. They connect again every five seconds. Returns when they
    /// write.
    ///
    /// # Errors
    /// When they do not write in time.
    pub async fn begin(sql: &'a SqlClient, uri: &str, clients: u32, pause: Duration) -> Result<Self> {
        sql.sql("CREATE TABLE IF NOT EXISTS load (n int)").await?;
        let script = r#"rm -rf /tmp/load; mkdir /tmp/load; cd /tmp/load
            printf "\\\\sleep $3 ms\nINSERT INTO load VALUES (1);\n" > write.sql
            (n=0; while [ ! -e stop ]; do n=$((n+1))
                pgbench -n -c "$2" -j 2 -T 5 -l --log-prefix=log.$n -f write.sql "$1" > out.$n 2>&1
            done; touch done) > /dev/null 2>&1 < /dev/null &"#;
        let pause = pause.as_millis().to_string();
        sql.run(&["sh", "-c", script, "sh", uri, &clients.to_string(), &pause])
            .await?;
        until("rows to be written", BOUND, || async {
            let script = "cat /tmp/load/log.* 2>/dev/null | wc -l; cat /tmp/load/out.* 2>/dev/null | tail -n 3";
            let said = sql.run(&["sh", "-c", script]).await?;
            Ok(match said.starts_with("0\n") || said == "0" {
                true => Seen::NotYet(said),
                false => Seen::Yes(()),
            })
        })
        .await?;
        Ok(Self { sql })
    }

    /// Ends them, and tells what they have felt.
    ///
    /// # Errors
    /// When pgbench cannot be understood.
    pub async fn end(self) -> Result<Felt> {
        // Without `--max-tries` none is tried again. A client that loses its connection is aborted, and if one cannot connect, pgbench
        // says nothing of the others.
        let script = r#"cd /tmp/load; touch stop; while [ ! -e done ]; do sleep 0.1; done
            cat out.* | grep -c aborted; grep -L 'number of clients' out.* | wc -l
            cat out.* | grep 'number of failed transactions' | grep -vc ' 0 '
            cat out.* | grep -m 1 -E 'aborted|error'; true"#;
        let said = self.sql.run(&["sh", "-c", script]).await?;
        let mut lines = said.lines();
        let mut number = || -> Result<usize> { lines.next().unwrap_or_default().trim().parse().context(said.clone()) };
        let (cut_off, refused, failed) = (number()?, number()?, number()?);
        ensure!(failed == 0, "transactions failed: {said}");
        if let Some(why) = lines.next() {
            println!("    {why}");
        }
        // The third column of pgbench's log is the time of a transaction in microseconds; the fifth and sixth are its end. Between two runs
        // nobody is connected.
        let script = r#"cd /tmp/load; cat log.* | awk '$3 > m { m = $3 } END { print NR, m }'
            for out in out.*; do
                cat log.${out#out.}.* | awk '{ printf "%d.%06d\n", $5, $6 }' | sort -n |
                    awk 'NR > 1 && $1 - p > m { m = $1 - p } { p = $1 } END { printf "%.6f\n", m }'
            done 2>/dev/null | sort -n | tail -n 1"#;
        let said = self.sql.run(&["sh", "-c", script]).await?;
        let numbers: Vec<&str> = said.split_whitespace().collect();
        let [transactions, longest, gap] = numbers[..] else {
            anyhow::bail!("three numbers: {said}");
        };
        Ok(Felt {
            transactions: transactions.parse()?,
            cut_off,
            refused,
            longest: Duration::from_micros(longest.parse()?),
            gap: Duration::from_secs_f64(gap.parse()?),
        })
    }
}
