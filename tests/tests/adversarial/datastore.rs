//! Datastore crossing: a tenant's etcd certificate opens the keys below the tenant's own prefix and nothing else.

use crate::{objects::say, shared::attacker};
use berth_control::control_plane::API_SERVER;
use berth_etcd::{
    Client, ConnectOptions, Status,
    api::{
        AuthDisableRequest, AuthUserAddRequest, AuthUserDeleteRequest, AuthUserGrantRoleRequest, AuthUserListRequest,
        CompactionRequest, Compare, DefragmentRequest, DeleteRangeRequest, LeaseLeasesRequest, PutRequest,
        RangeRequest, RequestOp, SnapshotRequest, TxnRequest, WatchCreateRequest, WatchRequest,
        compare::{CompareResult, CompareTarget, TargetUnion},
        request_op::Request,
        watch_request::RequestUnion,
    },
    prefix_end,
};
use berth_tests::{
    shell::Shell,
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use futures::stream;
use std::{fmt::Debug, path::Path, sync::Arc, time::Duration};

/// Only ends requests that hang: a busy etcd neither refuses nor allows them.
const TIMEOUT: Duration = Duration::from_secs(90);

/// The end of a range that has none; as its beginning, the first of all keys.
const OPEN: &[u8] = b"\0";

/// An etcd client with the certificate of a tenant's API server, as an attacker in that process would have it.
fn as_tenant(host: &TestCluster, tenant: &Tenant) -> Client {
    let files = host.home().tenants().join(tenant.id.hash()).join(API_SERVER);
    let read = |name: &str| std::fs::read_to_string(files.join(name)).unwrap();
    Client::new(&ConnectOptions {
        endpoints: &[host.datastore().endpoint],
        ca_certificate: &read("datastore-ca.crt"),
        certificate: &read("datastore-client.crt"),
        key: &read("datastore-client.key"),
        timeout: TIMEOUT,
    })
    .unwrap()
}

fn refused<T: Debug>(what: &str, result: Result<T, Status>) {
    match result {
        Err(status) => {
            assert!(
                status.message().contains("permission denied"),
                "{what}: refused for another reason: {status}"
            );
        }
        other => panic!("{what} was not refused: {other:?}"),
    }
}

/// A read of the keys from `key` to before `end`; without an end, of one key.
fn range(key: impl Into<Vec<u8>>, end: impl Into<Vec<u8>>) -> RangeRequest {
    RangeRequest {
        key: key.into(),
        range_end: end.into(),
        ..RangeRequest::default()
    }
}

/// A deletion of the same keys.
fn delete(key: impl Into<Vec<u8>>, end: impl Into<Vec<u8>>) -> DeleteRangeRequest {
    DeleteRangeRequest {
        key: key.into(),
        range_end: end.into(),
        ..DeleteRangeRequest::default()
    }
}

fn operation(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

/// The first answer to a watch; none if the stream ends without one.
async fn watch(client: &Client, key: &[u8], end: &[u8]) -> Result<Option<berth_etcd::api::WatchResponse>, Status> {
    let create = WatchCreateRequest {
        key: key.to_vec(),
        range_end: end.to_vec(),
    };
    let request = WatchRequest {
        request_union: Some(RequestUnion::CreateRequest(create)),
    };
    client
        .watches()
        .watch(stream::iter([request]))
        .await?
        .into_inner()
        .message()
        .await
}

#[expect(clippy::too_many_lines, reason = "a list of attacks")]
pub(crate) async fn a_tenants_etcd_certificate_opens_its_own_keys_only(host: Arc<TestCluster>) {
    let (ca, cb) = (cluster("etcd-a", &[]), cluster("etcd-b", &[]));
    let (a, b) = tokio::join!(
        Tenant::create(&host, "adv-etcd", &ca),
        Tenant::create(&host, "adv-etcd", &cb)
    );
    let client = as_tenant(&host, &a);
    let (mut keys, mut auth) = (client.keys(), client.auth());
    let (own, foreign) = (format!("{}/", a.id.etcd_prefix()), format!("{}/", b.id.etcd_prefix()));
    let key = format!("{foreign}namespaces/default");
    let foreign_end = prefix_end(&foreign);

    let all = keys
        .range(RangeRequest {
            count_only: true,
            ..range(own.as_str(), prefix_end(&own))
        })
        .await
        .unwrap();
    assert!(all.get_ref().count > 0, "its own keys are open to it");

    refused("get", keys.range(range(key.as_str(), "")).await);
    refused(
        "get of the prefix",
        keys.range(range(foreign.as_str(), foreign_end.clone())).await,
    );
    refused("get of everything", keys.range(range(OPEN, OPEN)).await);
    refused(
        "open-ended get from its own prefix",
        keys.range(range(own.as_str(), OPEN)).await,
    );
    refused("range across prefixes", keys.range(range("/berth/", "/berth0")).await);
    let put = |prev_kv| PutRequest {
        key: key.clone().into(),
        value: "x".into(),
        prev_kv,
    };
    refused("put", keys.put(put(false)).await);
    refused("put that asks for the previous value", keys.put(put(true)).await);
    refused("delete", keys.delete_range(delete(key.as_str(), "")).await);
    refused("delete of everything", keys.delete_range(delete(OPEN, OPEN)).await);
    refused(
        "delete that asks for the previous value",
        keys.delete_range(DeleteRangeRequest {
            prev_kv: true,
            ..delete(key.as_str(), "")
        })
        .await,
    );

    let exists = Compare {
        result: CompareResult::Greater.into(),
        target: CompareTarget::Version.into(),
        key: key.clone().into(),
        target_union: Some(TargetUnion::Version(0)),
    };
    let get = || operation(Request::RequestRange(range(key.as_str(), "")));
    let nested = TxnRequest {
        success: vec![operation(Request::RequestPut(put(false)))],
        ..TxnRequest::default()
    };
    for (what, compare, success, failure) in [
        ("txn that compares", vec![exists], vec![], vec![]),
        ("txn that gets", vec![], vec![get()], vec![]),
        ("txn that gets otherwise", vec![], vec![], vec![get()]),
        (
            "txn within a txn",
            vec![],
            vec![operation(Request::RequestTxn(nested))],
            vec![],
        ),
    ] {
        let transaction = TxnRequest {
            compare,
            success,
            failure,
        };
        refused(what, keys.txn(transaction).await);
    }

    for (what, from, end) in [
        ("watch of a key", key.as_bytes(), &[][..]),
        ("watch of a prefix", foreign.as_bytes(), &foreign_end),
        ("watch of everything", OPEN, OPEN),
        ("open-ended watch from its own prefix", own.as_bytes(), OPEN),
    ] {
        // The refusal comes as the cancellation of the watch, or as no watch at all.
        // Less than the client's own limit, whose end would look like a refusal.
        match tokio::time::timeout(TIMEOUT / 2, watch(&client, from, end)).await {
            Ok(Ok(Some(response))) => assert!(response.canceled, "{what}: {response:?}"),
            Ok(Err(_) | Ok(None)) => {}
            Err(tokio::time::error::Elapsed { .. }) => panic!("{what} is open"),
        }
    }

    refused("compaction", keys.compact(CompactionRequest { revision: 1 }).await);
    refused(
        "a list of leases",
        client.leases().lease_leases(LeaseLeasesRequest {}).await,
    );
    refused("a list of users", auth.user_list(AuthUserListRequest {}).await);
    let root_role = AuthUserGrantRoleRequest {
        user: a.id.etcd_user(),
        role: "root".into(),
    };
    refused("a role for itself", auth.user_grant_role(root_role).await);
    let thief = AuthUserAddRequest {
        name: "thief".into(),
        password: "x".into(),
        options: None,
    };
    refused("a new user", auth.user_add(thief).await);
    let foreign_user = AuthUserDeleteRequest { name: b.id.etcd_user() };
    refused("a user's deletion", auth.user_delete(foreign_user).await);
    refused("authentication off", auth.auth_disable(AuthDisableRequest {}).await);
    leases_with_keys_of_others(&host, &a, &b).await;
    let mut maintenance = client.maintenance();
    // A stream: the refusal is its first message.
    let mut snapshot = maintenance.snapshot(SnapshotRequest {}).await.unwrap().into_inner();
    refused("a snapshot", snapshot.message().await);
    refused("defragmentation", maintenance.defragment(DefragmentRequest {}).await);

    assert!(b.client.apiserver_version().await.is_ok(), "B is unharmed");
    tokio::join!(a.delete(&host), b.delete(&host));
    // Without its user the certificate is useless, although it has not expired.
    assert!(
        keys.range(range(own.as_str(), "")).await.is_err(),
        "the certificate of a deleted tenant still opens etcd"
    );
}

/// A shell in which etcdctl has the certificate of a tenant's API server. It knows calls that Berth's own client does not have.
fn shell_of(host: &TestCluster, tenant: &Tenant) -> Shell {
    let files = host.home().tenants().join(tenant.id.hash()).join(API_SERVER);
    let mut shell = Shell::within(host.home().root());
    shell.set("ETCDCTL_ENDPOINTS", &host.datastore().endpoint);
    for (name, file) in [
        ("CACERT", "datastore-ca.crt"),
        ("CERT", "datastore-client.crt"),
        ("KEY", "datastore-client.key"),
    ] {
        shell.set(&format!("ETCDCTL_{name}"), files.join(file));
    }
    shell
}

/// Who can revoke a lease deletes all keys that have it, and who can put a key of its own under one keeps others from revoking it.
async fn leases_with_keys_of_others(host: &TestCluster, attacker: &Tenant, victim: &Tenant) {
    let (of_attacker, of_victim) = (shell_of(host, attacker), shell_of(host, victim));
    // It prints `lease 694d5765fc71500b granted with TTL(3600s)`.
    let granted = of_victim.run("etcdctl lease grant 3600").await;
    let lease = granted.split(' ').nth(1).unwrap();
    let key = format!("{}/attacked", victim.id.etcd_prefix());
    of_victim.run(&format!("etcdctl put --lease={lease} {key} x")).await;
    for command in [
        format!("lease revoke {lease}"),
        format!("lease keep-alive --once {lease}"),
        format!("put --lease={lease} {}/attack x", attacker.id.etcd_prefix()),
        "member remove 1".to_owned(),
        "endpoint hashkv".to_owned(),
    ] {
        let refusal = of_attacker.attempt(&format!("etcdctl {command}")).await;
        let refusal = refusal.expect_err(&command);
        assert!(refusal.contains("permission denied"), "{refusal}");
    }
    let kept = of_victim.run(&format!("etcdctl get --print-value-only {key}")).await;
    assert_eq!(kept.trim(), "x");
    of_victim.run(&format!("etcdctl lease revoke {lease}")).await;
}

/// A member of etcd asks another one this.
const MEMBERS: &[u8] = b"GET /members HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\r\n";
/// A client asks this, without a right to any key.
const VERSION: &[u8] = b"GET /version HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\r\n";

/// Class: another port. At the peer port of etcd one could pass for a member and write to all keys.
pub(crate) async fn a_tenants_etcd_certificate_opens_no_peer_port(host: Arc<TestCluster>) {
    let tenant = attacker(&host).await;
    let datastore = host.datastore();
    let peers = std::fs::read(&datastore.peer_ca_cert).unwrap();
    let clients = std::fs::read(&datastore.ca_cert).unwrap();
    let client_address = datastore.endpoint.replace("https://", "");
    let folder = host.home().tenants().join(tenant.id.hash()).join(API_SERVER);
    let read = |certificate: &Path, key: &Path| (std::fs::read(certificate).unwrap(), std::fs::read(key).unwrap());
    let own = read(
        &folder.join("datastore-client.crt"),
        &folder.join("datastore-client.key"),
    );
    let peer = read(&datastore.peer_cert, &datastore.peer_key);

    for (address, authority, (certificate, key), question) in [
        (&datastore.peer_address, &peers, &peer, MEMBERS),
        (&client_address, &clients, &own, VERSION),
    ] {
        until(&format!("{address} answers"), SOON, async || {
            let answer = say(address, authority, Some((certificate, key)), question).await;
            let answer = answer.map_err(|error| error.to_string())?;
            if answer.starts_with("HTTP/1.1 200") {
                Ok(())
            } else {
                Err(answer)
            }
        })
        .await;
    }

    for (what, address, authority, identity, question) in [
        (
            "a tenant's certificate at the peer port",
            &datastore.peer_address,
            &peers,
            Some(&own),
            MEMBERS,
        ),
        (
            "no certificate at the peer port",
            &datastore.peer_address,
            &peers,
            None,
            MEMBERS,
        ),
        (
            "a peer's certificate at the client port",
            &client_address,
            &clients,
            Some(&peer),
            VERSION,
        ),
    ] {
        let identity = identity.map(|(certificate, key)| (certificate.as_slice(), key.as_slice()));
        // A refusal ends the connection after the handshake of the client.
        if let Ok(answer) = say(address, authority, identity, question).await {
            assert!(answer.is_empty(), "{what} is answered: {answer}");
        }
    }
}
