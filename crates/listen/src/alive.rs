//! A sign of life over a Unix socket: for probes by `exec`, so that nobody on a network can have a container killed.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

/// What one that is alive answers.
const ALIVE: &str = "alive\n";
/// Longest wait for an answer; the kubelet's own limit is shorter.
const LIMIT: Duration = Duration::from_secs(30);
/// After a failure to accept (no file descriptors left), the next try.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Answers whoever connects to the Unix socket at `path` with what `check` says, as long as the process lives. A thread of its
/// own does it: it waits for nothing else in the process, and no client can hold it up, since it reads nothing and what it
/// writes has room in the socket.
///
/// # Errors
/// When it cannot listen at `path`.
pub fn answer(path: &Path, check: impl Fn() -> Result<(), String> + Send + 'static) -> io::Result<()> {
    // A former run's: this process is alone in its container.
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    std::thread::Builder::new().name("alive".to_owned()).spawn(move || {
        loop {
            match listener.accept() {
                Ok((mut stream, _)) => {
                    let answer = check().map_or_else(|reason| format!("{reason}\n"), |()| ALIVE.to_owned());
                    // Whoever does not wait for the answer misses it.
                    let _ = stream.set_nonblocking(true);
                    let _ = stream.write_all(answer.as_bytes());
                }
                Err(error) => {
                    tracing::warn!("accept a question for a sign of life: {error}");
                    std::thread::sleep(ACCEPT_AGAIN);
                }
            }
        }
    })?;
    Ok(())
}

/// Asks the process that answers at `path` for a sign of life.
///
/// # Errors
/// When it does not answer, or says why it is not alive; the text is for people.
pub fn ask(path: &Path) -> Result<(), String> {
    let mut answer = String::new();
    let read = UnixStream::connect(path).and_then(|mut stream| {
        stream.set_read_timeout(Some(LIMIT))?;
        stream.read_to_string(&mut answer)
    });
    match read {
        Err(error) => Err(format!("no sign of life at {}: {error}", path.display())),
        Ok(_) if answer == ALIVE => Ok(()),
        Ok(_) => Err(answer.trim_end().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn tells_whether_it_is_alive_and_why_not() {
        let path = std::env::temp_dir().join(format!("cdb-alive-{}", std::process::id()));
        assert!(ask(&path).unwrap_err().contains("no sign of life"));
        // Left by a former run.
        drop(UnixListener::bind(&path).unwrap());
        assert!(ask(&path).unwrap_err().contains("no sign of life"));
        let hangs = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&hangs);
        answer(&path, move || match seen.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err("the event loop hangs".to_owned()),
        })
        .unwrap();
        assert_eq!(ask(&path), Ok(()));
        // Clients that take no answer hold up nobody.
        let silent: Vec<UnixStream> = (0..200).map(|_| UnixStream::connect(&path).unwrap()).collect();
        assert_eq!(ask(&path), Ok(()));
        drop(silent);
        hangs.store(true, Ordering::Relaxed);
        assert_eq!(ask(&path), Err("the event loop hangs".to_owned()));
        fs::remove_file(&path).unwrap();
    }
}
