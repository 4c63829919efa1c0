//! The pod's volume, through which the program and the commands beside it communicate.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Where the volume is mounted.
const FOLDER: &str = "/data";
/// How much is returned at once: it passes through the API server, within the time of one command.
const PART: u64 = 4 << 20;

/// The notes.
pub fn history_path() -> PathBuf {
    Path::new(FOLDER).join("history.jsonl")
}

/// The notes from a byte on, without an unfinished line; at most [`PART`] of them.
pub fn history(from: u64) -> Result<String> {
    let mut file = fs::File::open(history_path()).context("open the notes")?;
    file.seek(SeekFrom::Start(from)).context("seek in the notes")?;
    let mut bytes = Vec::new();
    file.take(PART).read_to_end(&mut bytes).context("read the notes")?;
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    bytes.truncate(whole);
    String::from_utf8(bytes).context("read the notes as text")
}

/// Stores which pods to write to, as `POD=ADDRESS`.
pub fn write_targets(targets: &[&str]) -> Result<()> {
    for target in targets {
        parse(target).with_context(|| format!("{target:?} is not POD=ADDRESS"))?;
    }
    replace("targets", &targets.join("\n"))
}

/// The pods to write to; none before the first [`write_targets`].
pub fn targets() -> Vec<(String, IpAddr)> {
    let text = fs::read_to_string(Path::new(FOLDER).join("targets")).unwrap_or_default();
    text.lines().filter_map(parse).collect()
}

fn parse(line: &str) -> Option<(String, IpAddr)> {
    let (pod, address) = line.split_once('=')?;
    let named = !pod.is_empty() && pod.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b));
    Some((pod.to_owned(), address.parse().ok()?)).filter(|_| named)
}

/// The present state, as JSON.
pub fn status() -> Result<String> {
    fs::read_to_string(Path::new(FOLDER).join("status.json")).context("read the status")
}

/// Sets the content of [`status`].
pub fn write_status(text: &str) -> Result<()> {
    replace("status.json", text)
}

/// Ends the writing.
pub fn stop() -> Result<()> {
    replace("stop", "")
}

/// True if the writing should end.
pub fn is_stopped() -> bool {
    Path::new(FOLDER).join("stop").exists()
}

fn replace(name: &str, text: &str) -> Result<()> {
    let path = Path::new(FOLDER).join(name);
    let new = path.with_extension("new");
    fs::write(&new, text).with_context(|| format!("write {}", new.display()))?;
    fs::rename(&new, &path).with_context(|| format!("rename to {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_a_name_and_an_address() {
        assert_eq!(
            parse("db-0=10.0.0.1"),
            Some(("db-0".to_owned(), "10.0.0.1".parse().unwrap()))
        );
        for wrong in ["db-0", "=10.0.0.1", "db-0=host", "d'b=10.0.0.1"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
