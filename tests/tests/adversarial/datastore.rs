//! Datastore crossing: a tenant's etcd certificate opens the keys below the tenant's own prefix and nothing else.

use berth_control::control_plane::API_SERVER;
use berth_tests::{
    tenant::{Tenant, cluster},
    world::World,
};
use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, DeleteOptions, Error, GetOptions, Identity, PutOptions,
    TlsOptions, Txn, TxnOp, WatchOptions,
};
use std::{fmt::Debug, sync::Arc, time::Duration};

/// Only ends what hangs: a busy etcd is not one that refuses, or allows.
const PATIENCE: Duration = Duration::from_secs(90);

/// An etcd client with the certificate of a tenant's API server, as whoever broke into that process would have it.
async fn as_tenant(world: &World, tenant: &Tenant) -> Client {
    let files = world.host.home().tenants().join(tenant.id.hash()).join(API_SERVER);
    let read = |name: &str| std::fs::read(files.join(name)).unwrap();
    let tls = TlsOptions::new()
        .ca_certificate(Certificate::from_pem(read("datastore-ca.crt")))
        .identity(Identity::from_pem(
            read("datastore-client.crt"),
            read("datastore-client.key"),
        ));
    let options = ConnectOptions::new().with_tls(tls).with_timeout(PATIENCE);
    Client::connect([world.host.datastore().endpoint], Some(options))
        .await
        .unwrap()
}

fn refused<T: Debug>(what: &str, result: Result<T, Error>) {
    match result {
        Err(Error::GRpcStatus(status)) => {
            assert!(
                status.message().contains("permission denied"),
                "{what}: refused for another reason: {status}"
            );
        }
        other => panic!("{what} was not refused: {other:?}"),
    }
}

#[expect(clippy::too_many_lines, reason = "a list of attacks")]
pub(crate) async fn a_tenants_etcd_certificate_opens_its_own_keys_only(world: Arc<World>) {
    let (ca, cb) = (cluster("etcd-a", &[]), cluster("etcd-b", &[]));
    let (a, b) = tokio::join!(
        Tenant::create(&world, "adv-etcd", &ca),
        Tenant::create(&world, "adv-etcd", &cb)
    );
    let mut client = as_tenant(&world, &a).await;
    let (own, foreign) = (format!("{}/", a.id.etcd_prefix()), format!("{}/", b.id.etcd_prefix()));
    let key = format!("{foreign}namespaces/default");

    let all = client
        .get(own.as_str(), Some(GetOptions::new().with_prefix().with_count_only()))
        .await
        .unwrap();
    assert!(all.count() > 0, "its own keys are open to it");

    refused("get", client.get(key.as_str(), None).await);
    refused(
        "get of the prefix",
        client
            .get(foreign.as_str(), Some(GetOptions::new().with_prefix()))
            .await,
    );
    refused(
        "get of everything",
        client.get("", Some(GetOptions::new().with_all_keys())).await,
    );
    refused(
        "open-ended get from its own prefix",
        client.get(own.as_str(), Some(GetOptions::new().with_from_key())).await,
    );
    let beyond = GetOptions::new().with_range("/berth0");
    refused("range across prefixes", client.get("/berth/", Some(beyond)).await);
    refused("put", client.put(key.as_str(), "x", None).await);
    refused(
        "put that asks for the previous value",
        client
            .put(key.as_str(), "x", Some(PutOptions::new().with_prev_key()))
            .await,
    );
    refused("delete", client.delete(key.as_str(), None).await);
    refused(
        "delete of everything",
        client.delete("", Some(DeleteOptions::new().with_all_keys())).await,
    );
    refused(
        "delete that asks for the previous value",
        client
            .delete(key.as_str(), Some(DeleteOptions::new().with_prev_key()))
            .await,
    );

    let exists = Compare::version(key.as_str(), CompareOp::Greater, 0);
    refused("txn that compares", client.txn(Txn::new().when([exists])).await);
    refused(
        "txn that gets",
        client.txn(Txn::new().and_then([TxnOp::get(key.as_str(), None)])).await,
    );
    refused(
        "txn that gets otherwise",
        client.txn(Txn::new().or_else([TxnOp::get(key.as_str(), None)])).await,
    );
    let nested = Txn::new().and_then([TxnOp::put(key.as_str(), "x", None)]);
    refused(
        "txn within a txn",
        client.txn(Txn::new().and_then([TxnOp::txn(nested)])).await,
    );

    for (what, from, options) in [
        ("watch of a key", key.as_str(), WatchOptions::new()),
        ("watch of a prefix", foreign.as_str(), WatchOptions::new().with_prefix()),
        ("watch of everything", "", WatchOptions::new().with_all_keys()),
        (
            "open-ended watch from its own prefix",
            own.as_str(),
            WatchOptions::new().with_from_key(),
        ),
    ] {
        // The refusal comes as the cancellation of the watch, or as no watch at all.
        match client.watch(from, Some(options)).await {
            Err(_) => {}
            Ok(mut stream) => {
                // Less than the client's own limit, whose end would look like a refusal.
                let first = tokio::time::timeout(PATIENCE / 2, stream.message()).await;
                match first {
                    Ok(Ok(Some(response))) => assert!(response.canceled(), "{what}: {response:?}"),
                    Ok(Err(_) | Ok(None)) => {}
                    Err(tokio::time::error::Elapsed { .. }) => panic!("{what} is open"),
                }
            }
        }
    }

    refused("compaction", client.compact(1, None).await);
    refused("a list of leases", client.leases().await);
    refused("a list of users", client.user_list().await);
    refused(
        "a role for itself",
        client.user_grant_role(a.id.etcd_user(), "root").await,
    );
    refused("a new user", client.user_add("thief", "x", None).await);
    refused("a user's deletion", client.user_delete(b.id.etcd_user()).await);
    refused("authentication off", client.auth_disable().await);
    // A stream: the refusal is its first message.
    refused("a snapshot", client.snapshot().await.unwrap().message().await);
    refused("defragmentation", client.defragment().await);

    assert!(b.client.apiserver_version().await.is_ok(), "B is unharmed");
    tokio::join!(a.delete(&world), b.delete(&world));
    // With its user gone the certificate is worth nothing, although it has not expired.
    assert!(
        client.get(own.as_str(), None).await.is_err(),
        "the certificate of a deleted tenant still opens etcd"
    );
}
