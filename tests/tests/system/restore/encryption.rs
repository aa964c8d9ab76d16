//! The keys with which a tenant's objects are encrypted are lost, and restored.

use super::{administrator, back_up, commands};
use crate::encryption::{create_secret, read_secret, set_rules, until_encrypted};
use berth_api::{TenantClass, conditions::INFRASTRUCTURE_READY, labels};
use berth_tests::{
    sleep::{request, status},
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, api::DeleteParams};
use serde_json::json;
use std::sync::Arc;

/// Name of the namespace and of the class.
const NAME: &str = "restore-encryption";
const TEXT: &str = "text-of-a-team";

pub(crate) async fn a_tenant_whose_keys_are_lost_goes_on_once_they_are_restored(host: Arc<TestCluster>) {
    set_rules(&host, NAME, &json!({})).await;
    let mut wanted = cluster("sealed", &[]);
    wanted.spec.class_name = Some(NAME.into());
    let tenant = Tenant::create(&host, NAME, &wanted).await;
    create_secret(&tenant, TEXT).await;
    let key = until_encrypted(&host, &tenant, None).await;
    let shell = administrator(&host).await;
    back_up(&shell).await;
    let namespace = tenant.id.control_plane_namespace();
    let secrets: Api<Secret> = Api::namespaced(host.client.clone(), &namespace);
    let replaced = [("CONTROL-PLANE-NAMESPACE", namespace.as_str())];

    host.stop_control("first").await;
    secrets.delete("pki", &DeleteParams::default()).await.unwrap();
    host.start_control("first").await;
    until("the condition says that the key is missing", SOON, async || {
        let conditions = status(&host, &tenant).await?.conditions;
        let condition = conditions.into_iter().find(|known| known.type_ == INFRASTRUCTURE_READY);
        match condition {
            Some(condition) if condition.reason == "EncryptionKeyMissing" && condition.message.contains(&key) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    host.stop_control("first").await;
    shell.run(&commands("delete secret pki", &replaced)).await;
    host.start_control("first").await;
    let tenant = Tenant::ready(&host, NAME, "sealed").await;
    until("the Secret is read with the key of the backup", SOON, async || {
        read_secret(&tenant)
            .await
            .and_then(|text| if text == TEXT { Ok(()) } else { Err(text) })
    })
    .await;

    // A snapshot of etcd from before a rotation needs the earlier key beside that of now.
    request(&host, &tenant, labels::ENCRYPTION_KEY_ROTATION_REQUESTED_AT).await;
    let rotated = until_encrypted(&host, &tenant, Some(&key)).await;
    host.stop_control("first").await;
    shell.run(&commands("patch secret pki", &replaced)).await;
    let both = secrets.get("pki").await.unwrap().data.unwrap();
    assert!(
        [&key, &rotated].iter().all(|name| both.contains_key(*name)),
        "{:?}",
        both.keys()
    );
    host.start_control("first").await;
    // No object needs it here.
    until("the earlier key is gone again", SOON, async || {
        let data = secrets.get("pki").await.map_err(|error| error.to_string())?.data;
        let data = data.unwrap_or_default();
        if data.contains_key(&rotated) && !data.contains_key(&key) {
            Ok(())
        } else {
            Err(format!("{:?}", data.keys()))
        }
    })
    .await;
    assert_eq!(until_encrypted(&host, &tenant, None).await, rotated);
    until("the Secret is read with the key of now", SOON, async || {
        read_secret(&tenant)
            .await
            .and_then(|text| if text == TEXT { Ok(()) } else { Err(text) })
    })
    .await;
    tenant.delete(&host).await;
    let classes: Api<TenantClass> = Api::all(host.client.clone());
    classes.delete(NAME, &DeleteParams::default()).await.unwrap();
}
