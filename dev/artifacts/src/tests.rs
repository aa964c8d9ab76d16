use std::os::unix::fs::symlink;

use berth_process::binaries::{self, Binary};
use serde_json::Value;
use tempfile::TempDir;

use super::*;

/// A release of programs that are headers only, for two architectures. Static programs need no libraries.
fn release(dir: &Path) -> Release {
    let root = dir.join("root");
    fs::create_dir_all(&root).unwrap();
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap();
    for name in ["charts", "LICENSE", "Cargo.lock"] {
        symlink(checkout.join(name), root.join(name)).unwrap();
    }
    let mut programs = BTreeMap::new();
    for (architecture, machine) in [("amd64", 62), ("arm64", 183)] {
        let folder = dir.join(architecture);
        fs::create_dir_all(&folder).unwrap();
        for name in catalog::BERTH_PROGRAMS.iter().chain([&CLI]) {
            fs::write(folder.join(name), elf::tests::program(machine, true)).unwrap();
        }
        programs.insert(architecture.to_owned(), folder);
    }
    Release {
        root,
        programs,
        epoch: 1_700_000_000,
        // Tests that render the chart use helm, see `tests/tests/artifacts.rs`.
        helm: "/nonexistent/helm".into(),
        signing_key: None,
    }
}

#[test]
fn programs_must_exist_and_fit() {
    let dir = TempDir::new().unwrap();
    let release = release(dir.path());
    check_programs(&release).unwrap();
    let other = if host_architecture() == "amd64" {
        "arm64"
    } else {
        "amd64"
    };
    let machine = if other == "arm64" { 183 } else { 62 };
    let file = release.programs[other].join("berth-scrub");
    for (content, message) in [
        (
            elf::tests::program(if machine == 62 { 183 } else { 62 }, true),
            "this program is for",
        ),
        (elf::tests::program(machine, false), "unknown-linux-musl"),
        (b"#!/bin/sh\n".to_vec(), "no program for Linux"),
    ] {
        fs::write(&file, content).unwrap();
        let error = check_programs(&release).unwrap_err().to_string();
        assert!(error.contains("berth-scrub") && error.contains(message), "{error}");
    }
    fs::remove_file(&file).unwrap();
    let error = check_programs(&release).unwrap_err().to_string();
    assert!(
        error.starts_with("cannot read") && error.contains("berth-scrub"),
        "{error}"
    );
}

#[test]
fn images_are_listed_with_the_digests_of_this_release() {
    let digests = BTreeMap::from([(catalog::berth_reference("berth-syncer"), "sha256:1".to_owned())]);
    let list = list_images(&digests);
    let expected = format!("ghcr.io/berth-dev/berth-syncer:{VERSION}@sha256:1");
    assert!(list.lines().any(|line| line == expected), "{list}");
    assert!(list.lines().any(|line| line == catalog::ETCD), "{list}");
    let by_repository = repositories(&digests);
    assert_eq!(by_repository["ghcr.io/berth-dev/berth-syncer"], "sha256:1");
}

#[test]
fn the_chart_is_packaged_with_the_digests_of_the_images() {
    let dir = TempDir::new().unwrap();
    let release = release(dir.path());
    let digests = write_images(&release, "2023-11-14T22:13:20Z", dir.path()).unwrap();
    assert_eq!(digests.len(), catalog::BERTH_PROGRAMS.len());
    let files = chart::read(&release.root.join("charts/berth"), &repositories(&digests)).unwrap();
    let package = package::tar_gz(&files, release.epoch).unwrap();
    let listed = package::tests::list(&package);
    let text = |path: &str| {
        let (_, _, _, content) = listed.iter().find(|(name, ..)| name == path).unwrap();
        String::from_utf8(content.clone()).unwrap()
    };
    assert!(
        listed
            .iter()
            .all(|(path, _, time, _)| path.starts_with("berth/") && *time == release.epoch)
    );
    let values: Value = serde_saphyr::from_str(&text("berth/values.yaml")).unwrap();
    for (program, pointer) in [
        ("berth-control", "/control/image/digest"),
        ("berth-syncer", "/tenants/syncerImage/digest"),
        ("berth-scrub", "/nodes/scrubImage/digest"),
        ("berth-gateway", "/gateway/image/digest"),
    ] {
        let digest = values.pointer(pointer).and_then(Value::as_str);
        assert_eq!(
            digest,
            digests.get(&catalog::berth_reference(program)).map(String::as_str)
        );
    }
    assert_eq!(values.pointer("/datastore/etcd/image/digest"), Some(&"".into()));
    // The definitions are in it.
    assert!(text("berth/files/crds/tenantclusters.berth.dev.yaml").contains("CustomResourceDefinition"));
}

/// The whole of it, where helm is built.
#[test]
fn all_artifacts_are_the_same_twice() {
    let Ok(helm) = binaries::find_pinned(Binary::Helm) else {
        eprintln!("not run: helm is missing; run `make kubernetes`");
        return;
    };
    let dir = TempDir::new().unwrap();
    let release = Release {
        helm,
        ..release(dir.path())
    };
    let metadata = bill::tests::metadata();
    let [one, other] =
        ["one", "other"].map(|output| write_with(&release, &metadata, &dir.path().join(output)).unwrap());
    let mut names: Vec<_> = fs::read_dir(&one)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names.len(), 12, "{names:?}");
    for name in names {
        assert_eq!(
            fs::read(one.join(&name)).unwrap(),
            fs::read(other.join(&name)).unwrap(),
            "{name:?}"
        );
    }
    let install = fs::read_to_string(one.join("install.yaml")).unwrap();
    assert!(
        !install.contains("helm.sh/hook"),
        "a Job that runs at an uninstallation would run at once"
    );
    assert!(install.contains("helm.sh/resource-policy: keep"));
    assert!(
        install.contains(
            "\nmetadata:\n  name: berth-system\n  labels:\n    pod-security.kubernetes.io/enforce: privileged\n---\n"
        ),
        "Jobs that clean nodes are privileged"
    );
    // A second release in the same place.
    assert_eq!(write_with(&release, &metadata, &dir.path().join("one")).unwrap(), one);
}
