//! Reports on standard error what takes time: on a terminal in one changing line, otherwise at begin and end.

use std::fmt::Write as _;
use std::future::Future;
use std::io::{IsTerminal, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Work that ends sooner than this is not reported.
const SILENCE: Duration = Duration::from_secs(2);
/// How often the line on a terminal changes.
const REDRAW: Duration = Duration::from_secs(1);
/// How often slow work is reported without a terminal.
const REPEAT: Duration = Duration::from_secs(60);
/// Moves to the beginning of the line and clears it.
const CLEAR: &str = "\r\x1b[K";
/// The line is cut here, so that it stays one line.
const WIDTH: usize = 100;

/// The running work, in order.
static BOARD: Mutex<Vec<Work>> = Mutex::new(Vec::new());

struct Work {
    what: String,
    start: Instant,
}

/// Prints one line.
pub fn say(text: &str) {
    let mut error = std::io::stderr().lock();
    let clear = if error.is_terminal() { CLEAR } else { "" };
    // The reader has closed the pipe.
    let _ = writeln!(error, "{clear}    {text}");
}

/// Awaits `work` and reports it if it takes more than two seconds. Several may run at once.
pub async fn step<T>(what: &str, work: impl Future<Output = T>) -> T {
    let listed = Listed::new(what);
    let terminal = std::io::stderr().is_terminal();
    let mut next = listed.start + SILENCE;
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            result = &mut work => {
                let took = listed.start.elapsed();
                drop(listed);
                if took > SILENCE {
                    say(&format!("{what}: {:.1} s", took.as_secs_f64()));
                }
                return result;
            }
            () = tokio::time::sleep_until(next) => {
                let took = listed.start.elapsed();
                if terminal {
                    draw();
                } else if took < REPEAT {
                    say(&format!("{what} …"));
                } else {
                    say(&format!("{what} … ({} s so far)", took.as_secs()));
                }
                next = Instant::now() + if terminal { REDRAW } else { REPEAT };
            }
        }
    }
}

fn board() -> std::sync::MutexGuard<'static, Vec<Work>> {
    BOARD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn draw() {
    let line = line(&board());
    let mut error = std::io::stderr().lock();
    // The cursor returns, so that the next output begins there.
    let _ = write!(error, "{CLEAR}{line}\r");
    let _ = error.flush();
}

/// All running work, with minutes and seconds since it began.
fn line(board: &[Work]) -> String {
    let mut line = String::from("    ");
    for (number, work) in board.iter().enumerate() {
        let seconds = work.start.elapsed().as_secs();
        let before = if number > 0 { " | " } else { "" };
        let _ = write!(line, "{before}{:02}:{:02} {}", seconds / 60, seconds % 60, work.what);
    }
    if line.chars().count() > WIDTH {
        line = line.chars().take(WIDTH - 1).chain(['…']).collect();
    }
    line
}

/// An entry of the board, which is removed when this is dropped.
struct Listed {
    start: Instant,
    what: String,
}

impl Listed {
    fn new(what: &str) -> Self {
        let (start, what) = (Instant::now(), what.to_owned());
        board().push(Work {
            what: what.clone(),
            start,
        });
        Self { start, what }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut board = board();
        let own = |work: &Work| work.start == self.start && work.what == self.what;
        if let Some(at) = board.iter().position(own) {
            board.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn running_work_is_in_one_line() {
        let work = |what: &str| Work {
            what: what.to_owned(),
            start: Instant::now(),
        };
        let slow = work("building one thing");
        tokio::time::advance(Duration::from_secs(61)).await;
        let shown = line(&[slow, work("another")]);
        assert_eq!(shown, "    01:01 building one thing | 00:00 another");
    }

    #[tokio::test]
    async fn finished_work_leaves_the_line() {
        let is_there = || board().iter().any(|work| work.what == "this test");
        let listed = Listed::new("this test");
        assert!(is_there());
        drop(listed);
        assert!(!is_there());
    }

    #[tokio::test]
    async fn a_long_line_is_cut() {
        let work = Work {
            what: "x".repeat(200),
            start: Instant::now(),
        };
        assert_eq!(line(&[work]).chars().count(), WIDTH);
    }
}
