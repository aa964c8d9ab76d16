//! The artifacts of a release, of a program of this build: twice the same bytes, and every part can be read.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail as tests do"
)]

use berth_local::images::{
    catalog::{BERTH_PROGRAMS, archive_name, berth_reference},
    host_architecture,
};
use berth_tests::{
    files::{binary, documents},
    release::{PUBLIC_KEY, VERSION, make_key, run, write},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs::File,
    io::Read as _,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// A folder with the programs of a release. All are the smallest one: the others only take longer.
fn link_programs(folder: PathBuf) -> PathBuf {
    std::fs::create_dir(&folder).unwrap();
    for name in BERTH_PROGRAMS.iter().chain([&"berth"]) {
        symlink(binary("berth-scrub"), folder.join(name)).unwrap();
    }
    folder
}

/// Small files of a tar file by path, and the lengths of all.
fn read_tar(path: &Path) -> (BTreeMap<String, Vec<u8>>, BTreeMap<String, u64>) {
    let (mut contents, mut lengths) = (BTreeMap::new(), BTreeMap::new());
    for entry in tar::Archive::new(File::open(path).unwrap()).entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        let length = entry.size();
        assert!(lengths.insert(name.clone(), length).is_none(), "{name} is there twice");
        if length < 1 << 20 {
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            contents.insert(name, content);
        }
    }
    (contents, lengths)
}

/// Reads an OCI layout: returns the digest that its index names, and the manifests behind it.
fn read_layout(path: &Path) -> (String, Vec<Value>) {
    let (contents, lengths) = read_tar(path);
    let json = |name: &str| -> Value { serde_json::from_slice(&contents[name]).unwrap() };
    assert_eq!(json("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}));
    let blob_name = |descriptor: &Value| {
        let name = format!("blobs/{}", descriptor["digest"].as_str().unwrap().replace(':', "/"));
        assert_eq!(Some(&lengths[&name]), descriptor["size"].as_u64().as_ref(), "{name}");
        name
    };
    let top = json("index.json")["manifests"][0].clone();
    let document = json(&blob_name(&top));
    let manifests = match document["manifests"].as_array() {
        Some(manifests) => manifests.iter().map(|manifest| json(&blob_name(manifest))).collect(),
        None => vec![document],
    };
    for manifest in &manifests {
        blob_name(&manifest["config"]);
        for layer in manifest["layers"].as_array().unwrap() {
            blob_name(layer);
        }
    }
    (top["digest"].as_str().unwrap().to_owned(), manifests)
}

#[test]
fn artifacts_are_the_same_twice_and_can_be_read() {
    let dir = TempDir::new().unwrap();
    let key = make_key(dir.path());

    let programs = link_programs(dir.path().join("programs"));
    let first = write(&programs, &dir.path().join("first"), None);
    let second = write(&programs, &dir.path().join("second"), Some(&key));
    let sums = std::fs::read_to_string(first.join("SHA256SUMS")).unwrap();
    assert_eq!(std::fs::read_to_string(second.join("SHA256SUMS")).unwrap(), sums);
    run(&first, "sha256sum", &["--check", "--strict", "--quiet", "SHA256SUMS"]);
    run(&second, "sha256sum", &["--check", "--strict", "--quiet", "SHA256SUMS"]);
    let names: Vec<&str> = sums.lines().filter_map(|line| line.split("  ").nth(1)).collect();
    for entry in std::fs::read_dir(&first).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            name == "SHA256SUMS" || names.contains(&name.as_str()),
            "{name} has no checksum"
        );
    }

    // The signature, as the guide checks it.
    let signature = run(
        &second,
        "openssl",
        &["base64", "-d", "-A", "-in", "SHA256SUMS.sig", "-out", "signature"],
    );
    assert_eq!(signature, "");
    let public_key = format!("../../{PUBLIC_KEY}");
    let verify = [
        "dgst",
        "-sha256",
        "-verify",
        &public_key,
        "-signature",
        "signature",
        "SHA256SUMS",
    ];
    assert!(run(&second, "openssl", &verify).contains("Verified OK"));

    check_images(&first);
    check_install(&first);
    check_bill(&first);
    let listing = run(
        &first,
        "tar",
        &["-tzf", &format!("berth-{VERSION}-linux-{}.tar.gz", host_architecture())],
    );
    assert_eq!(listing, "LICENSE\nberth\n");
}

fn check_images(folder: &Path) {
    let list = std::fs::read_to_string(folder.join("images.txt")).unwrap();
    for program in BERTH_PROGRAMS {
        let reference = berth_reference(program);
        let (digest, manifests) = read_layout(&folder.join(archive_name(&reference)));
        assert_eq!(manifests.len(), 1);
        assert_eq!(manifests[0]["layers"].as_array().unwrap().len(), 2);
        assert!(
            list.lines().any(|line| line == format!("{reference}@{digest}")),
            "{reference}: {list}"
        );
    }
    let (_, manifests) = read_layout(&folder.join(format!("chart-berth-{VERSION}.oci.tar")));
    let package = std::fs::metadata(folder.join(format!("berth-{VERSION}.tgz"))).unwrap();
    assert_eq!(manifests[0]["layers"][0]["size"], package.len());
}

/// What people without Helm apply has everything, and nothing that Helm runs when it uninstalls.
fn check_install(folder: &Path) {
    let text = std::fs::read_to_string(folder.join("install.yaml")).unwrap();
    let objects: Vec<Value> = documents(&text).into_iter().filter(|one| !one.is_null()).collect();
    assert_eq!(objects[0]["kind"], "Namespace");
    // Jobs that clean nodes are privileged.
    assert_eq!(
        objects[0]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"],
        "privileged"
    );
    let find = |kind: &str, name: &str| {
        let mut objects = objects.iter();
        objects
            .find(|object| object["kind"] == kind && object["metadata"]["name"] == name)
            .unwrap_or_else(|| panic!("{kind} {name} is missing"))
    };
    for definition in berth_api::crd::all() {
        find("CustomResourceDefinition", &definition.metadata.name.unwrap());
    }
    let control = find("Deployment", "berth-control");
    let image = control["spec"]["template"]["spec"]["containers"][0]["image"]
        .as_str()
        .unwrap();
    assert!(
        image.starts_with(&format!("{}@sha256:", berth_reference("berth-control"))),
        "{image}"
    );
    for object in &objects {
        assert!(object["metadata"]["annotations"]["helm.sh/hook"].is_null(), "{object}");
    }
}

fn check_bill(folder: &Path) {
    let bill = std::fs::read(folder.join(format!("berth-{VERSION}.cdx.json"))).unwrap();
    let bill: Value = serde_json::from_slice(&bill).unwrap();
    assert_eq!(
        (&bill["bomFormat"], &bill["specVersion"]),
        (&json!("CycloneDX"), &json!("1.5"))
    );
    let components = bill["components"].as_array().unwrap();
    let find = |name: &str| components.iter().find(|component| component["name"] == name);
    let kube = find("kube").expect("kube is linked");
    assert_eq!(kube["hashes"][0]["alg"], "SHA-256");
    assert!(kube["purl"].as_str().unwrap().starts_with("pkg:cargo/kube@"));
    assert!(find("berth-syncer").is_some());
    // A library of the tests only.
    assert!(find("insta").is_none());
}
