//! What `/proc` says about processes.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Environment variable in which every supervised process carries the absolute path of its record.
///
/// Only processes of the calling user count: everybody can give a process of their own any environment.
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
    /// When it started, in clock ticks since boot. With the process id it identifies a process: ids are reused.
    pub(crate) start_ticks: u64,
    environment: Environment,
}

/// What is known of the environment that a process was started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Environment {
    /// It is an ended or ending process, or a thread of the kernel: it has none.
    None,
    /// It is in the middle of `execve`: its old memory is gone, and where the new environment is, is not known.
    Unknown,
    /// Its length in bytes. Zero in the last part of `execve`, too.
    Length(u64),
}

/// `PF_KTHREAD` of the kernel's `include/linux/sched.h`: a thread of the kernel, which never has an environment.
const KERNEL_THREAD: u64 = 0x0020_0000;
/// `PF_EXITING` of the same: a process that is ending has given its memory back.
const EXITING: u64 = 0x4;
/// How long a process may be in the middle of `execve`, on a machine so busy that it does not run meanwhile.
const BETWEEN_PROGRAMS: Duration = Duration::from_secs(2);
/// How long a process may seem to have no environment, or one of another length than could be read.
const LAST_PART: Duration = Duration::from_millis(50);

/// Reads `/proc/<pid>/stat`; none when there is no such process.
pub(crate) fn read_stat(pid: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The program name (second field) may contain blanks and parentheses, so fields are counted from its last parenthesis.
fn parse_stat(text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let zombie = matches!(*fields.first()?, "Z" | "X");
    let has_no_memory = zombie || number(6)? & (KERNEL_THREAD | EXITING) != 0;
    // `env_start` and `env_end` of proc_pid_stat(5).
    let environment = match (number(47), number(48)) {
        _ if has_no_memory => Environment::None,
        (Some(start), Some(end @ 1..)) => Environment::Length(end.saturating_sub(start)),
        _ => Environment::Unknown,
    };
    Some(Stat {
        zombie,
        group: fields.get(2)?.parse().ok()?,
        start_ticks: number(19)?,
        environment,
    })
}

/// The record path a process carries in its environment; none for unmarked and dead processes, and for those of other users. Blocks
/// while the process is in `execve`.
pub(crate) fn read_marker(pid: u32) -> Option<PathBuf> {
    find_markers(vec![pid]).pop().map(|(_, marker)| marker)
}

/// All marked processes with their record paths, without the calling process. Blocks as [`read_marker`] does.
pub(crate) fn find_marked() -> Vec<(u32, PathBuf)> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| *pid != std::process::id());
    find_markers(pids.collect())
}

/// The marked ones of these processes. A process in `execve` seems to have no environment for a moment, or only the beginning
/// of one: it is read again, so that it does not count as unmarked.
fn find_markers(mut pids: Vec<u32>) -> Vec<(u32, PathBuf)> {
    let begin = Instant::now();
    let mut in_last_part = HashMap::new();
    let mut found = Vec::new();
    loop {
        pids.retain(|pid| {
            let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else {
                return false;
            };
            if let Some(marker) = parse_marker(&environment) {
                // Root reads the environment of all processes.
                if is_own(*pid) {
                    found.push((*pid, marker));
                }
                return false;
            }
            match read_stat(*pid).map(|stat| stat.environment) {
                None | Some(Environment::None) => false,
                Some(Environment::Length(length @ 1..)) if length == environment.len() as u64 => false,
                Some(Environment::Length(_)) => {
                    in_last_part.entry(*pid).or_insert_with(Instant::now).elapsed() < LAST_PART
                }
                Some(Environment::Unknown) => {
                    in_last_part.remove(pid);
                    begin.elapsed() < BETWEEN_PROGRAMS
                }
            }
        });
        if pids.is_empty() {
            return found;
        }
        #[expect(clippy::disallowed_methods, reason = "it reads files, which blocks as well")]
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether this user started a process. That is its real user: a program that others start with the rights of this user, such as `su`,
/// has the environment that they gave it.
fn is_own(pid: u32) -> bool {
    let own = rustix::process::geteuid().as_raw();
    fs::read(format!("/proc/{pid}/status"))
        .is_ok_and(|status| parse_real_user(&String::from_utf8_lossy(&status)) == Some(own))
}

/// The first user ID of `/proc/<pid>/status` is the real one. The kernel escapes line breaks in names of programs, which come before.
fn parse_real_user(status: &str) -> Option<u32> {
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().next()?.parse().ok()
}

fn parse_marker(environment: &[u8]) -> Option<PathBuf> {
    environment.split(|byte| *byte == 0).find_map(|entry| {
        let value = entry.strip_prefix(MARKER.as_bytes())?.strip_prefix(b"=")?;
        Some(PathBuf::from(OsStr::from_bytes(value)))
    })
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
    fn the_user_of_a_process_is_the_one_that_started_it() {
        // Such as `su`, which a user has started: the effective user is root.
        let status =
            "Name:\tsu\nUmask:\t0022\nState:\tS (sleeping)\nUid:\t1000\t0\t0\t0\nGid:\t1000\t1000\t1000\t1000\n";
        assert_eq!(parse_real_user(status), Some(1000));
        assert_eq!(parse_real_user("Name:\tUid:\t0\n"), None);
        assert!(is_own(std::process::id()));
    }

    #[test]
    fn process_in_execve_differs_from_one_without_environment() {
        let environment = |state: &str, flags: u64, start: u64, end: u64| {
            let zeros = |count: usize| vec!["0"; count].join(" ");
            let text = format!(
                "42 (a) {state} 1 40 40 0 -1 {flags} {} 12345 {} {start} {end} 0",
                zeros(12),
                zeros(27)
            );
            parse_stat(&text).unwrap().environment
        };
        assert_eq!(environment("R", 0, 0, 0), Environment::Unknown);
        assert_eq!(environment("R", 0, 4096, 4200), Environment::Length(104));
        assert_eq!(environment("R", 0, 4096, 4096), Environment::Length(0));
        assert_eq!(environment("R", EXITING, 0, 0), Environment::None);
        assert_eq!(environment("Z", 0, 0, 0), Environment::None);
        assert_eq!(environment("S", KERNEL_THREAD, 0, 0), Environment::None);
    }

    #[test]
    fn process_that_executes_many_programs_keeps_its_marker() {
        use std::os::unix::process::CommandExt as _;
        // The last program runs until it is killed: an ending process has no environment any more.
        let script = r#"[ $1 = 0 ] && exec sleep 1000; exec sh -c "$0" "$0" $(($1 - 1))"#;
        let mut command = std::process::Command::new("/bin/sh");
        command.args(["-c", script, script, "3000"]);
        let mut child = command.env(MARKER, "/run/a.json").process_group(0).spawn().unwrap();
        let begin = Instant::now();
        let (mut reads, mut wrong) = (0, None);
        while wrong.is_none() && fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap() != "sleep\n" {
            let marker = read_marker(child.id());
            let has_ended = child.try_wait().unwrap().is_some() || begin.elapsed() > Duration::from_secs(120);
            if has_ended || marker.as_deref() != Some("/run/a.json".as_ref()) {
                wrong = Some((reads, has_ended, marker));
            }
            reads += 1;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(wrong, None);
        assert!(reads > 10, "{reads}");
    }
}
