//! The program of `archive_command`.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The file is archived.
const ARCHIVED: u8 = 0;
/// It is not: PostgreSQL asks again, soon three times, then once a minute.
const LATER: u8 = 1;
/// PostgreSQL's archiver process is to end: it does for any status above 125. Otherwise PostgreSQL would wait for it to archive
/// everything before it stops.
const END: u8 = 255;

/// How long the worker may take. It gives up by itself long before.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The worker's answer to PostgreSQL's archiver, as one byte on the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Archived,
    Later,
    End,
}

impl Reply {
    pub(super) const fn byte(self) -> u8 {
        match self {
            Self::Archived => b'a',
            Self::Later => b'l',
            Self::End => b'e',
        }
    }

    fn status(byte: Option<u8>) -> u8 {
        match byte {
            Some(b'a') => ARCHIVED,
            Some(b'e') => END,
            // The worker has ended meanwhile, or is another version.
            Some(_) | None => LATER,
        }
    }
}

/// Asks the worker at `socket` about the file `name` of `pg_wal`; returns the exit status for PostgreSQL. A worker that cannot be asked
/// is no reason to end anything.
pub fn ask(socket: &Path, name: &str) -> u8 {
    let asked = || -> io::Result<Option<u8>> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(format!("{name}\n").as_bytes())?;
        let mut answer = [0];
        Ok((stream.read(&mut answer)? == 1).then_some(answer[0]))
    };
    match asked() {
        Ok(byte) => Reply::status(byte),
        Err(error) => {
            eprintln!("archive {name}: ask the worker at {}: {error}", socket.display());
            LATER
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_has_the_status_that_postgresql_understands() {
        let status = |reply: Reply| Reply::status(Some(reply.byte()));
        assert_eq!([Reply::Archived, Reply::Later, Reply::End].map(status), [0, 1, 255]);
        assert_eq!(Reply::status(None), 1);
        assert_eq!(Reply::status(Some(b'?')), 1);
        assert_eq!(ask(Path::new("/nonexistent/socket"), "000000010000000000000001"), 1);
    }
}
