//! One busy thread for each CPU of the machine, and the load that this caused.
//!
//! The threads belong to the harness, so they end with it.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::setpriority_process;
use rustix::time::{ClockId, clock_gettime};

use crate::availability::table::{Leads, Load};

/// A machine that is less busy than this was not under load: some of its threads could not run.
const BUSY: f64 = 95.0;

/// The busy threads; they end when this is dropped, if not before.
#[derive(Debug)]
pub struct Busy {
    stop: Arc<AtomicBool>,
    began: Instant,
    /// The machine's CPUs when it began.
    cpus: Cpus,
    lease: Leads,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// Each thread returns how much CPU time it got.
    Running(Vec<JoinHandle<Result<Duration>>>),
    Ended(Measured),
}

#[derive(Clone, Copy, Debug)]
struct Measured {
    time: Duration,
    used: f64,
    threads: f64,
    average: [f64; 3],
}

impl Busy {
    /// Starts the threads; `lease` has the present leader.
    ///
    /// # Errors
    /// When there can be none.
    pub fn start(lease: Leads) -> Result<Self> {
        let cpus = Cpus::now()?;
        let this = Self {
            stop: Arc::default(),
            began: Instant::now(),
            cpus,
            lease,
            state: Mutex::new(State::Running(Vec::new())),
        };
        for number in 0..cpus.count {
            let stop = this.stop.clone();
            let thread = std::thread::Builder::new().name(format!("busy-{number}"));
            let thread = thread.spawn(move || spin(&stop)).context("start a busy thread")?;
            if let State::Running(threads) = &mut *this.state.lock().unwrap_or_else(PoisonError::into_inner) {
                threads.push(thread);
            }
        }
        Ok(this)
    }

    /// Ends the threads, and measures up to now. Further calls do nothing.
    ///
    /// # Errors
    /// If their CPU time is unknown.
    pub fn end(&self) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State::Running(threads) = &mut *state else {
            return Ok(());
        };
        let threads = std::mem::take(threads);
        let (cpus, time) = (Cpus::now(), self.began.elapsed());
        self.stop.store(true, Ordering::Relaxed);
        let mut got = Duration::ZERO;
        for thread in threads {
            let ended = thread.join().map_err(|_| anyhow::anyhow!("a busy thread panicked"))?;
            got += ended?;
        }
        let whole = time.as_secs_f64() * self.cpus.count as f64;
        *state = State::Ended(Measured {
            time,
            used: cpus?.used_since(&self.cpus)?,
            threads: 100.0 * got.as_secs_f64() / whole,
            average: averages(&read("/proc/loadavg")?)?,
        });
        Ok(())
    }

    /// The result; `after` has the leader now.
    ///
    /// # Errors
    /// Before the end, and when the machine was not under load.
    pub fn load(&self, after: Leads) -> Result<Load> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State::Ended(measured) = *state else {
            anyhow::bail!("the CPUs are still busy");
        };
        ensure!(
            measured.used >= BUSY,
            "the CPUs were used to {:.1} % only: that was no load",
            measured.used
        );
        Ok(Load {
            seconds: measured.time.as_secs_f64(),
            cpus: self.cpus.count,
            used: measured.used,
            threads: measured.threads,
            average: measured.average,
            before: self.lease.clone(),
            after,
        })
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Computes until the stop signal; returns how much CPU time it got.
fn spin(stop: &AtomicBool) -> Result<Duration> {
    // The harness may have been started at a lower priority. Of the calling thread alone, as Linux does it.
    setpriority_process(None, 0).context("give a busy thread normal priority")?;
    let mut number: u64 = 1;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..10_000 {
            number = black_box(number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
    }
    let got = clock_gettime(ClockId::ThreadCPUTime);
    Ok(Duration::new(got.tv_sec.unsigned_abs(), u32::try_from(got.tv_nsec)?))
}

/// The machine's CPUs together, since it was started, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cpus {
    count: usize,
    all: u64,
    /// Idle, or waiting for a disk with nothing else to do.
    idle: u64,
}

impl Cpus {
    fn now() -> Result<Self> {
        Self::parse(&read("/proc/stat")?)
    }

    /// Of `/proc/stat`.
    fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("cpu"));
        let sum = lines.next().context("no line of all CPUs")?;
        let ticks: Vec<u64> = sum.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        // user nice system idle iowait irq softirq steal; guests' time, which follows, is in user and nice already.
        let ticks = ticks.get(..8).context("a CPU's line has eight numbers")?;
        Ok(Self {
            count: lines.count(),
            all: ticks.iter().sum(),
            idle: ticks[3] + ticks[4],
        })
    }

    /// In percent.
    fn used_since(&self, before: &Self) -> Result<f64> {
        let (all, idle) = (
            self.all.saturating_sub(before.all),
            self.idle.saturating_sub(before.idle),
        );
        ensure!(all > 0, "no time passed");
        Ok(100.0 * (1.0 - idle as f64 / all as f64))
    }
}

/// The three of `/proc/loadavg`.
fn averages(text: &str) -> Result<[f64; 3]> {
    let numbers: Vec<f64> = text
        .split_whitespace()
        .take(3)
        .map(str::parse)
        .collect::<Result<_, _>>()
        .context("read /proc/loadavg")?;
    <[f64; 3]>::try_from(numbers).map_err(|found| anyhow::anyhow!("{} load averages", found.len()))
}

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("read {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_disk_is_no_use_and_a_guest_is_counted_once() {
        let text = |idle: u64, user: u64| {
            format!("cpu  {user} 10 20 {idle} 40 0 5 5 {user} 0\ncpu0 1 2 3 4 5 6 7 8\ncpu1 1 2 3 4 5 6 7 8\nintr 9\n")
        };
        let before = Cpus::parse(&text(1_000, 100)).unwrap();
        assert_eq!((before.count, before.all, before.idle), (2, 1_180, 1_040));
        let after = Cpus::parse(&text(1_010, 290)).unwrap();
        assert!((after.used_since(&before).unwrap() - 95.0).abs() < 1e-9);
        assert!(before.used_since(&before).is_err());
        for wrong in ["", "cpu 1 2 3\n", "cpu a b c d e f g h\n"] {
            assert!(Cpus::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_load_averages_are_the_first_three_words() {
        assert_eq!(averages("2.39 1.50 1.31 3/400 11705\n").unwrap(), [2.39, 1.5, 1.31]);
        assert!(averages("2.39 1.50").is_err());
    }

    #[test]
    fn the_threads_end_at_the_stop_signal_and_return_their_cpu_time() {
        let lease = Leads {
            holder: "a".to_owned(),
            transitions: 1,
        };
        let busy = Busy::start(lease.clone()).unwrap();
        assert!(busy.load(lease).is_err(), "still busy");
        while busy.began.elapsed() < Duration::from_millis(20) {
            std::thread::yield_now();
        }
        busy.end().unwrap();
        busy.end().unwrap();
        assert!(matches!(&*busy.state.lock().unwrap(), State::Ended(measured) if measured.threads > 0.0));
        assert_eq!(Arc::strong_count(&busy.stop), 1, "no thread is left");
    }
}
