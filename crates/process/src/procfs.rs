//! What `/proc` says about processes.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

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
}

/// Reads `/proc/<pid>/stat`; none when there is no such process.
pub(crate) fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The program name (second field) may contain blanks and parentheses, so fields are counted from its last parenthesis.
fn parse_stat(text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    Some(Stat {
        zombie: matches!(*fields.first()?, "Z" | "X"),
        group: fields.get(2)?.parse().ok()?,
        start_ticks: fields.get(19)?.parse().ok()?,
    })
}

/// The record path a process carries in its environment; none for unmarked, foreign and dead processes.
pub(crate) fn marker(pid: u32) -> Option<PathBuf> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
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
                start_ticks: 12345
            })
        );
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn own_process_is_there_and_alive() {
        let own = stat(std::process::id()).unwrap();
        assert!(!own.zombie && own.start_ticks > 0);
    }
}
