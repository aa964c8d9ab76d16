//! A containerd in memory, with as much of its tool as the step uses.

use super::set;
use crate::{error::Unclean, images::containerd::ctr::Ctr};
use serde_json::json;
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
};

/// A blob of the content store.
#[derive(Clone, Debug)]
pub(super) enum Blob {
    /// With digests of manifests.
    Index(Vec<String>),
    /// With digests of the configuration and of layers.
    Manifest(String, Vec<String>),
    Layer,
}

impl Blob {
    fn parts(&self) -> Vec<String> {
        match self {
            Self::Index(manifests) => manifests.clone(),
            Self::Manifest(config, layers) => layers.iter().chain([config]).cloned().collect(),
            Self::Layer => Vec::new(),
        }
    }

    /// Its text; none of a layer, which is too long.
    fn text(&self) -> String {
        let digests = |all: &[String]| all.iter().map(|digest| json!({"digest": digest})).collect::<Vec<_>>();
        match self {
            Self::Index(manifests) => json!({"manifests": digests(manifests)}).to_string(),
            Self::Manifest(config, layers) => {
                json!({"config": {"digest": config}, "layers": digests(layers)}).to_string()
            }
            Self::Layer => String::new(),
        }
    }
}

#[derive(Clone, Debug)]
struct FakeContainer {
    image: String,
    /// Name by which its pod asks for the image. Sandboxes have none.
    asked: Option<String>,
    labels: BTreeMap<&'static str, String>,
}

#[derive(Default)]
struct Lease {
    expires: bool,
    content: BTreeSet<String>,
}

#[derive(Default)]
struct State {
    containers: BTreeMap<String, FakeContainer>,
    /// Targets of images by their names.
    images: BTreeMap<String, String>,
    content: BTreeMap<String, Blob>,
    /// Digests of content with the label by which the platform keeps it.
    labelled: BTreeSet<String>,
    leases: BTreeMap<String, Lease>,
}

#[derive(Default)]
pub(super) struct Containerd {
    state: RefCell<State>,
    calls: Cell<usize>,
}

impl Containerd {
    /// With the pod of the scrub and one of the platform.
    pub(super) fn with_platform() -> Self {
        let mut containerd = Self::default();
        containerd.pull("q/pause:3", "pause", 0);
        for (name, namespace) in [("dns", "kube-system"), ("scrub", "berth-system")] {
            let image = format!("q/{name}:1");
            containerd.pull(&image, name, 0);
            containerd.add_container(name, namespace, &image);
            containerd.add_container(&format!("{name}-sandbox"), namespace, "q/pause:3");
        }
        containerd
    }

    /// An image whose manifest is below this number of indexes. All its blobs have names that begin with that of the first.
    pub(super) fn pull(&mut self, name: &str, target: &str, indexes: usize) {
        let digest = |level: usize| match level {
            0 => target.to_owned(),
            level => format!("{target}-{level}"),
        };
        for level in 0..indexes {
            self.add_blob(&digest(level), Blob::Index(vec![digest(level + 1)]));
        }
        let (config, layer) = (format!("{target}-config"), format!("{target}-layer"));
        self.add_blob(&digest(indexes), Blob::Manifest(config.clone(), vec![layer.clone()]));
        self.add_blob(&config, Blob::Layer);
        self.add_blob(&layer, Blob::Layer);
        self.state.get_mut().images.insert(name.to_owned(), target.to_owned());
    }

    pub(super) fn add_blob(&mut self, digest: &str, blob: Blob) {
        self.state.get_mut().content.insert(digest.to_owned(), blob);
    }

    /// A further name of an image, as containerd has it for a container whose pod asks for another one.
    pub(super) fn name_as(&mut self, container: &str, name: &str, target: &str) {
        let state = self.state.get_mut();
        state.images.insert(name.to_owned(), target.to_owned());
        state.containers.get_mut(container).unwrap().image = name.to_owned();
    }

    pub(super) fn label(&mut self, digest: &str) {
        self.state.get_mut().labelled.insert(digest.to_owned());
    }

    /// A container of a pod whose UID is its ID with `-pod`. One whose ID ends with `-sandbox` is a sandbox.
    pub(super) fn add_container(&mut self, id: &str, namespace: &str, image: &str) {
        let kind = if id.ends_with("-sandbox") {
            "sandbox"
        } else {
            "container"
        };
        let labels = BTreeMap::from([
            ("io.kubernetes.pod.namespace", namespace.to_owned()),
            ("io.kubernetes.pod.uid", format!("{id}-pod")),
            ("io.cri-containerd.kind", kind.to_owned()),
        ]);
        let image = image.to_owned();
        let asked = (kind == "container").then(|| image.clone());
        let container = FakeContainer { image, asked, labels };
        self.state.get_mut().containers.insert(id.to_owned(), container);
    }

    pub(super) fn lease(&mut self, id: &str, expires: bool, content: &[&str]) {
        let content = set(content);
        self.state
            .get_mut()
            .leases
            .insert(id.to_owned(), Lease { expires, content });
    }

    pub(super) fn names(&self) -> BTreeSet<String> {
        self.state.borrow().images.keys().cloned().collect()
    }

    pub(super) fn content(&self) -> BTreeSet<String> {
        self.state.borrow().content.keys().cloned().collect()
    }

    pub(super) fn containers(&self) -> BTreeSet<String> {
        self.state.borrow().containers.keys().cloned().collect()
    }

    pub(super) fn leases(&self) -> BTreeSet<String> {
        self.state.borrow().leases.keys().cloned().collect()
    }

    /// How often the tool was run.
    pub(super) fn calls(&self) -> usize {
        self.calls.get()
    }
}

impl Ctr for Containerd {
    fn run(&self, arguments: &[&str]) -> Result<String, Unclean> {
        self.calls.set(self.calls.get() + 1);
        let mut state = self.state.borrow_mut();
        let lines = match arguments {
            ["containers", "ls", "-q", filters @ ..] => state.list_containers(filters),
            ["containers", "info", id] => return Ok(state.container_info(id)),
            ["containers", "rm", ids @ ..] => {
                state.containers.retain(|id, _| !ids.contains(&id.as_str()));
                Vec::new()
            }
            ["images", "ls", "-q", filters @ ..] => state.list_images(filters).into_keys().collect(),
            ["images", "ls", filters @ ..] => {
                let row = |(name, target): (String, String)| format!("{name} index {target} 1.0 MiB linux/amd64 -");
                let rows = state.list_images(filters).into_iter().map(row);
                std::iter::once("REF TYPE DIGEST SIZE PLATFORMS LABELS".to_owned())
                    .chain(rows)
                    .collect()
            }
            ["images", "rm", "--sync", names @ ..] => {
                state.images.retain(|name, _| !names.contains(&name.as_str()));
                state.collect_garbage();
                Vec::new()
            }
            ["content", "ls", "-q"] => state.content.keys().cloned().collect(),
            ["content", "ls", "-q", r#"labels."berth.dev/keep""#] => {
                let labelled = state.labelled.iter();
                labelled
                    .filter(|digest| state.content.contains_key(*digest))
                    .cloned()
                    .collect()
            }
            ["leases", "create"] => {
                let lease = Lease {
                    expires: true,
                    ..Lease::default()
                };
                state.leases.insert("created".into(), lease);
                vec!["created".into()]
            }
            ["leases", "ls", "-q", r#"labels."containerd.io/gc.expire""#] => {
                let expiring = state.leases.iter().filter(|(_, lease)| lease.expires);
                expiring.map(|(id, _)| id.clone()).collect()
            }
            ["leases", "delete", "--sync", ids @ ..] => {
                state.leases.retain(|id, _| !ids.contains(&id.as_str()));
                state.collect_garbage();
                Vec::new()
            }
            other => panic!("the step does not call ctr {other:?}"),
        };
        Ok(lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect())
    }

    fn read_manifest(&self, digest: &str) -> Result<String, Unclean> {
        self.calls.set(self.calls.get() + 1);
        let state = self.state.borrow();
        let blob = state.content.get(digest);
        blob.map(Blob::text).ok_or_else(|| Unclean::Program(digest.to_owned()))
    }
}

impl State {
    /// Containers that any of the filters selects; without filters all.
    fn list_containers(&self, filters: &[&str]) -> Vec<String> {
        let is_listed = |container: &FakeContainer| {
            filters.is_empty() || filters.iter().any(|filter| matches(filter, &container.labels))
        };
        let listed = self.containers.iter().filter(|(_, container)| is_listed(container));
        listed.map(|(id, _)| id.clone()).collect()
    }

    fn container_info(&self, id: &str) -> String {
        let container = &self.containers[id];
        let spec = json!({"annotations": {"io.kubernetes.cri.image-name": container.asked}});
        json!({"ID": id, "Image": container.image, "Labels": container.labels, "Spec": spec}).to_string()
    }

    /// Images that any of the filters selects; without filters all. None is pinned.
    fn list_images(&self, filters: &[&str]) -> BTreeMap<String, String> {
        let is_listed = |name: &String, target: &String| {
            let own = [format!("name=={name:?}"), format!("target.digest=={target:?}")];
            filters.is_empty() || filters.iter().any(|filter| own.iter().any(|own| own == filter))
        };
        let listed = self.images.iter().filter(|(name, target)| is_listed(name, target));
        listed.map(|(name, target)| (name.clone(), target.clone())).collect()
    }

    /// Removes what neither an image nor a lease needs.
    fn collect_garbage(&mut self) {
        let leased = self.leases.values().flat_map(|lease| lease.content.iter());
        let mut next: Vec<String> = self.images.values().chain(leased).cloned().collect();
        let mut needed = BTreeSet::new();
        while let Some(digest) = next.pop() {
            if let Some(blob) = self.content.get(&digest)
                && needed.insert(digest)
            {
                next.extend(blob.parts());
            }
        }
        self.content.retain(|digest, _| needed.contains(digest));
    }
}

/// Whether a filter selects something with these labels: selectors, separated by commas, all of which must hold.
fn matches(filter: &str, labels: &BTreeMap<&'static str, String>) -> bool {
    filter.split(',').all(|selector| {
        let selector = selector.strip_prefix("labels.\"").unwrap();
        let (key, test) = selector.split_once('"').unwrap();
        let (operator, wanted) = test.split_at(2);
        let wanted = wanted.trim_matches('"');
        let value = labels.get(key).map(String::as_str).unwrap_or_default();
        match (operator, wanted.strip_prefix('^'), wanted.strip_suffix('$')) {
            ("==", ..) => value == wanted,
            ("!=", ..) => value != wanted,
            ("~=", Some(start), None) => value.starts_with(start),
            ("~=", None, Some(end)) => value.ends_with(end),
            other => panic!("the step does not use {other:?}"),
        }
    })
}
