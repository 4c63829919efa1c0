//! Standard output that never blocks: a container runtime that does not read must not stop the agent.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

/// Bytes that may wait to be written: some seconds of a busy log.
const LIMIT: usize = 8 << 20;

enum Message {
    Line(Vec<u8>),
    /// Sent back when everything before it has been written.
    Flush(Sender<()>),
}

/// Takes whole lines, which a thread writes. Lines that do not fit are counted and left out.
#[derive(Clone)]
pub(super) struct Output {
    messages: Sender<Message>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    waiting: AtomicUsize,
    lost: AtomicU64,
}

impl Output {
    /// Starts the thread that writes to `sink`.
    ///
    /// # Errors
    /// Fails if the thread cannot be started.
    pub(super) fn start(sink: impl Write + Send + 'static) -> io::Result<Self> {
        let (messages, received) = mpsc::channel();
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("log".into())
            .spawn(move || write_all(sink, &received, &own))?;
        Ok(Self { messages, shared })
    }

    /// Waits until the lines logged so far are written, for `limit` at most.
    pub(super) fn flush(&self, limit: Duration) {
        let (done, written) = mpsc::channel();
        if self.messages.send(Message::Flush(done)).is_ok() {
            let _ = written.recv_timeout(limit);
        }
    }
}

impl Write for Output {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let waiting = self.shared.waiting.fetch_add(line.len(), Ordering::Relaxed);
        // Sending fails if the thread has ended; nobody writes any more then.
        if waiting + line.len() > LIMIT || self.messages.send(Message::Line(line.to_vec())).is_err() {
            self.shared.waiting.fetch_sub(line.len(), Ordering::Relaxed);
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_all(mut sink: impl Write, messages: &Receiver<Message>, shared: &Shared) {
    while let Ok(message) = messages.recv() {
        // A closed output (nobody reads the log) is no reason to stop.
        let _ = match message {
            Message::Line(line) => {
                shared.waiting.fetch_sub(line.len(), Ordering::Relaxed);
                sink.write_all(&line)
            }
            Message::Flush(done) => sink.flush().map(|()| {
                let _ = done.send(());
            }),
        };
        let lost = shared.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let _ = writeln!(
                sink,
                r#"{{"level":"WARN","message":"{lost} log lines are left out: nobody read them","target":"agent::logs"}}"#
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Condvar, Mutex};

    use super::*;

    /// Takes nothing until it is opened.
    #[derive(Clone, Default)]
    struct Gate(Arc<(Mutex<Taken>, Condvar)>);

    #[derive(Default)]
    struct Taken {
        open: bool,
        bytes: Vec<u8>,
    }

    impl Gate {
        fn open(&self) {
            self.0.0.lock().expect("unpoisoned").open = true;
            self.0.1.notify_all();
        }
        fn text(&self) -> String {
            String::from_utf8(self.0.0.lock().expect("unpoisoned").bytes.clone()).expect("text")
        }
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let closed = self.0.0.lock().expect("unpoisoned");
            let mut open = self.0.1.wait_while(closed, |gate| !gate.open).expect("unpoisoned");
            open.bytes.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_come_out_in_order() {
        let gate = Gate::default();
        gate.open();
        let mut output = Output::start(gate.clone()).expect("a thread");
        for number in 0..100 {
            writeln!(output, "{number}").expect("taken");
        }
        output.flush(Duration::from_secs(5));
        let expected: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        assert_eq!(gate.text().lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn an_output_that_nobody_reads_blocks_no_writer() {
        let gate = Gate::default();
        let mut output = Output::start(gate.clone()).expect("a thread");
        let line = vec![b'x'; LIMIT / 4];
        for _ in 0..20 {
            output.write_all(&line).expect("taken or left out");
        }
        output.flush(Duration::from_millis(50));
        assert_eq!(gate.text(), "");
        gate.open();
        output.flush(Duration::from_secs(20));
        let text = gate.text();
        assert!(text.len() <= LIMIT + line.len() + 1_000, "{} bytes waited", text.len());
        assert!(text.contains("log lines are left out"));
    }
}
