use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;

use aws_lc_rs::digest::{Context, SHA256};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

/// An image of a file that is not a program, for tests that never run it.
fn image(dir: &TempDir, content: &str) -> Image {
    let program = dir.path().join("program");
    fs::write(&program, content).unwrap();
    Image::new("example.com/tools/program:v1", &program, "/usr/local/bin/program").with_arguments(&["--verbose"])
}

/// The files of a tar file.
fn files(tar: &[u8]) -> BTreeMap<String, Vec<u8>> {
    tar::Archive::new(tar)
        .entries()
        .unwrap()
        .map(|entry| {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            (entry.path().unwrap().display().to_string(), content)
        })
        .collect()
}

fn blob<'a>(archive: &'a BTreeMap<String, Vec<u8>>, digest: &Value) -> &'a [u8] {
    let path = format!("blobs/{}", digest.as_str().unwrap().replace(':', "/"));
    &archive[&path]
}

fn json(content: &[u8]) -> Value {
    serde_json::from_slice(content).unwrap()
}

#[test]
fn an_archive_is_an_image_layout_with_correct_digests() {
    let dir = TempDir::new().unwrap();
    let archive = image(&dir, "text").archive_in(dir.path()).unwrap();
    let layout = files(&fs::read(&archive.path).unwrap());

    for (path, content) in &layout {
        if let Some(hex) = path.strip_prefix("blobs/sha256/") {
            let mut hash = Context::new(&SHA256);
            hash.update(content);
            assert_eq!(layer::digest(hash), format!("sha256:{hex}"));
        }
    }
    let described = &json(&layout["index.json"])["manifests"][0];
    assert_eq!(described["digest"], archive.digest);
    assert_eq!(
        described["annotations"]["io.containerd.image.name"],
        "example.com/tools/program:v1"
    );
    let manifest = json(blob(&layout, &described["digest"]));
    let config = json(blob(&layout, &manifest["config"]["digest"]));
    let layers = manifest["layers"].as_array().unwrap();
    let digests: Vec<_> = layers.iter().map(|layer| layer["digest"].clone()).collect();
    assert_eq!(config["rootfs"]["diff_ids"], json!(digests));
    assert_eq!(config["config"]["User"], "65532:65532");
    assert_eq!(config["config"]["Entrypoint"], json!(["/usr/local/bin/program"]));
    assert_eq!(config["config"]["Cmd"], json!(["--verbose"]));
    assert_eq!(files(blob(&layout, &digests[1]))["usr/local/bin/program"], b"text");
}

#[test]
fn volumes_are_in_the_configuration() {
    let dir = TempDir::new().unwrap();
    let plain = image(&dir, "text");
    let mut with_volume = plain.clone();
    with_volume.volumes.insert("/data".into());
    let volumes = [plain, with_volume].map(|image| {
        let archive = image.archive_in(dir.path()).unwrap();
        let layout = files(&fs::read(&archive.path).unwrap());
        let manifest = json(blob(&layout, &json!(archive.digest)));
        json(blob(&layout, &manifest["config"]["digest"]))["config"]["Volumes"].clone()
    });
    assert_eq!(volumes, [Value::Null, json!({"/data": {}})]);
}

#[test]
fn base_layer_has_the_files_of_every_image() {
    let layer = base_layer().unwrap();
    let mut bytes = Vec::new();
    layer.write(&mut bytes).unwrap();
    let mut archive = tar::Archive::new(bytes.as_slice());
    let entries: BTreeSet<_> = archive
        .entries()
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let header = entry.header();
            let path = entry.path().unwrap().display().to_string();
            (path, header.mode().unwrap(), header.uid().unwrap())
        })
        .collect();
    for (path, mode, owner) in [
        ("etc", 0o755, 0),
        ("etc/passwd", 0o644, 0),
        ("home/nonroot", 0o700, 65532),
        ("tmp", 0o1777, 0),
    ] {
        assert!(entries.contains(&(path.to_owned(), mode, owner)), "{path}: {entries:?}");
    }
}

#[test]
fn the_same_files_give_the_same_bytes() {
    let (one, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let [one, other] = [&one, &other].map(|dir| image(dir, "text").archive_in(dir.path()).unwrap());
    assert_eq!(one.digest, other.digest);
    assert_eq!(fs::read(one.path).unwrap(), fs::read(other.path).unwrap());
}

#[test]
fn an_archive_that_is_there_is_not_written_again() {
    let dir = TempDir::new().unwrap();
    let inode = |archive: &Archive| fs::metadata(&archive.path).unwrap().ino();
    let first = image(&dir, "text").archive_in(dir.path()).unwrap();
    let number = inode(&first);
    // The file is written anew with the same content, as a compiler does.
    let second = image(&dir, "text").archive_in(dir.path()).unwrap();
    assert_eq!((&second, inode(&second)), (&first, number));
    let other = image(&dir, "changed").archive_in(dir.path()).unwrap();
    assert_ne!((&other.digest, &other.path), (&first.digest, &first.path));
}

#[test]
fn old_archives_of_an_image_are_removed() {
    let dir = TempDir::new().unwrap();
    let cache = dir.path().join("images");
    let mut other = image(&dir, "text");
    other.reference = "example.com/tools/program:v1-debug".into();
    let other = other.archive_in(&cache).unwrap();
    let archives: Vec<_> = (0..6)
        .map(|number| image(&dir, &format!("version {number}")).archive_in(&cache).unwrap())
        .collect();
    assert_eq!(fs::read_dir(&cache).unwrap().count(), 4 + 1);
    assert!(archives[5].path.exists() && !archives[0].path.exists());
    assert!(other.path.exists());
}

#[test]
fn a_program_that_is_missing_is_named() {
    let dir = TempDir::new().unwrap();
    let absent = dir.path().join("absent");
    let error = Image::new("example.com/absent:v1", &absent, "/absent")
        .archive_in(dir.path())
        .unwrap_err();
    assert!(error.to_string().contains(&absent.display().to_string()), "{error}");
}

#[test]
fn images_are_named_as_upstream_names_them() {
    assert_eq!(
        catalog::kubernetes_reference(binaries::Binary::KubeScheduler, "v1.36.4"),
        "registry.k8s.io/kube-scheduler:v1.36.4"
    );
    let berth = catalog::for_berth(Path::new("/opt/berth"));
    assert!(berth[0].reference.starts_with("ghcr.io/berth-dev/berth-control:0."));
    assert_eq!(berth[1].entrypoint, ["/usr/local/bin/berth-syncer"]);
    // The tags are the versions that the images are made of.
    for (reference, version) in [
        (catalog::ETCD, format!("{}-0", &berth_kubernetes_versions::ETCD[1..])),
        (catalog::COREDNS, berth_kubernetes_versions::COREDNS.to_owned()),
        (
            catalog::METRICS_SERVER,
            berth_kubernetes_versions::METRICS_SERVER.to_owned(),
        ),
    ] {
        assert_eq!(reference.rsplit_once(':').map(|(_, tag)| tag), Some(version.as_str()));
    }
}

#[test]
fn links_keep_their_targets() {
    let dir = TempDir::new().unwrap();
    let mut image = image(&dir, "text");
    image.links.insert("/bin/sh".into(), "/bin/busybox".into());
    let layer = image.program_layer().unwrap();
    let mut bytes = Vec::new();
    layer.write(&mut bytes).unwrap();
    let mut archive = tar::Archive::new(&*bytes);
    let mut entries = archive.entries().unwrap().map(Result::unwrap);
    let link = entries.find(|entry| entry.path().unwrap().ends_with("sh")).unwrap();
    assert!(link.header().entry_type().is_symlink());
    assert_eq!(link.link_name().unwrap().unwrap().to_str(), Some("/bin/busybox"));
}

#[test]
fn an_index_has_an_image_for_each_architecture_and_shared_layers_once() {
    let dir = TempDir::new().unwrap();
    let images = ["amd64", "arm64"].map(|architecture| {
        let mut image = image(&dir, "same");
        image.architecture = architecture.to_owned();
        image.created = Some("2026-11-23T10:00:00Z".into());
        image.labels = BTreeMap::from([("org.opencontainers.image.title".into(), "program".into())]);
        image
    });
    let path = dir.path().join("out/program.tar");
    let archive = write_index(&images, &path).unwrap();
    let bytes = fs::read(&path).unwrap();
    let layout = files(&bytes);
    // Names of a tar file may repeat: these do not.
    assert_eq!(tar::Archive::new(&*bytes).entries().unwrap().count(), layout.len());
    // Two files of the layout, the index, two layers, and a manifest and a configuration for each architecture.
    assert_eq!(layout.len(), 2 + 1 + 2 + 4);

    let top = &json(&layout["index.json"])["manifests"][0];
    assert_eq!(
        (&top["digest"], &top["mediaType"]),
        (&json!(archive.digest), &json!(layout::INDEX))
    );
    assert_eq!(
        top["annotations"]["io.containerd.image.name"],
        "example.com/tools/program:v1"
    );
    let index = json(blob(&layout, &top["digest"]));
    for (manifest, architecture) in index["manifests"].as_array().unwrap().iter().zip(["amd64", "arm64"]) {
        assert_eq!(
            manifest["platform"],
            json!({"architecture": architecture, "os": "linux"})
        );
        let manifest = json(blob(&layout, &manifest["digest"]));
        let config = json(blob(&layout, &manifest["config"]["digest"]));
        assert_eq!(config["architecture"], architecture);
        assert_eq!(config["created"], "2026-11-23T10:00:00Z");
        assert_eq!(config["config"]["Labels"]["org.opencontainers.image.title"], "program");
    }
    write_index(&images, &path).unwrap();
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

#[test]
fn an_installation_needs_images_with_files_of_different_names() {
    let images = catalog::for_installation(&["v1.37.1", "v1.36.4"]);
    let files: BTreeSet<String> = images
        .iter()
        .map(|image| catalog::archive_name(&image.reference))
        .collect();
    assert_eq!(files.len(), images.len());
    for file in [
        "etcd-3.6.16-0.oci.tar",
        "coredns-v1.14.7.oci.tar",
        "kube-apiserver-v1.36.4.oci.tar",
    ] {
        assert!(files.contains(file), "{file}: {files:?}");
    }
}
