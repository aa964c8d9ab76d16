//! What a tenant had is read in a backup after the tenant was deleted.

use super::{administrator, commands};
use crate::encryption::set_rules;
use berth_api::TenantClass;
use berth_process::free_port;
use berth_tests::{
    objects::apply,
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use kube::{Api, api::DeleteParams};
use serde_json::json;
use std::{fs, sync::Arc};

/// The class of the tenant, whose Secrets are encrypted.
const CLASS: &str = "restore-copy";

pub(crate) async fn the_objects_of_a_deleted_tenant_are_read_in_a_backup(host: Arc<TestCluster>) {
    set_rules(&host, CLASS, &json!({})).await;
    let mut wanted = cluster("read", &[]);
    wanted.spec.class_name = Some(CLASS.into());
    let tenant = Tenant::create(&host, "restore-copy", &wanted).await;
    for kind in ["ConfigMap", "Secret"] {
        let object =
            json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": format!("kept-{}", kind.to_lowercase())}});
        apply(&tenant.client, "default", &object).await.unwrap();
    }
    let shell = administrator(&host).await;
    // Other tests delete tenants while the rest of the page's commands read them.
    let backup = commands("etcdctl snapshot save", &[]);
    let snapshot: Vec<&str> = backup.lines().take_while(|line| !line.contains("etcdutl")).collect();
    shell.run(&snapshot.join("\n")).await;
    let namespace = tenant.id.control_plane_namespace();
    let keys = format!("kubectl -n {namespace} get secret pki -o yaml > pki-{namespace}.yaml");
    shell.run(&keys).await;
    tenant.delete(&host).await;
    let classes: Api<TenantClass> = Api::all(host.client.clone());
    classes.delete(CLASS, &DeleteParams::default()).await.unwrap();

    let ports = [(); 3].map(|()| free_port().unwrap().to_string());
    let [clients, peers, server] = &ports;
    let replaced = [
        ("12379", clients.as_str()),
        ("12380", peers.as_str()),
        ("12643", server.as_str()),
        ("HASH", tenant.id.hash()),
    ];
    let _etcd = shell.start(&commands("--data-dir copy", &replaced)).await;
    let list = commands("get /berth/ --prefix --keys-only", &replaced);
    let tenants = until("the copy of etcd answers", SOON, async || {
        // Without an answer the last program of the pipe prints nothing.
        let listed = shell.attempt(&list).await?;
        if listed.is_empty() { Err(listed) } else { Ok(listed) }
    })
    .await;
    assert!(tenants.lines().any(|hash| hash == tenant.id.hash()), "{tenants}");
    let of_tenant = [("CONTROL-PLANE-NAMESPACE", namespace.as_str())];
    shell.run(&commands("> encryption.conf", &of_tenant)).await;
    let start = commands("--etcd-prefix", &replaced);
    let start = start.replace(
        "kube-apiserver ",
        "kube-apiserver --encryption-provider-config encryption.conf ",
    );
    let _api_server = shell.start(&start).await;
    let read = commands("objects.yaml", &replaced);
    until("the API server of the copy answers", SOON, async || {
        shell.attempt(&read).await
    })
    .await;
    let objects = fs::read_to_string(shell.folder().join("objects.yaml")).unwrap();
    for name in ["kept-configmap", "kept-secret"] {
        assert!(objects.contains(&format!("name: {name}\n")), "{name}: {objects}");
    }
}
