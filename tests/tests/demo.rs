//! The README's first command, as a newcomer runs it, but with the binaries of this build and a state folder of its own.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use berth_tests::files::binary;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// A state folder that is taken down with the test, also when it fails.
struct Home(tempfile::TempDir);

impl Home {
    fn path(&self) -> PathBuf {
        self.0.path().join("home")
    }

    fn run(&self, program: &Path, arguments: &[&str]) -> Output {
        let binaries = binary("berth").parent().unwrap().display().to_string();
        let path = format!("{binaries}:{}", std::env::var("PATH").unwrap());
        Command::new(program)
            .args(arguments)
            .env("PATH", path)
            .env("BERTH_HOME", self.path())
            .output()
            .unwrap()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.run(&binary("berth"), &["dev", "down"]);
    }
}

#[test]
fn the_demo_runs_and_leaves_no_trace() {
    let home = Home(tempfile::tempdir().unwrap());
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hack/demo");
    let Output { status, stdout, stderr } = home.run(&demo, &[]);
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{status}\n{stdout}\n{stderr}");
    for expected in [
        "v1.36.4",
        "Complete",
        "2/2",
        "Assigned",
        "not reached, as expected",
        "What to try next",
    ] {
        assert!(stdout.contains(expected), "{expected:?} is not in:\n{stdout}");
    }

    // What scripts rely on.
    for file in [
        "host.kubeconfig",
        "kubeconfigs/team-vision.vision.yaml",
        "kubeconfigs/team-speech.speech.yaml",
    ] {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(home.path().join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    assert!(home.path().join("logs").is_dir());
    let status = home.run(&binary("berth"), &["dev", "status", "--output", "json"]);
    assert!(status.status.success());
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let tenants = status["tenants"].as_array().unwrap();
    assert_eq!(tenants.len(), 2, "{status}");
    assert!(tenants.iter().all(|tenant| tenant["phase"] == "Ready"), "{status}");

    // A second run finds everything there and passes as well.
    let again = home.run(&demo, &[]);
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));

    assert!(home.run(&binary("berth"), &["dev", "down"]).status.success());
    assert!(!home.path().exists());
    let left = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| fs::read(entry.ok()?.path().join("environ")).ok());
    let marker = home.path().display().to_string();
    assert_eq!(
        left.filter(|environment| String::from_utf8_lossy(environment).contains(&marker))
            .count(),
        0
    );
}

#[test]
fn every_example_parses() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let mut seen = 0;
    for folder in fs::read_dir(root).unwrap() {
        for file in fs::read_dir(folder.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "yaml") {
                continue;
            }
            for document in berth_tests::files::documents(&fs::read_to_string(&path).unwrap()) {
                let kind = document["kind"].as_str().unwrap_or_default().to_owned();
                let parsed = match kind.as_str() {
                    "TenantCluster" => serde_json::from_value::<berth_api::TenantCluster>(document).map(drop),
                    "HostNodePool" => serde_json::from_value::<berth_api::HostNodePool>(document).map(drop),
                    "" => panic!("{}: a document without a kind", path.display()),
                    _ => Ok(()),
                };
                parsed.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                seen += 1;
            }
        }
    }
    assert!(seen >= 9, "only {seen} documents were found");
}
