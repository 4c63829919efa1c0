//! The documentation's page on this machine, made from its tables.

use std::fmt::Write;

use super::decision::Step;
use super::{RULES, TRANSITIONS, wait_limit};

/// `docs/state-machine.md`.
pub fn state_machine_page() -> String {
    let mut page = String::from(
        "# The cluster machine\n\n\
         Generated from crates/machine/src/cluster; `UPDATE=1 cargo test -p machine --test page` writes it again.\n\n\
         ## Phases\n\n\
         The operator never leaves this table. A resource whose status was wiped enters where it stands.\n\n\
         ```mermaid\nstateDiagram-v2\n    [*] --> Creating\n    [*] --> Restoring\n",
    );
    // Writing to a String cannot fail.
    for (from, next) in TRANSITIONS {
        for to in next {
            let _ = writeln!(page, "    {from} --> {to}");
        }
        if next.is_empty() {
            let _ = writeln!(page, "    {from} --> [*]");
        }
    }
    page.push_str(
        "```\n\n## Rules\n\n\
         Tried in this order at every decision; the first that proposes something decides.\n\
         A rule that explains only says what is waited for, and who can end that. While an action backs off after\n\
         a failure, the rules behind it go on if its rule yields, and wait for it if its rule holds. \"Protocol\" names\n\
         the rules of the [failover protocol](protocol.md) that a rule carries out.\n\n\
         | # | rule | family | kind | on back-off | protocol | what |\n|---|---|---|---|---|---|---|\n",
    );
    for (number, rule) in RULES.iter().enumerate() {
        let protocol: Vec<_> = rule.protocol.iter().map(u8::to_string).collect();
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} | {} | {} |",
            number + 1,
            rule.name,
            rule.family,
            rule.kind.as_str(),
            rule.on_backoff.as_str(),
            protocol.join(", "),
            rule.what.replace("\n- ", "<br>– ")
        );
    }
    page.push_str(
        "\n## Rules of operations\n\n\
         For each ClusteredDatabaseOperation, tried in this order. An operation does nothing to the cluster:\n\
         the cluster's rule `request` reads what is asked for.\n\n| # | rule | what |\n|---|---|---|\n",
    );
    for (number, rule) in crate::operation::RULES.iter().enumerate() {
        let _ = writeln!(page, "| {} | {} | {} |", number + 1, rule.name, rule.what);
    }
    page.push_str(
        "\n## Rules of backups\n\n\
         For each DatabaseBackup, tried in this order. A backup does nothing to the cluster: its UID stands in\n\
         `status.intent.backup`, and the primary's agent takes it.\n\n| # | rule | what |\n|---|---|---|\n",
    );
    for (number, rule) in crate::backup::RULES.iter().enumerate() {
        let _ = writeln!(page, "| {} | {} | {} |", number + 1, rule.name, rule.what);
    }
    page.push_str(
        "\n## Rules of users\n\n\
         For each DatabaseUser, tried in this order. The operator runs no SQL: the primary's agent does what the\n\
         Secret `NAME-access` declares.\n\n| # | rule | what |\n|---|---|---|\n",
    );
    for (number, rule) in crate::user::RULES.iter().enumerate() {
        let _ = writeln!(page, "| {} | {} | {} |", number + 1, rule.name, rule.what);
    }
    page.push_str(
        "\n## Rules of SQL databases\n\n\
         For each Database, tried in this order. The primary's agent does it, as for users.\n\n\
         | # | rule | what |\n|---|---|---|\n",
    );
    for (number, rule) in crate::database::RULES.iter().enumerate() {
        let _ = writeln!(page, "| {} | {} | {} |", number + 1, rule.name, rule.what);
    }
    page.push_str(
        "\n## Rules of poolers\n\n\
         For each Pooler, tried in this order. Its pods decide for themselves when PgBouncer reads its configuration again.\n\n\
         | # | rule | what |\n|---|---|---|\n",
    );
    for (number, rule) in crate::pooler::RULES.iter().enumerate() {
        let _ = writeln!(page, "| {} | {} | {} |", number + 1, rule.name, rule.what);
    }
    page.push_str(
        "\n## Deadlines\n\n\
         Every wait outside `Ready`, `Hibernated` and `Failed` has one, unless the user wants it so\n\
         (`status.waiting.deadlineTime`). Some end with something else being done. After the others the phase stays,\n\
         nothing is given up, and the condition `Progressing` is `False` with reason `DeadlineExceeded` until the\n\
         wait ends or changes.\n\n\
         | step | time for one wait |\n|---|---|\n",
    );
    for step in Step::ALL {
        let limit = if matches!(step, Step::Supervised | Step::Fenced | Step::Paused) {
            "as long as the user likes".to_owned()
        } else {
            format!("{} min", wait_limit(Some(step)).num_minutes())
        };
        let _ = writeln!(page, "| {} | {limit} |", step.as_str());
    }
    page
}
