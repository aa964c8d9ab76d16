//! What `/proc` says about processes.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Environment variable in which every supervised process carries the absolute path of its record.
///
/// A process that was not started by a [`crate::Supervisor`] may carry it too, so that [`crate::reap_marked`] finds it.
pub const MARKER: &str = "BERTH_PROCESS";

/// Fields of `/proc/<pid>/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// Ended, but not yet waited for by its parent.
    pub(crate) zombie: bool,
    /// Process group.
    pub(crate) group: u32,
    /// When it started, in clock ticks since boot. With the process id it tells a process from a later one of the same id.
    pub(crate) start_ticks: u64,
    environment: Environment,
}

/// What a process is known to have as its environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Environment {
    /// It is an ended process or a thread of the kernel.
    None,
    /// It was started without, or is in the middle of `execve` and about to get one.
    Empty,
    /// Where it is, is not known: it is in the middle of `execve`. Its old memory is gone.
    Unknown,
    Some,
}

impl Environment {
    /// How long an empty answer may be wrong, on a machine so busy that the process does not run meanwhile.
    fn patience(self) -> Duration {
        match self {
            Self::None => Duration::ZERO,
            Self::Empty => Duration::from_millis(50),
            Self::Unknown | Self::Some => Duration::from_secs(2),
        }
    }
}

/// `PF_KTHREAD` of the kernel's `include/linux/sched.h`: a thread of the kernel, which never has an environment.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Reads `/proc/<pid>/stat`; none when there is no such process.
pub(crate) fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The program name (second field) may contain blanks and parentheses, so fields are counted from its last parenthesis.
fn parse_stat(text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let zombie = matches!(*fields.first()?, "Z" | "X");
    let is_of_the_kernel = number(6)? & KERNEL_THREAD != 0;
    // `env_start` and `env_end` of proc_pid_stat(5).
    let environment = match (number(47), number(48)) {
        _ if zombie || is_of_the_kernel => Environment::None,
        (_, None | Some(0)) => Environment::Unknown,
        (start, end) if start == end => Environment::Empty,
        _ => Environment::Some,
    };
    Some(Stat {
        zombie,
        group: fields.get(2)?.parse().ok()?,
        start_ticks: number(19)?,
        environment,
    })
}

/// The record path a process carries in its environment; none for unmarked, foreign and dead processes.
pub(crate) fn marker(pid: u32) -> Option<PathBuf> {
    let begin = Instant::now();
    let environment = loop {
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        // A process that becomes another program seems to have no environment for a moment. It must not be taken for
        // one that nobody knows.
        if !environment.is_empty() || begin.elapsed() >= stat(pid)?.environment.patience() {
            break environment;
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "as the files are read: blocking, and for a moment"
        )]
        std::thread::sleep(Duration::from_millis(1));
    };
    environment.split(|byte| *byte == 0).find_map(|entry| {
        let value = entry.strip_prefix(MARKER.as_bytes())?.strip_prefix(b"=")?;
        Some(PathBuf::from(OsStr::from_bytes(value)))
    })
}

/// All marked processes with their record paths, without the calling process.
pub(crate) fn marked() -> Vec<(u32, PathBuf)> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| *pid != std::process::id())
        .filter_map(|pid| Some((pid, marker(pid)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_from_the_last_parenthesis() {
        let text = "42 (a) b (c) S 1 40 40 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 12345 1000 1";
        assert_eq!(
            parse_stat(text),
            Some(Stat {
                zombie: false,
                group: 40,
                start_ticks: 12345,
                environment: Environment::Unknown,
            })
        );
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn who_becomes_another_program_is_told_from_who_has_no_environment() {
        let environment = |state: &str, flags: u64, begin: u64, end: u64| {
            let zeros = |count: usize| vec!["0"; count].join(" ");
            let text = format!(
                "42 (a) {state} 1 40 40 0 -1 {flags} {} 12345 {} {begin} {end} 0",
                zeros(12),
                zeros(27)
            );
            parse_stat(&text).unwrap().environment
        };
        assert_eq!(environment("R", 0, 0, 0), Environment::Unknown);
        assert_eq!(environment("R", 0, 4096, 4200), Environment::Some);
        assert_eq!(environment("R", 0, 4096, 4096), Environment::Empty);
        assert_eq!(environment("Z", 0, 0, 0), Environment::None);
        assert_eq!(environment("S", KERNEL_THREAD, 0, 0), Environment::None);
    }

    #[test]
    fn who_becomes_one_program_after_the_other_always_carries_its_marker() {
        use std::os::unix::process::CommandExt as _;
        // It ends as a program that stays, and not by itself: who is ending has no environment any more.
        let script = r#"[ $1 = 0 ] && exec sleep 1000; exec sh -c "$0" "$0" $(($1 - 1))"#;
        let mut command = std::process::Command::new("/bin/sh");
        command.args(["-c", script, script, "3000"]);
        let mut child = command.env(MARKER, "/run/a.json").process_group(0).spawn().unwrap();
        let (mut looks, mut wrong) = (0, Vec::new());
        while fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap() != "sleep\n" {
            let marker = marker(child.id());
            if marker.as_deref() != Some("/run/a.json".as_ref()) {
                wrong.push((looks, marker));
            }
            looks += 1;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(wrong, []);
        assert!(looks > 10, "{looks}");
    }
}
