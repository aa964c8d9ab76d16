//! Tenants with a TTL: warned, extended, and deleted.

use berth_api::{TenantClass, TenantCluster, TenantClusterStatus, conditions};
use berth_process::binaries::{self, Binary};
use berth_tests::{
    objects::{apply, apply_example},
    tenant::{Tenant, cluster, ensure_namespace, until_gone},
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use k8s_openapi::api::core::v1::{Event, Namespace};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use std::{path::Path, sync::Arc};
use tokio::process::Command;

async fn set_ttl(tenants: &Api<TenantCluster>, name: &str, ttl: &str) {
    let patch = json!({"spec": {"ttl": ttl}});
    let params = PatchParams::default();
    tenants.patch(name, &params, &Patch::Merge(&patch)).await.unwrap();
}

/// Waits until the condition Expiring has a reason.
async fn until_expiring(tenants: &Api<TenantCluster>, name: &str, reason: &str) -> TenantClusterStatus {
    until(&format!("Expiring is {reason}"), SOON, async || {
        let cluster = tenants.get(name).await.map_err(|error| error.to_string())?;
        let status = cluster.status.unwrap_or_default();
        match status.conditions.iter().find(|c| c.type_ == conditions::EXPIRING) {
            Some(condition) if condition.reason == reason => Ok(status),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

/// Waits until a tenant expires this many seconds after its creation.
async fn until_lifetime(tenants: &Api<TenantCluster>, name: &str, seconds: i64) {
    until(&format!("{name} exists for {seconds} s"), SOON, async || {
        let cluster = tenants.get(name).await.map_err(|error| error.to_string())?;
        let created = cluster
            .metadata
            .creation_timestamp
            .clone()
            .map(|time| time.0.as_second());
        let ends = cluster
            .status
            .and_then(|status| status.expires_at)
            .map(|time| time.0.as_second());
        let found = ends.zip(created).map(|(ends, created)| ends - created);
        if found == Some(seconds) {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;
}

pub(crate) async fn a_tenant_is_warned_extended_and_deleted(host: Arc<TestCluster>) {
    let name = "expire";
    let mut spec = cluster(name, &[]);
    spec.spec.ttl = Some("4h".into());
    let tenant = Tenant::create(&host, name, &spec).await;
    let tenants = host.tenants(name);
    let status = until_expiring(&tenants, name, "NotSoon").await;
    let created = tenants.get(name).await.unwrap().metadata.creation_timestamp.unwrap();
    let ends = status.expires_at.unwrap();
    assert_eq!(ends.0.as_second() - created.0.as_second(), 4 * 3600);
    // It is older than that, and is warned first.
    set_ttl(&tenants, name, "1m").await;
    until_expiring(&tenants, name, "ExpiresSoon").await;
    set_ttl(&tenants, name, "5h").await;
    until_expiring(&tenants, name, "NotSoon").await;
    set_ttl(&tenants, name, "1m").await;
    until_gone(&host, name, name).await;
    let events: Api<Event> = Api::namespaced(host.client.clone(), name);
    let events = events.list(&ListParams::default()).await.unwrap();
    for reason in ["ExpiresSoon", "Expired"] {
        let found = events.iter().any(|event| event.reason.as_deref() == Some(reason));
        assert!(found, "no Event {reason}");
    }
    let namespaces: Api<Namespace> = Api::all(host.client.clone());
    let left = namespaces.get_opt(&tenant.id.workload_namespace()).await.unwrap();
    assert!(left.is_none());
}

pub(crate) async fn a_class_limits_how_long_tenants_exist(host: Arc<TestCluster>) {
    let name = "expire-class";
    let class = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": name},
        "spec": {"expiration": {"defaultTTL": "2h", "maxTTL": "3h", "maxExpireAfterIdle": "4h"}}});
    apply(&host.client, "", &class).await.unwrap();
    ensure_namespace(&host.client, name).await;
    let tenants = host.tenants(name);
    let mut spec = cluster(name, &[]);
    spec.spec.class_name = Some(name.into());
    spec.spec.ttl = Some("72h".into());
    tenants.create(&PostParams::default(), &spec).await.unwrap();
    until_lifetime(&tenants, name, 3 * 3600).await;
    // A lower maximum holds for tenants that exist, after the grace period of the class.
    let lower = json!({"spec": {"expiration": {"maxTTL": "2h30m"}}});
    let classes: Api<TenantClass> = Api::all(host.client.clone());
    let params = PatchParams::default();
    classes.patch(name, &params, &Patch::Merge(&lower)).await.unwrap();
    until("the status says what the limit was", SOON, async || {
        let status = tenants.get(name).await.map_err(|error| error.to_string())?.status;
        let limits = status
            .and_then(|status| status.expiration_limits)
            .and_then(|limits| limits.ttl);
        let previous = limits.and_then(|limit| limit.previous_limit);
        if previous.as_ref().map(berth_api::KubeDuration::seconds) == Some(3 * 3600) {
            Ok(())
        } else {
            Err(format!("{previous:?}"))
        }
    })
    .await;
    until_lifetime(&tenants, name, 3 * 3600).await;
    let no_grace = json!({"spec": {"enforcementGracePeriod": "0s"}});
    classes.patch(name, &params, &Patch::Merge(&no_grace)).await.unwrap();
    until_lifetime(&tenants, name, 9000).await;
    tenants.delete(name, &DeleteParams::default()).await.unwrap();
    until_gone(&host, name, name).await;
    let invalid = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "a"}, "spec": {"ttl": "30s"}});
    let error = apply(&host.client, name, &invalid).await.unwrap_err().to_string();
    assert!(error.contains("ttl must be at least 1m"), "{error}");
}

pub(crate) async fn the_example_runs_a_command_in_a_tenant_of_its_own(host: Arc<TestCluster>) {
    let namespace = "ci";
    ensure_namespace(&host.client, namespace).await;
    apply_example(&host.client, namespace, "ephemeral/class.yaml").await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/ephemeral/run.sh");
    let kubectl = binaries::find_pinned(Binary::Kubectl).unwrap();
    let programs = kubectl.parent().unwrap().display();
    let output = Command::new("sh")
        .arg(script)
        .args([
            "kubectl",
            "get",
            "validatingadmissionpolicies",
            "no-load-balancers",
            "-o",
            "name",
        ])
        .env("KUBECONFIG", host.home().admin_kubeconfig())
        .env("PATH", format!("{programs}:{}", std::env::var("PATH").unwrap()))
        .env("RUN", "example-1")
        .output()
        .await
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{out}\n{err}");
    assert!(
        out.contains("validatingadmissionpolicy.admissionregistration.k8s.io/no-load-balancers"),
        "{out}"
    );
    until_gone(&host, namespace, "ci-example-1").await;
}
