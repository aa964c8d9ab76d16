mod fake;

use super::*;
use super::{
    containers::{FOLDERS, WITHOUT_CONTAINER},
    content::Parts,
};
use fake::{Blob, Containerd};
use serde_json::json;
use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::symlink},
    time::Instant,
};

fn set(all: &[&str]) -> BTreeSet<String> {
    all.iter().map(ToString::to_string).collect()
}

/// The node of a [`Containerd`].
fn node() -> Node {
    Node::new("/nowhere", ["scrub-pod".to_owned()])
}

/// The same with folders of these containers.
fn machine(containers: &[&str]) -> (tempfile::TempDir, Node) {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::new(folder.path(), ["scrub-pod".to_owned()]);
    for id in containers {
        for all in FOLDERS {
            let volume = node.path(all).join(id).join("volumes/of-the-image");
            fs::create_dir_all(&volume).unwrap();
            fs::write(volume.join("weights"), "secret").unwrap();
        }
    }
    (folder, node)
}

/// One attempt, the first.
fn first_attempt(containerd: &Containerd) -> Result<String, Unclean> {
    let (_folder, node) = machine(&["scrub"]);
    remove(&node, containerd, &Keep::default(), &mut Before::default())
}

#[test]
fn images_of_a_tenant_go_and_those_of_the_platform_stay() {
    let mut containerd = Containerd::with_platform();
    containerd.pull("example.com/model:1", "model", 1);
    containerd.add_container("ended", "berth-vision-x", "example.com/model:1");
    first_attempt(&containerd).unwrap();
    assert_eq!(containerd.names(), set(&["q/dns:1", "q/pause:3", "q/scrub:1"]));
    assert_eq!(
        containerd.content(),
        set(&[
            "dns",
            "dns-config",
            "dns-layer",
            "pause",
            "pause-config",
            "pause-layer",
            "scrub",
            "scrub-config",
            "scrub-layer"
        ])
    );
    assert_eq!(
        containerd.containers(),
        set(&["dns", "dns-sandbox", "scrub", "scrub-sandbox"])
    );
}

#[test]
fn volumes_that_images_declare_go_with_their_containers() {
    let mut containerd = Containerd::with_platform();
    containerd.add_container("ended", "berth-vision-x", "example.com/model:1");
    let (_folder, node) = machine(&["dns", "ended", "scrub"]);
    remove(&node, &containerd, &Keep::default(), &mut Before::default()).unwrap();
    for all in FOLDERS {
        let folder = node.path(all);
        assert!(!folder.join("ended").exists(), "{all}");
        for stays in ["dns", "scrub"] {
            assert!(
                folder.join(stays).join("volumes/of-the-image/weights").exists(),
                "{all} {stays}"
            );
        }
    }
    assert!(!containerd.containers().contains("ended"));
}

#[test]
fn the_kubelet_is_awaited_where_folders_of_containers_are_unknown() {
    let mut containerd = Containerd::with_platform();
    containerd.add_container("ended", "berth-vision-x", "example.com/model:1");
    for folders in [&[] as &[&str], &["of-another-containerd"]] {
        let (_folder, node) = machine(folders);
        let attempt = remove(&node, &containerd, &Keep::default(), &mut Before::default());
        let error = attempt.unwrap_err().to_string();
        assert_eq!(
            error,
            "1 containers of tenants have ended, and the kubelet has not removed them: ended"
        );
        assert!(
            containerd.containers().contains("ended"),
            "without it, nothing would remove its folder"
        );
    }
    // The kubelet has removed it.
    let clean = Containerd::with_platform();
    let (_folder, node) = machine(&["of-another-containerd"]);
    assert!(remove(&node, &clean, &Keep::default(), &mut Before::default()).is_ok());
    assert!(node.path(FOLDERS[0]).join("of-another-containerd").exists());
}

/// What the first attempt has noted, so long ago that the time for containers to come is over.
fn noted_long_ago(folders: &[&str]) -> Before {
    let since = Instant::now().checked_sub(WITHOUT_CONTAINER).unwrap();
    Before {
        folders: Some((since, set(folders))),
        ..Before::default()
    }
}

#[test]
fn folders_that_containerd_has_forgotten_are_removed_after_a_while() {
    let containerd = Containerd::with_platform();
    let (_folder, node) = machine(&["dns", "forgotten", "scrub"]);
    let mut before = Before::default();
    for _ in 0..2 {
        let error = remove(&node, &containerd, &Keep::default(), &mut before).unwrap_err();
        assert_eq!(
            error.to_string(),
            "1 folders of containers are left that containerd does not have: forgotten"
        );
        assert!(node.path(FOLDERS[0]).join("forgotten").exists());
    }
    // Of a container of the platform that came after the first attempt.
    for all in FOLDERS {
        fs::create_dir(node.path(all).join("later")).unwrap();
    }
    let mut before = noted_long_ago(&["forgotten"]);
    remove(&node, &containerd, &Keep::default(), &mut before).unwrap();
    for all in FOLDERS {
        assert_eq!(fs::read_dir(node.path(all)).unwrap().count(), 3, "{all}");
        assert!(!node.path(all).join("forgotten").exists(), "{all}");
    }
}

#[test]
fn a_folder_stays_whose_container_was_being_created() {
    let mut containerd = Containerd::with_platform();
    let (_folder, node) = machine(&["coming", "scrub"]);
    assert!(remove(&node, &containerd, &Keep::default(), &mut Before::default()).is_err());
    containerd.add_container("coming", "kube-system", "q/dns:1");
    let mut before = noted_long_ago(&["coming"]);
    remove(&node, &containerd, &Keep::default(), &mut before).unwrap();
    assert!(node.path(FOLDERS[0]).join("coming/volumes").exists());
}

#[test]
fn links_of_a_tenant_lead_out_of_no_volume() {
    let mut containerd = Containerd::with_platform();
    containerd.add_container("ended", "berth-vision-x", "example.com/model:1");
    let (folder, node) = machine(&["ended", "scrub"]);
    let volume = node.path(FOLDERS[0]).join("ended/volumes/of-the-image");
    let outside = folder.path().join("etc");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("passwd"), "x").unwrap();
    symlink(&outside, volume.join("link")).unwrap();
    symlink(node.path(FOLDERS[0]).join("scrub"), volume.join("other")).unwrap();
    fs::create_dir(volume.join(OsStr::from_bytes(b"line\nand \xff"))).unwrap();
    remove(&node, &containerd, &Keep::default(), &mut Before::default()).unwrap();
    assert!(!node.path(FOLDERS[0]).join("ended").exists());
    assert!(outside.join("passwd").exists());
    assert!(
        node.path(FOLDERS[0])
            .join("scrub/volumes/of-the-image/weights")
            .exists()
    );
}

#[test]
fn what_a_tenant_has_pulled_costs_no_calls() {
    let calls = |levels: usize, containers: usize| {
        let mut containerd = Containerd::with_platform();
        containerd.pull("example.com/model:1", "model", levels);
        for number in 0..containers {
            containerd.add_container(&format!("ended-{number}"), "berth-vision-x", "example.com/model:1");
        }
        first_attempt(&containerd).unwrap();
        assert!(!containerd.content().contains("model"));
        containerd.calls()
    };
    let few = calls(2, 1);
    assert!(few < 30, "{few} calls");
    assert_eq!(calls(9_900, 1), few, "indexes of a tenant are not read");
    assert_eq!(calls(2, 150), few, "nor are its containers, one by one");
}

#[test]
fn a_tenants_name_for_an_image_of_the_platform_costs_few_calls() {
    // An index of the tenant's that ends in the platform's image: containerd gives its name to the next container with this image.
    let mut containerd = Containerd::with_platform();
    containerd.pull("a.example.com/dns:1", "long", 9_900);
    containerd.add_container("dns-2", "kube-system", "a.example.com/dns:1");
    first_attempt(&containerd).unwrap();
    assert!(!containerd.names().contains("a.example.com/dns:1"));
    assert!(!containerd.content().contains("long"));
    assert!(containerd.calls() < 200, "{} calls", containerd.calls());
}

#[test]
fn images_of_programs_that_are_away_for_the_scrub_stay() {
    let mut containerd = Containerd::with_platform();
    containerd.pull("q/plugin:1", "plugin", 1);
    containerd.pull("q/plugin:1-model", "model", 1);
    let keep = Keep::from_arguments(&["--keep-image=q/plugin:1".into()]);
    remove(&node(), &containerd, &keep, &mut Before::default()).unwrap();
    assert_eq!(
        containerd.names(),
        set(&["q/dns:1", "q/pause:3", "q/plugin:1", "q/scrub:1"])
    );
    let content = containerd.content();
    assert!(content.contains("plugin-layer") && !content.contains("model-layer"));
}

#[test]
fn a_tenants_name_for_an_image_of_the_platform_keeps_nothing_of_the_tenants() {
    let mut containerd = Containerd::with_platform();
    containerd.pull("example.com/model:1", "model", 0);
    for (container, image) in [("scrub", "scrub"), ("dns-sandbox", "pause")] {
        let index = format!("{image}-and-model");
        containerd.add_blob(&index, Blob::Index(vec![image.into(), "model".into()]));
        // It is the first of the image's names, so containerd gives it to new containers.
        containerd.name_as(container, &format!("a.example.com/{image}:1"), &index);
    }
    let keep = Keep::from_arguments(&["--keep=q/pause:3".into()]);
    remove(&node(), &containerd, &keep, &mut Before::default()).unwrap();
    assert_eq!(containerd.names(), set(&["q/dns:1", "q/pause:3", "q/scrub:1"]));
    let of_tenant = set(&[
        "model",
        "model-config",
        "model-layer",
        "scrub-and-model",
        "pause-and-model",
    ]);
    assert!(
        containerd.content().is_disjoint(&of_tenant),
        "{:?}",
        containerd.content()
    );
}

#[test]
fn content_of_a_pull_that_was_aborted_is_removed() {
    let mut containerd = Containerd::with_platform();
    containerd.add_blob("aborted", Blob::Layer);
    containerd.lease("2026-pull", true, &["aborted"]);
    containerd.lease("dns-sandbox", false, &[]);
    containerd.add_blob("unreferenced", Blob::Layer);
    first_attempt(&containerd).unwrap();
    assert!(containerd.content().is_disjoint(&set(&["aborted", "unreferenced"])));
    assert_eq!(containerd.leases(), set(&["dns-sandbox"]), "those of pods stay");
}

#[test]
fn content_that_stays_fails_the_step() {
    let mut containerd = Containerd::with_platform();
    containerd.add_blob("weights", Blob::Layer);
    containerd.lease("of-some-tool", false, &["weights"]);
    let error = first_attempt(&containerd).unwrap_err().to_string();
    assert!(
        error.contains("no kept image needs") && error.contains("weights"),
        "{error}"
    );
}

#[test]
fn content_that_the_platform_has_labelled_stays() {
    let mut containerd = Containerd::with_platform();
    for digest in ["cache", "of-a-tenant"] {
        containerd.add_blob(digest, Blob::Layer);
    }
    containerd.label("cache");
    containerd.lease("of-some-tool", false, &["cache"]);
    first_attempt(&containerd).unwrap();
    assert!(containerd.content().contains("cache"));
    assert!(!containerd.content().contains("of-a-tenant"));
    // The same tool keeps what a tenant has pulled.
    containerd.pull("example.com/model:1", "model", 0);
    containerd.lease("of-some-tool", false, &["cache", "model-layer"]);
    let error = first_attempt(&containerd).unwrap_err().to_string();
    assert!(error.contains("model-layer") && !error.contains("cache"), "{error}");
}

#[test]
fn a_label_on_a_manifest_keeps_nothing_else() {
    let mut containerd = Containerd::with_platform();
    containerd.pull("example.com/model:1", "model", 0);
    containerd.label("model");
    // A lease of a manifest keeps its layers as well.
    containerd.lease("of-some-tool", false, &["model"]);
    let error = first_attempt(&containerd).unwrap_err().to_string();
    assert!(error.contains("2 blobs") && error.contains("model-layer"), "{error}");
    assert!(!containerd.names().contains("example.com/model:1"));
}

#[test]
fn what_the_platform_pulls_meanwhile_is_left_alone() {
    let mut containerd = Containerd::with_platform();
    containerd.add_blob("coming", Blob::Layer);
    containerd.lease("2026-pull", true, &["coming"]);
    // An earlier attempt began before the pull.
    let mut before = Before {
        content: Some(set(&["model"])),
        ..Before::default()
    };
    remove(&node(), &containerd, &Keep::default(), &mut before).unwrap();
    assert!(containerd.content().contains("coming"));
    assert_eq!(containerd.leases(), set(&["2026-pull"]));
}

#[test]
fn a_runtime_without_this_pod_is_another_one() {
    let mut containerd = Containerd::with_platform();
    containerd.pull("example.com/model:1", "model", 1);
    let other = Node::new("/nowhere", ["another-pod".to_owned()]);
    assert!(remove(&other, &containerd, &Keep::default(), &mut Before::default()).is_err());
    assert!(
        containerd.names().contains("example.com/model:1"),
        "nothing was removed"
    );
}

#[test]
fn a_pod_of_the_platform_in_a_tenants_namespace_stays() {
    let mut containerd = Containerd::with_platform();
    containerd.pull("q/agent:1", "agent", 0);
    containerd.add_container("agent", "berth-vision-x", "q/agent:1");
    let node = Node::new("/nowhere", ["scrub-pod".to_owned(), "agent-pod".to_owned()]);
    remove(&node, &containerd, &Keep::default(), &mut Before::default()).unwrap();
    assert!(containerd.containers().contains("agent"));
    assert!(containerd.names().contains("q/agent:1"));
    first_attempt(&containerd).unwrap();
    assert!(
        !containerd.containers().contains("agent"),
        "another pod there is a tenant's"
    );
}

fn container(namespace: &str, kind: &str, image: &str, asked: &str) -> Container {
    let labels = json!({
        "io.kubernetes.pod.namespace": namespace, "io.kubernetes.pod.uid": "uid", "io.cri-containerd.kind": kind,
    });
    let spec = json!({"annotations": {"io.kubernetes.cri.image-name": asked}});
    Container::new(
        &node(),
        &json!({"ID": "c", "Image": image, "Labels": labels, "Spec": spec}),
    )
}

#[test]
fn images_of_the_platform_stay() {
    let names = set(&[
        "example.com/alias:1",
        "example.com/model:1",
        "example.com/unknown:1",
        "ghcr.io/berth-dev/x:1",
        "ghcr.io/x/scrub@sha256:cc",
        "node.example.com/tool:1",
        "quay.io/dns:1",
        "registry.k8s.io/pause:3",
        "sha256:abc",
    ]);
    let containers = [
        container("kube-system", "container", "example.com/alias:1", "quay.io/dns:1"),
        container(
            "berth-system",
            "container",
            "example.com/alias:1",
            "ghcr.io/x/scrub:1@sha256:cc",
        ),
        container("berth-system", "container", "example.com/unknown:1", "unknown"),
        container(
            "berth-vision-x",
            "container",
            "example.com/model:1",
            "example.com/model:1",
        ),
        container("berth-vision-x", "sandbox", "registry.k8s.io/pause:3", ""),
    ];
    let pinned = set(&["node.example.com/tool:1"]);
    let keep = Keep::from_arguments(&["--keep=ghcr.io/berth-dev/".into()]);
    let chosen = choose_names(&names, &containers, &pinned, &keep);
    assert_eq!(
        chosen.asked,
        [
            "ghcr.io/berth-dev/x:1",
            "ghcr.io/x/scrub@sha256:cc",
            "node.example.com/tool:1",
            "quay.io/dns:1"
        ]
    );
    assert_eq!(chosen.found, ["example.com/unknown:1", "registry.k8s.io/pause:3"]);
}

#[test]
fn targets_are_read_from_the_list() {
    let listed = "REF TYPE DIGEST SIZE PLATFORMS LABELS\n\
        quay.io/dns:1 application/vnd.oci.image.index.v1+json sha256:aa 1.2 MiB linux/amd64 -\n\
        sha256:cc     application/vnd.oci.image.index.v1+json sha256:aa 1.2 MiB linux/amd64 a=b\n";
    assert_eq!(targets(listed), set(&["sha256:aa"]));
}

#[test]
fn content_is_followed_through_an_index() {
    let mut containerd = Containerd::default();
    containerd.add_blob("index", Blob::Index(vec!["amd64".into(), "arm64".into()]));
    containerd.add_blob(
        "amd64",
        Blob::Manifest("config".into(), vec!["base".into(), "weights".into()]),
    );
    for digest in ["config", "base", "weights", "other"] {
        containerd.add_blob(digest, Blob::Layer);
    }
    assert_eq!(
        parts_of(&containerd, "index", &containerd.content()).unwrap(),
        Some(Parts {
            all: set(&["index", "amd64", "config", "base", "weights"]),
            configs: set(&["config"]),
        }),
        "what another platform needs was never here"
    );
    assert_eq!(containerd.calls(), 2, "layers are not read");
    assert!(parts_of(&containerd, "unreadable", &set(&["unreadable"])).is_err());
}

#[test]
fn what_is_too_long_for_a_manifest_has_no_parts() {
    let mut containerd = Containerd::default();
    containerd.add_blob("index", Blob::Index(vec!["weights".into()]));
    containerd.add_blob("weights", Blob::Layer);
    containerd.add_blob("other", Blob::Layer);
    assert_eq!(
        parts_of(&containerd, "index", &containerd.content()).unwrap(),
        Some(Parts {
            all: set(&["index", "weights"]),
            configs: BTreeSet::new(),
        })
    );
}
