//! The script of docs/guides/snapshots.md reads what Berth writes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail as tests do"
)]

use berth_snapshots::{Entry, Store};
use futures::stream;
use std::{convert::Infallible, fs, os::unix::fs::PermissionsExt, process::Command};
use tempfile::TempDir;

const GUIDE: &str = include_str!("../../../docs/guides/snapshots.md");
const LOCATION: &str = "team/vision/77aa";
/// An etcdctl that writes the value into a file with the name of the key.
const ETCDCTL: &str = "#!/bin/sh\ntest \"$1\" = put && cat > \"$(printf %s \"$2\" | tr / _)\"\n";

fn entry(key: &str, value: Vec<u8>) -> Entry {
    Entry { key: key.into(), value }
}

#[tokio::test]
async fn the_script_of_the_guide_puts_each_object_into_etcd() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["store", "programs", "found"] {
        fs::create_dir(path(name)).unwrap();
    }
    let (_, behind) = GUIDE.split_once("```python\n").unwrap();
    let (script, _) = behind.split_once("```").unwrap();
    fs::write(path("read.py"), script).unwrap();
    fs::write(path("programs/etcdctl"), ETCDCTL).unwrap();
    fs::set_permissions(path("programs/etcdctl"), fs::Permissions::from_mode(0o755)).unwrap();

    let every_byte: Vec<u8> = (0..=u8::MAX).collect();
    let entries = [
        entry("namespaces/kube-system", b"k8s\0\n".to_vec()),
        entry("pods/work/a", every_byte.repeat(1000)),
        entry("secrets/work/b", every_byte),
    ];
    let store = Store::from_url(&format!("file://{}", path("store").display()), []).unwrap();
    let source = stream::iter(entries.clone().into_iter().map(Ok::<_, Infallible>));
    store.write(LOCATION, source).await.unwrap();

    let search = std::env::var("PATH").unwrap_or_default();
    let read = Command::new("python3")
        .arg(path("read.py"))
        .arg(path("store").join(LOCATION))
        .env("PATH", format!("{}:{search}", path("programs").display()))
        .current_dir(path("found"))
        .output()
        .unwrap();
    assert!(read.status.success(), "{read:?}");
    assert_eq!(fs::read_dir(path("found")).unwrap().count(), entries.len());
    for Entry { key, value } in &entries {
        let name = format!("_snapshot_{}", std::str::from_utf8(key).unwrap().replace('/', "_"));
        assert!(fs::read(path("found").join(&name)).unwrap() == *value, "{name}");
    }
}
