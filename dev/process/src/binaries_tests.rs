use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::*;
use berth_kubernetes_versions::KUBERNETES_PREVIOUS;

/// A script that answers `--version` as Kubernetes binaries do.
fn fake(path: &Path, version: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("#!/bin/sh\necho Kubernetes {version}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn places(root: &Path) -> Places {
    Places {
        bin_dir: Some(root.join("bin")),
        assets: Some(root.join("assets")),
        cache: Some(root.join("cache/bin")),
    }
}

#[test]
fn the_first_place_wins() {
    let root = tempfile::tempdir().unwrap();
    let places = places(root.path());
    let in_order = [
        "cache/bin/kubernetes/v1.37.1/kubectl",
        "assets/kubectl",
        "bin/kubectl",
        "bin/v1.37.1/kubectl",
    ];
    for path in in_order {
        fake(&root.path().join(path), "v1.37.1");
        assert_eq!(places.find(Binary::Kubectl, "v1.37.1"), Ok(root.path().join(path)));
    }
}

#[test]
fn a_binary_without_a_version_in_its_path_must_report_the_right_one() {
    let root = tempfile::tempdir().unwrap();
    let places = places(root.path());
    fake(&root.path().join("assets/kube-apiserver"), "v1.36.4");
    assert_eq!(
        places.find(Binary::KubeApiserver, "v1.36.4"),
        Ok(root.path().join("assets/kube-apiserver"))
    );
    let refused = places.find(Binary::KubeApiserver, "v1.37.1").unwrap_err().to_string();
    assert!(refused.contains("which is v1.36.4"), "{refused}");
    // etcd works with every Kubernetes version.
    fake(&root.path().join("assets/etcd"), "");
    assert_eq!(places.find(Binary::Etcd, ETCD), Ok(root.path().join("assets/etcd")));
}

#[test]
fn missing_binary_is_named_with_the_remedy() {
    let root = tempfile::tempdir().unwrap();
    let message = places(root.path()).find(Binary::Kwok, KWOK).unwrap_err().to_string();
    for part in [
        "kwok v0.8.0 not found at",
        "assets/kwok",
        "cache/bin/kwok/v0.8.0/kwok",
        "make kubernetes",
    ] {
        assert!(message.contains(part), "{part} is not in: {message}");
    }
}

#[test]
fn versions_come_newest_first() {
    let root = tempfile::tempdir().unwrap();
    for version in ["v1.9.1", "v1.36.4", "v1.37.1"] {
        fake(
            &root
                .path()
                .join("cache/bin/kubernetes")
                .join(version)
                .join("kube-apiserver"),
            version,
        );
    }
    fake(&root.path().join("assets/kube-apiserver"), "v1.35.6");
    assert_eq!(
        places(root.path()).available_versions(),
        ["v1.37.1", "v1.36.4", "v1.35.6", "v1.9.1"]
    );
}

#[test]
fn the_cache_is_in_the_home_directory_unless_configured() {
    let home = |name: &str| (name == "HOME").then(|| OsString::from("/home/me"));
    assert_eq!(
        Places::from_variables(home).cache,
        Some("/home/me/.cache/berth/bin".into())
    );
    let configured = |name: &str| (name == "BERTH_CACHE").then(|| OsString::from("/srv/berth"));
    assert_eq!(Places::from_variables(configured).cache, Some("/srv/berth/bin".into()));
}

#[test]
fn pinned_versions_are_those_that_are_built() {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hack/kubernetes");
    let previous = built.join("kubernetes").join(KUBERNETES_PREVIOUS).join("go.mod");
    assert!(previous.is_file(), "{} is missing", previous.display());
    for binary in [
        Binary::KubeApiserver,
        Binary::KubeControllerManager,
        Binary::KubeScheduler,
        Binary::Kubectl,
        Binary::Etcd,
        Binary::Etcdctl,
        Binary::Etcdutl,
        Binary::Kwok,
        Binary::Kubelet,
        Binary::KubeProxy,
        Binary::Agnhost,
        Binary::Pause,
        Binary::DraTestDriver,
        Binary::Containerd,
        Binary::ContainerdShim,
        Binary::Ctr,
        Binary::Runc,
        Binary::HostLocal,
        Binary::Loopback,
        Binary::Portmap,
        Binary::CalicoCni,
        Binary::CalicoFelix,
        Binary::Coredns,
        Binary::MetricsServer,
        Binary::Helm,
    ] {
        let module = built.join(binary.component()).join(binary.pinned_version());
        let read = |file: &str| fs::read_to_string(module.join(file));
        let commands = read("tools.go").unwrap_or_else(|error| panic!("{}: {error}", module.display()));
        // What `hack/kubernetes/build` calls them: the package's last element, or what a comment says.
        let name = binary.name();
        let in_go = ["/NAME\"", "/NAME/v3\"", "// binary: NAME"].map(|end| end.replace("NAME", name));
        let in_c = format!("c-program = {name} ");
        assert!(
            commands.lines().any(|line| in_go.iter().any(|end| line.ends_with(end)))
                || read("build.conf").is_ok_and(|settings| settings.contains(&in_c)),
            "{} does not list {binary}",
            module.display()
        );
    }
}
