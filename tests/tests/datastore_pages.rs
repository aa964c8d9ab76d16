//! What a tenant stores is read and cleared page by page in a real etcd, and compared with a plain read of everything.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail as tests do"
)]

use berth_api::names::TenantId;
use berth_control::datastore::{
    Datastore, DatastoreConfig, DatastoreError, KeyRange, RestoreEnd, StoredEntry, TenantContents as _,
};
use berth_etcd::{
    Client, ConnectOptions,
    api::{DeleteRangeRequest, PutRequest, RangeRequest},
    prefix_end,
};
use berth_pki::{CertificateAuthority, LeafRequest, Usage};
use berth_process::{
    binaries::{Binary, find_pinned},
    free_port,
};
use berth_snapshots::Entry;
use berth_tests::{
    processes::{ending_with_parent, spawn_logged},
    wait::{SOON, until},
};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    net::Ipv4Addr,
    path::Path,
    time::Duration,
};
use tempfile::TempDir;
use tokio::process::Child;

const DAY: Duration = Duration::from_secs(24 * 3600);
const RANGES: [KeyRange; 2] = [KeyRange::Events, KeyRange::Others];
/// Keys with small values. One of 50 is followed by one with a large value.
const SMALL: usize = 2000;
const LARGE: usize = 1 << 20;
/// Bytes of the beginning of a value that is kept.
const HEAD: usize = 128;

/// Keys without the prefix of the tenant, and their values, in their order.
type Objects = Vec<(Vec<u8>, Vec<u8>)>;

/// A member of its own, and clients of it. It ends with this value, and with the process that started it.
struct Etcd {
    datastore: Datastore,
    client: Client,
    tenant: TenantId,
    _process: Child,
    _folder: TempDir,
}

impl Etcd {
    async fn start() -> Self {
        let folder = TempDir::with_prefix("berth-datastore-").unwrap();
        let authority = CertificateAuthority::create("etcd", DAY).unwrap();
        let (process, endpoints) = spawn(folder.path(), &authority);
        let mut root = LeafRequest::new(Usage::Client, DAY);
        root.common_name = "root".into();
        let root = authority.issue(&root).unwrap();
        let client = Client::new(&ConnectOptions {
            endpoints: &endpoints,
            ca_certificate: authority.cert_pem(),
            certificate: &root.cert_pem,
            key: &root.key_pem,
            timeout: SOON,
        });
        let config = DatastoreConfig {
            endpoints,
            ca_cert: folder.path().join("ca.crt"),
            ca_key: folder.path().join("ca.key"),
        };
        let etcd = Self {
            datastore: Datastore::open(&config).unwrap(),
            client: client.unwrap(),
            tenant: TenantId::new("vision", "6f2c"),
            _process: process,
            _folder: folder,
        };
        until("etcd answers", SOON, async || {
            let created = etcd.datastore.create_tenant(&etcd.tenant).await;
            created.map_err(|error| error.to_string())
        })
        .await;
        etcd
    }

    async fn put(&self, tenant: &TenantId, key: &[u8], value: Vec<u8>) {
        let request = PutRequest {
            key: [prefix(tenant).as_bytes(), key].concat(),
            value,
            ..PutRequest::default()
        };
        self.client.keys().put(request).await.unwrap();
    }

    async fn delete(&self, key: &[u8]) {
        let request = DeleteRangeRequest {
            key: [prefix(&self.tenant).as_bytes(), key].concat(),
            ..DeleteRangeRequest::default()
        };
        self.client.keys().delete_range(request).await.unwrap();
    }

    /// Everything of the tenant, with one request.
    async fn read_plainly(&self) -> Objects {
        let prefix = prefix(&self.tenant);
        let request = RangeRequest {
            key: prefix.clone().into_bytes(),
            range_end: prefix_end(&prefix),
            ..RangeRequest::default()
        };
        let mut keys = self.client.keys().max_decoding_message_size(usize::MAX);
        let answer = keys.range(request).await.unwrap().into_inner();
        let pairs = answer.kvs.into_iter();
        pairs
            .map(|pair| (pair.key.strip_prefix(prefix.as_bytes()).unwrap().to_vec(), pair.value))
            .collect()
    }

    /// What a snapshot has, if keys are written and deleted once its first page is read.
    async fn read_contents(&self) -> Objects {
        let first = self.datastore.read_contents(&self.tenant, None, None).await.unwrap();
        let revision = first.revision;
        self.put(&self.tenant, b"secrets/team/000500-new", b"new".to_vec())
            .await;
        self.put(&self.tenant, b"secrets/team/000501", b"new".to_vec()).await;
        self.delete(b"secrets/team/000502").await;
        let pair = |entry: StoredEntry| (entry.key, entry.value);
        let mut found: Objects = first.entries.into_iter().map(pair).collect();
        let mut next = first.next;
        while let Some(start) = next {
            let page = self
                .datastore
                .read_contents(&self.tenant, Some(&start), Some(revision))
                .await
                .unwrap();
            found.extend(page.entries.into_iter().map(pair));
            next = page.next;
        }
        found
    }

    /// The beginnings of the values in a folder.
    async fn read_heads(&self, folder: &str) -> Objects {
        let (mut after, mut found) = (None::<Vec<u8>>, Vec::new());
        loop {
            let mut is_enough = |_: &[u8]| false;
            let page = self
                .datastore
                .read_heads(&self.tenant, folder, after.as_deref(), &mut is_enough)
                .await
                .unwrap();
            after = page.heads.last().map(|(name, _)| name.clone());
            found.extend(page.heads);
            if !page.has_more {
                return found;
            }
        }
    }

    /// The number of keys in a range, and their bytes.
    async fn read_sizes(&self, range: KeyRange) -> (u64, u64) {
        let (mut next, mut keys, mut bytes) = (None::<Vec<u8>>, 0, 0);
        loop {
            let page = self
                .datastore
                .read_sizes(&self.tenant, range, next.as_deref())
                .await
                .unwrap();
            keys += page.keys;
            bytes += page.bytes;
            next = page.next;
            if next.is_none() {
                return (keys, bytes);
            }
        }
    }

    /// Deletes everything of the tenant, as a restore does.
    async fn clear(&self) {
        let record = self.datastore.write_restore(&self.tenant, b"{}".to_vec(), None).await;
        let record = record.unwrap();
        for range in RANGES {
            let mut next = None::<Vec<u8>>;
            loop {
                next = self
                    .datastore
                    .clear_contents(&self.tenant, range, next.as_deref(), record)
                    .await
                    .unwrap();
                if next.is_none() {
                    break;
                }
            }
        }
    }
}

/// Starts etcd. Returns its endpoints as well. The certificate and the key of the authority are in the folder.
fn spawn(folder: &Path, authority: &CertificateAuthority) -> (Child, Vec<String>) {
    let mut server = LeafRequest::new(Usage::Both, DAY);
    server.common_name = "etcd".into();
    server.ip_addresses = vec![Ipv4Addr::LOCALHOST.into()];
    let server = authority.issue(&server).unwrap();
    for (name, text) in [
        ("ca.crt", authority.cert_pem()),
        ("ca.key", authority.key_pem()),
        ("etcd.crt", server.cert_pem.as_str()),
        ("etcd.key", server.key_pem.as_str()),
    ] {
        fs::write(folder.join(name), text).unwrap();
    }
    let url = format!("https://127.0.0.1:{}", free_port().unwrap());
    let peer_url = format!("http://127.0.0.1:{}", free_port().unwrap());
    let file = |name: &str| folder.join(name).display().to_string();
    let mut command = ending_with_parent(&find_pinned(Binary::Etcd).unwrap());
    command
        .arg(format!("--data-dir={}", file("data")))
        .arg(format!("--listen-client-urls={url}"))
        .arg(format!("--advertise-client-urls={url}"))
        .arg(format!("--listen-peer-urls={peer_url}"))
        .arg(format!("--initial-advertise-peer-urls={peer_url}"))
        .arg(format!("--initial-cluster=default={peer_url}"))
        .arg(format!("--cert-file={}", file("etcd.crt")))
        .arg(format!("--key-file={}", file("etcd.key")))
        .arg(format!("--trusted-ca-file={}", file("ca.crt")))
        .args(["--client-cert-auth", "--unsafe-no-fsync", "--log-level=error"]);
    let process = spawn_logged(&mut command, File::create(folder.join("log")).unwrap());
    (process, vec![url])
}

fn prefix(tenant: &TenantId) -> String {
    format!("{}/", tenant.etcd_prefix())
}

/// What the tenant stores: keys at the borders of folders, of bytes that are no text, and as long as nobody else has them, and values of many sizes.
fn objects() -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut objects = BTreeMap::new();
    let mut add = |name: &[u8], bytes: usize| drop(objects.insert(name.to_vec(), vec![b'v'; bytes]));
    for number in 0..SMALL {
        add(format!("secrets/team/{number:06}").as_bytes(), number % 300);
        if number % 50 == 49 {
            add(format!("secrets/team/{number:06}-large").as_bytes(), LARGE);
        }
    }
    for number in 0..40 {
        let long = "n".repeat(60 << 10);
        add(format!("secrets/long/{number:06}{long}").as_bytes(), 1);
    }
    for number in 0..24 {
        // The last one of each eight is long. etcd accepts no request with two of these.
        let suffix = "n".repeat(if number % 4 == 3 { 1126 << 10 } else { 1 });
        add(format!("widgets/team/{number:06}{suffix}").as_bytes(), 1);
    }
    for number in 0..30 {
        add(format!("events/team/{number:06}").as_bytes(), 100);
    }
    for name in [
        b"alone".as_slice(),
        b"example.com/gadgets/a",
        b"secrets",
        b"secrets/",
        b"secrets/team/\xff",
        b"secrets/\xff\xff",
        b"secrets0",
        b"\xff",
        b"\xff/\xff",
    ] {
        add(name, 3);
    }
    objects
}

/// Without the objects themselves, which are long.
#[track_caller]
fn assert_same(found: &Objects, expected: &Objects, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let other = found
        .iter()
        .zip(expected)
        .position(|(found, expected)| found != expected);
    assert_eq!(other, None, "{what}: this one is another");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_key_is_read_once_whatever_its_size_and_all_are_cleared() {
    let etcd = Etcd::start().await;
    let neighbour = TenantId::new("language", "91ab");
    etcd.put(&neighbour, b"secrets/team/000000", b"v".to_vec()).await;
    let stored = objects();
    for (key, value) in &stored {
        etcd.put(&etcd.tenant, key, value.clone()).await;
    }
    let stored: Objects = stored.into_iter().collect();
    let mut plain = etcd.read_plainly().await;
    assert_same(&plain, &stored, "plain");

    plain.retain(|(key, _)| !KeyRange::is_of_event(key));
    assert_same(&etcd.read_contents().await, &plain, "contents");

    // With what was written meanwhile.
    let plain = etcd.read_plainly().await;
    for folder in ["secrets/", "widgets/", "events/", "none/"] {
        let inside = plain.iter().filter_map(|(key, value)| {
            let name = key.strip_prefix(folder.as_bytes())?;
            let head = value.get(..HEAD).unwrap_or(value);
            Some((name.to_vec(), head.to_vec()))
        });
        let expected: Objects = inside.collect();
        assert_same(&etcd.read_heads(folder).await, &expected, folder);
    }

    let length = prefix(&etcd.tenant).len();
    for range in RANGES {
        let of_range = |key: &[u8]| KeyRange::is_of_event(key) == (range == KeyRange::Events);
        let inside = plain.iter().filter(|(key, _)| of_range(key));
        let sizes: Vec<usize> = inside.map(|(key, value)| length + key.len() + value.len()).collect();
        let expected = (sizes.len() as u64, sizes.iter().sum::<usize>() as u64);
        assert_eq!(etcd.read_sizes(range).await, expected, "{range:?}");
    }

    etcd.clear().await;
    assert_eq!(etcd.datastore.count_keys(&etcd.tenant).await.unwrap(), 0);
    assert_eq!(etcd.datastore.count_keys(&neighbour).await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_ends_with_its_record_and_both_go_with_the_tenant() {
    let etcd = Etcd::start().await;
    let (datastore, tenant) = (&etcd.datastore, &etcd.tenant);
    let end = |bytes| RestoreEnd::new("2026-11-30T12:00:00Z".parse().unwrap(), bytes);
    let stored = async || {
        let text = datastore.read_restore_end(tenant).await.unwrap();
        text.map(|text| RestoreEnd::parse(&text).unwrap())
    };
    let begin = async || datastore.write_restore(tenant, b"{}".to_vec(), None).await.unwrap();
    assert_eq!(stored().await, None);
    let record = begin().await;
    let other = datastore.delete_restore(tenant, record - 1, &end(1)).await;
    assert!(matches!(other, Err(DatastoreError::Superseded)));
    assert_eq!(stored().await, None);
    datastore.delete_restore(tenant, record, &end(2)).await.unwrap();
    assert_eq!(stored().await, Some(end(2)));
    assert_eq!(datastore.read_restore(tenant, None).await.unwrap(), None);
    let record = begin().await;
    assert_eq!(stored().await, Some(end(2)), "until the next one ends");
    let last = Entry {
        key: b"namespaces/kube-system".to_vec(),
        value: b"v".to_vec(),
    };
    datastore.end_restore(tenant, last, record, &end(3)).await.unwrap();
    assert_eq!(stored().await, Some(end(3)));
    assert_eq!(datastore.count_keys(tenant).await.unwrap(), 1);
    datastore.delete_tenant(tenant).await.unwrap();
    assert_eq!(datastore.describe_tenant(tenant).await.unwrap(), [""; 0]);
}
