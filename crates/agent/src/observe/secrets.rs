//! Following the files of the Secrets: the kubelet replaces them while the agent runs.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A Secret's files are not what they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secret {
    /// The cluster's certificate, its key, or its authority.
    Certificate,
    /// The application's password; also told when it is seen first.
    Password,
}

/// Distance between looks. The kubelet itself takes up to a minute to write a changed Secret.
const LOOK: Duration = Duration::from_secs(10);
/// The files of the cluster's certificate.
const CERTIFICATE: [&str; 3] = ["tls.crt", "tls.key", "ca.crt"];

/// Inode and time of the last change of a file; `None`: there is none.
type Stamp = Option<(u64, i64, i64)>;

/// Looks at the files for ever, and tells which have changed.
pub async fn watch_secrets(tls: PathBuf, password: PathBuf, tell: impl Fn(Secret)) {
    let (mut certificate_before, mut password_before) = (None, None);
    loop {
        let (directory, file) = (tls.clone(), password.clone());
        let looked = tokio::task::spawn_blocking(move || {
            let certificate = CERTIFICATE.map(|name| stamp(&directory.join(name)));
            (certificate, stamp(&file))
        });
        if let Ok((certificate, password)) = looked.await {
            // While the kubelet exchanges the files, some may be missing.
            if certificate.iter().all(Option::is_some) && certificate_before.replace(certificate) != Some(certificate) {
                tell(Secret::Certificate);
            }
            if password.is_some() && password_before.replace(password) != Some(password) {
                tell(Secret::Password);
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn stamp(path: &Path) -> Stamp {
    let file = std::fs::metadata(path).ok()?;
    Some((file.ino(), file.mtime(), file.mtime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    async fn until(told: &Mutex<Vec<Secret>>, count: usize) -> Vec<Secret> {
        loop {
            let now = told.lock().expect("unpoisoned").clone();
            if now.len() >= count {
                return now;
            }
            // Time stands still but for sleeps: this lets the looks go on.
            tokio::time::sleep(Duration::from_millis(100)).await;
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn changes_are_told_once() {
        let directory = std::env::temp_dir().join(format!("cdb-secrets-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let write = |name: &str| {
            // As the kubelet does: another file under the same name.
            std::fs::write(directory.join("new"), name).expect("written");
            std::fs::rename(directory.join("new"), directory.join(name)).expect("renamed");
        };
        CERTIFICATE.iter().for_each(|name| write(name));
        write("password");
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = Arc::clone(&told);
        let watching = tokio::spawn(watch_secrets(
            directory.clone(),
            directory.join("password"),
            move |secret| {
                tell.lock().expect("unpoisoned").push(secret);
            },
        ));
        assert_eq!(until(&told, 2).await, [Secret::Certificate, Secret::Password]);
        write("password");
        assert_eq!(until(&told, 3).await[2..], [Secret::Password]);
        std::fs::remove_file(directory.join("ca.crt")).expect("removed");
        write("password");
        assert_eq!(
            until(&told, 4).await[3..],
            [Secret::Password],
            "a missing file is no change"
        );
        write("ca.crt");
        assert_eq!(until(&told, 5).await[4..], [Secret::Certificate]);
        watching.abort();
        std::fs::remove_dir_all(directory).expect("removed");
    }
}
