//! A sign of life over a Unix socket, for probes by `exec`: so nobody on a network can cause a container to be killed.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

/// The answer of a living process.
const ALIVE: &str = "alive\n";
/// Time limit of an answer; the kubelet's own limit is shorter.
const LIMIT: Duration = Duration::from_secs(30);
/// The pause after a failure to accept, such as a lack of file descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Answers every client of the Unix socket at `path` with the result of `check`, as long as the process lives. It does
/// so on a thread of its own, which waits for nothing else in the process. No client can delay it: it reads nothing,
/// and its answer fits into the socket.
///
/// # Errors
/// Fails if it cannot listen at `path`.
pub fn answer(path: &Path, check: impl Fn() -> Result<(), String> + Send + 'static) -> io::Result<()> {
    // The socket of an earlier run: this process is alone in its container.
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
                    // A client that does not wait for the answer misses it.
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
/// Fails if the process does not answer, or says that it is not alive; the text is for people.
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
        // Left by an earlier run.
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
        // Clients that take no answer delay nobody.
        let silent: Vec<UnixStream> = (0..200).map(|_| UnixStream::connect(&path).unwrap()).collect();
        assert_eq!(ask(&path), Ok(()));
        drop(silent);
        hangs.store(true, Ordering::Relaxed);
        assert_eq!(ask(&path), Err("the event loop hangs".to_owned()));
        fs::remove_file(&path).unwrap();
    }
}
