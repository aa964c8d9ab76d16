//! Commands of the documentation that write keys, with a `kubectl` that prints the same for every request: other users of the machine cannot read
//! the files.
// No runtime: the commands are run one after the other.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail as tests do"
)]

use berth_tests::page::find_commands;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};
use tempfile::TempDir;

const BACKUP: &str = include_str!("../../docs/operations/backup.md");
const TROUBLESHOOTING: &str = include_str!("../../docs/operations/troubleshooting.md");
const REQUEST: &str = include_str!("../../docs/guides/request-a-tenant.md");
/// Programs that need a cluster.
const PROGRAMS: [&str; 3] = ["kubectl", "etcdctl", "etcdutl"];
/// A program that prints a name, which can also be decoded as base64.
const PRINTS: &str = "#!/bin/sh\necho berthkey\n";

/// Runs the commands of a page that have these words, where other users may read files by default. Returns the modes of the files that they have
/// written, by name.
fn modes(page: &str, words: &str) -> Vec<(String, u32)> {
    let (programs, folder) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for program in PROGRAMS {
        let path = programs.path().join(program);
        fs::write(&path, PRINTS).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let commands = find_commands(page, words).unwrap_or_else(|| panic!("no commands with {words:?}"));
    // The certificates that follow are made by openssl, which needs a real authority and keeps its keys to the owner.
    let own: Vec<&str> = commands.lines().take_while(|line| !line.contains("openssl")).collect();
    run(&own.join("\n"), programs.path(), folder.path());
    let mut modes: Vec<(String, u32)> = fs::read_dir(folder.path())
        .unwrap()
        .map(|file| {
            let file = file.unwrap();
            let mode = file.metadata().unwrap().permissions().mode() & 0o777;
            (file.file_name().into_string().unwrap(), mode)
        })
        .collect();
    modes.sort();
    modes
}

fn run(commands: &str, programs: &Path, folder: &Path) {
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("sh")
        .args(["-e", "-c", &format!("umask 022\n{commands}")])
        .env("PATH", format!("{}:{path}", programs.display()))
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{commands}\n{output:?}");
}

#[test]
fn files_with_keys_are_their_owners_alone() {
    let all: [(&str, &str, &[&str]); 5] = [
        (
            BACKUP,
            "etcdctl snapshot save",
            &["pki-berthkey.yaml", "tenantclusters.yaml"],
        ),
        (BACKUP, "> etcd-authorities.yaml", &["etcd-authorities.yaml"]),
        (BACKUP, "> objects.yaml", &["objects.yaml"]),
        (TROUBLESHOOTING, "> ca.key", &["ca.crt", "ca.key"]),
        (REQUEST, "> vision.yaml", &["vision.yaml"]),
    ];
    for (page, words, files) in all {
        let expected: Vec<(String, u32)> = files.iter().map(|file| ((*file).to_owned(), 0o600)).collect();
        assert_eq!(modes(page, words), expected, "{words}");
    }
}
