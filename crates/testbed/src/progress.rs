//! Says on standard error what takes time.

use std::future::Future;
use std::io::Write;
use std::time::Duration;

use tokio::time::Instant;

/// Work that is done sooner than this is not worth a line.
const SILENCE: Duration = Duration::from_secs(2);
/// How often slow work says that it still goes on.
const REPEAT: Duration = Duration::from_secs(15);

/// Prints one line.
pub fn say(text: &str) {
    // Whoever closed the pipe does not want to know.
    let _ = writeln!(std::io::stderr(), "testbed: {text}");
}

/// Awaits `work` and tells about it when it takes more than two seconds.
pub async fn step<T>(what: &str, work: impl Future<Output = T>) -> T {
    let start = Instant::now();
    let mut next = start + SILENCE;
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            result = &mut work => {
                if start.elapsed() > SILENCE {
                    say(&format!("{what}: {:.1} s", start.elapsed().as_secs_f64()));
                }
                return result;
            }
            () = tokio::time::sleep_until(next) => {
                let spent = start.elapsed().as_secs();
                say(&if spent < REPEAT.as_secs() { format!("{what} …") } else { format!("{what} … ({spent} s so far)") });
                next = Instant::now() + REPEAT;
            }
        }
    }
}
