//! Files of this repository and its build.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::{Path, PathBuf};

/// A binary of this workspace, built in the same profile as this test.
///
/// # Panics
/// It was not built: `make test` builds it, `cargo test` alone does not.
pub fn binary(name: &str) -> PathBuf {
    let mut folder = std::env::current_exe().unwrap();
    folder.pop();
    if folder.ends_with("deps") {
        folder.pop();
    }
    let path = folder.join(name);
    assert!(
        path.exists(),
        "{} is missing; run `make build` first, or `make test`",
        path.display()
    );
    path
}

/// Lets this process have as many open files as it may: each connection is one.
pub fn raise_file_limit() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, raised).unwrap();
}

/// Objects of one kind in a file of `examples/`.
pub fn example<K: kube::Resource<DynamicType = ()> + serde::de::DeserializeOwned>(path: &str) -> Vec<K> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(path);
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    documents(&text)
        .into_iter()
        .filter(|document| document["kind"] == K::kind(&()).as_ref())
        .map(|document| serde_json::from_value(document).unwrap())
        .collect()
}

/// The documents of a YAML file.
pub fn documents(text: &str) -> Vec<serde_json::Value> {
    serde_saphyr::from_multiple(text).unwrap()
}
