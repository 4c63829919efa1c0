//! Debian's packages that the tasks need.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use suites::shell::step;

/// PostgreSQL's programs: the newest of Debian's versions.
pub fn postgres_programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let majors = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u16>().ok());
    let folders = majors.map(|major| (major, PathBuf::from(format!("/usr/lib/postgresql/{major}/bin"))));
    let complete = folders.filter(|(_, folder)| folder.join("initdb").exists());
    complete.max().map(|(_, folder)| folder)
}

/// Whether a program is installed where Debian's packages put it.
pub fn has_program(name: &str) -> bool {
    let mut folders = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].iter();
    folders.any(|folder| Path::new(folder).join(name).exists())
}

/// Installs what is missing of `wanted`, each a package and whether it is there. `needs` says for whom, and what else to do.
///
/// # Errors
/// When there is no `apt-get`, or it fails.
pub fn install(wanted: &[(bool, &str)], needs: &str) -> Result<()> {
    let missing = wanted.iter().filter(|(have, _)| !have);
    let missing: Vec<&str> = missing.map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !Path::new("/usr/bin/apt-get").exists() {
        bail!("{needs}; there is no apt-get to install {}", missing.join(", "));
    }
    step(
        "updating the package lists",
        Command::new("apt-get").args(["update", "--quiet"]),
    )?;
    // Debian would start a cluster of its own on port 5432; the tests make theirs.
    let directory = Path::new("/etc/postgresql-common");
    fs::create_dir_all(directory).context("make /etc/postgresql-common")?;
    let settings = directory.join("createcluster.conf");
    if !settings.exists() {
        fs::write(&settings, "create_main_cluster = false\nstart_conf = 'manual'\n")
            .context("write createcluster.conf")?;
    }
    step(
        &format!("installing {}", missing.join(", ")),
        Command::new("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["install", "--yes", "--quiet", "--no-install-recommends"])
            .args(missing),
    )
}
