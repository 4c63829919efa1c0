//! Watching the files of the Secrets: the kubelet replaces them while the agent runs.

use std::path::PathBuf;
use std::time::Duration;

use crate::stamp::stamp;

/// A Secret whose files have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secret {
    /// The cluster's certificate, its key, or its authority.
    Certificate,
    /// The application's password. This is also reported when the file is read first.
    Password,
}

/// The pause between two readings. The kubelet itself takes up to a minute to write a changed Secret.
const PAUSE: Duration = Duration::from_secs(10);
/// The files of the cluster's certificate.
const CERTIFICATE: [&str; 3] = ["tls.crt", "tls.key", "ca.crt"];

/// Reads the files' versions for ever, and calls `tell` with the Secret that has changed.
pub async fn watch_secrets(tls: PathBuf, password: PathBuf, tell: impl Fn(Secret)) {
    let (mut certificate_before, mut password_before) = (None, None);
    loop {
        let (directory, file) = (tls.clone(), password.clone());
        let looked = tokio::task::spawn_blocking(move || {
            let certificate = CERTIFICATE.map(|name| stamp(&directory.join(name)));
            (certificate, stamp(&file))
        });
        if let Ok((certificate, password)) = looked.await {
            // While the kubelet replaces the files, some may be missing.
            if certificate.iter().all(Option::is_some) && certificate_before.replace(certificate) != Some(certificate) {
                tell(Secret::Certificate);
            }
            if password.is_some() && password_before.replace(password) != Some(password) {
                tell(Secret::Password);
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
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
            // In this test the clock moves only with sleeps: this sleep lets the readings go on.
            tokio::time::sleep(Duration::from_millis(100)).await;
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_change_is_reported_once() {
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
