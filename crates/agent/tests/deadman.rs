//! The dead-man against an agent that is stopped, dead, or a whole PID namespace's first process.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agent::deadman::{DeadMan, boot_time};
use agent::process::{Supervisor, descendants, processes};
use machine::timing::BootTime;
use machine::units::Millis;
use rustix::process::{Pid, Signal, kill_process};

/// The environment variable that makes this program the agent of a test. Its value says what the agent does.
const ROLE: &str = "CDB_TEST_AGENT";
/// The agent goes on until it is stopped.
const GO_ON: &str = "go on";
/// The agent drops its handle of the dead-man when the test asks for it.
const LET_GO: &str = "let go";
/// The first deadline, counted from the start.
const FIRST: Millis = Millis::seconds(6);
/// Time limit from the deadline to the death of the last process, for a busy machine. The measured time is printed; on
/// a quiet machine it is a few milliseconds.
const BOUND: Duration = Duration::from_secs(3);

/// Not a test: the agent of the other tests. It starts children and arms the dead-man once.
#[test]
fn agent_of_the_other_tests() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let dead_man = DeadMan::start_program(Path::new(env!("CARGO_BIN_EXE_agent"))).expect("a dead-man");
    let (supervisor, mut exits) = Supervisor::start().expect("a supervisor");
    // As PostgreSQL does, it starts children of children, in sessions of their own, that ignore the signals that can be
    // ignored.
    let script = "trap '' TERM INT QUIT HUP; setsid sleep 1000 & sleep 1000 & while true; do sleep 1; done";
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    supervisor.spawn("family", command).expect("children");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let deadline = boot_time().plus(FIRST);
        dead_man.arm(deadline).expect("armed");
        println!("\nARMED {}", deadline.0);
        if role == LET_GO {
            std::io::stdin().lines().next();
            println!("\nGONE {}", boot_time().0);
            drop(dead_man);
            exits.recv().await.expect("the children's end");
            println!("\nEND {}", boot_time().0);
            return;
        }
        // After the deadline, processes that are started later die, too, until there is a new deadline.
        exits.recv().await.expect("the children's end");
        let mut late = Command::new("sleep");
        late.arg("1000");
        supervisor.spawn("late", late).expect("a late child");
        let ended = tokio::time::timeout(Duration::from_secs(5), exits.recv()).await;
        assert!(ended.expect("a late child's end").is_some());
        dead_man.arm(boot_time().plus(Millis::minutes(1))).expect("armed again");
        println!("\nEND {}", boot_time().0);
        tokio::time::sleep(Duration::from_secs(60)).await;
        dead_man.disarm().expect("disarmed");
    });
}

struct Agent {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Agent {
    fn start(wrapper: &[&str], role: &str) -> Self {
        let own = std::env::current_exe().expect("a program");
        let own = own.to_str().expect("a name");
        let words: Vec<&str> = wrapper
            .iter()
            .copied()
            .chain([own, "--exact", "agent_of_the_other_tests", "--nocapture"])
            .collect();
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0);
        let mut child = command.spawn().expect("an agent");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self { child, lines }
    }

    /// Waits for the line that begins with `word`, and returns the time in it.
    fn says(&mut self, word: &str) -> BootTime {
        for line in self.lines.by_ref() {
            if let Some(time) = line.expect("a line").strip_prefix(word) {
                return BootTime(time.trim().parse().expect("a time"));
            }
        }
        panic!("the agent ended without saying {word}");
    }

    /// The sleepers among its descendants.
    fn sleepers(&self) -> Vec<u32> {
        let family = descendants(self.child.id()).expect("/proc");
        family
            .into_iter()
            .filter(|process| process.name == "sleep")
            .map(|process| process.pid)
            .collect()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        for process in descendants(self.child.id()).unwrap_or_default() {
            send(process.pid, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    let _ = kill_process(pid, signal);
}

fn alive(pids: &[u32]) -> usize {
    processes()
        .expect("/proc")
        .iter()
        .filter(|process| pids.contains(&process.pid))
        .count()
}

/// Waits until all of `pids` are dead; returns when that was.
fn dead(pids: &[u32]) -> BootTime {
    let begun = Instant::now();
    while alive(pids) > 0 {
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "{} of them live on",
            alive(pids)
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    boot_time()
}

fn wait_for_sleepers(agent: &Agent, count: usize) -> Vec<u32> {
    let begun = Instant::now();
    loop {
        let sleepers = agent.sleepers();
        if sleepers.len() >= count {
            return sleepers;
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "only {sleepers:?} sleep");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until at most `count` of the agent's descendants are left. Returns when that was, and which are left. The
/// process that starts the sleepers dies with them, in any order, and may have started another one at the same moment.
fn left(agent: &Agent, count: usize) -> (BootTime, Vec<u32>) {
    let begun = Instant::now();
    loop {
        let left = descendants(agent.child.id()).expect("/proc");
        if left.len() <= count {
            return (boot_time(), left.iter().map(|process| process.pid).collect());
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{left:?} are left");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn within_bound(died: BootTime, deadline: BootTime) {
    assert!(died >= deadline, "{} too early", deadline.since(died));
    let late = died.since(deadline).duration();
    assert!(late <= BOUND, "{late:?} after the deadline");
    println!("the last process died {late:?} after the deadline");
}

#[test]
fn a_stopped_agents_processes_die_at_the_deadline() {
    let mut agent = Agent::start(&[], GO_ON);
    let deadline = agent.says("ARMED ");
    wait_for_sleepers(&agent, 3);
    send(agent.child.id(), Signal::STOP);
    let (died, dead_man) = left(&agent, 1);
    within_bound(died, deadline);
    assert_eq!(dead_man.len(), 1, "the dead-man is left");
    // The agent finds its children dead, and still works.
    send(agent.child.id(), Signal::CONT);
    assert!(agent.says("END ") >= deadline);
    send(dead_man[0], Signal::TERM);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(alive(&dead_man), 1, "SIGTERM does not end it");
}

#[test]
fn an_agent_that_lets_go_of_it_is_left_alone() {
    let mut agent = Agent::start(&[], LET_GO);
    let deadline = agent.says("ARMED ");
    let sleepers = wait_for_sleepers(&agent, 3);
    drop(agent.child.stdin.take());
    let gone = agent.says("GONE ");
    let died = dead(&sleepers);
    assert!(
        died < deadline,
        "they die at once ({}), not at the deadline",
        died.since(gone)
    );
    agent.says("END ");
}

#[test]
fn in_a_namespace_of_its_own_everything_dies_but_the_agent() {
    let namespace = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];
    let as_root = [
        "unshare",
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--mount-proc",
        "--kill-child",
    ];
    let wrapper: &[&str] = if rustix::process::geteuid().is_root() {
        &namespace
    } else {
        &as_root
    };
    let mut agent = Agent::start(wrapper, GO_ON);
    let deadline = agent.says("ARMED ");
    wait_for_sleepers(&agent, 3);
    let family = descendants(agent.child.id()).expect("/proc");
    let first = family
        .iter()
        .find(|process| process.parent == agent.child.id())
        .expect("PID 1 of the namespace")
        .pid;
    send(first, Signal::STOP);
    let (died, left) = left(&agent, 2);
    within_bound(died, deadline);
    assert_eq!(left.len(), 2, "the agent and the dead-man are left: {left:?}");
    send(first, Signal::CONT);
    assert!(agent.says("END ") >= deadline);
}
