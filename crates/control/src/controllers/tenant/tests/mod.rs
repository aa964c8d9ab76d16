//! The whole controller against scripted answers: every call that it makes fails once, and the tenant still becomes ready,
//! or is still deleted.

mod absent_syncer;
mod argo_cd;
mod bootstrapping;
mod databases;
mod default_version;
mod deletion;
mod encryption;
mod enforcement;
mod expiration;
mod failures;
mod fixture;
mod held;
mod host_first;
mod issuers;
mod kubeconfig;
mod load_balancer;
mod manifests;
mod own_endpoints;
mod quota;
mod removals;
mod restore;
mod restore_again;
mod restore_faults;
mod restore_leases;
mod restore_lost;
mod restore_saved;
mod restore_upgrade;
mod rotation;
mod schedule;
mod sleep;
mod upgrade;
mod usage;
mod violations;
mod withdrawn_kinds;

use fixture::Fixture;
use serde_json::json;

/// Calls until the first reconcile that had nothing left to do.
async fn calls_until_ready() -> usize {
    let mut fixture = Fixture::new();
    assert!(fixture.reconcile_until_ready().await.is_empty());
    fixture.count_calls()
}

#[tokio::test]
async fn a_tenant_becomes_ready_and_then_nothing_is_written() {
    let mut fixture = Fixture::new();
    assert!(fixture.reconcile_until_ready().await.is_empty());
    let conditions = [
        "Accepted",
        "InfrastructureReady",
        "DatastoreReady",
        "ControlPlaneReady",
        "SyncerReady",
        "NodesReady",
    ];
    for kind in conditions {
        assert_eq!(fixture.condition(kind).unwrap()["status"], "True", "{kind}");
    }
    let namespace = fixture.id.control_plane_namespace();
    assert_eq!(fixture.host.find(&format!("/{namespace}/tenantnodes/")).len(), 1);
    assert!(!fixture.tenant.find("/apiservices/").is_empty());
    fixture.reconcile().await.unwrap();
    let before = fixture.count_calls();
    fixture.reconcile().await.unwrap();
    let calls = fixture.script.calls().split_off(before);
    let policies = |text: &str| text.contains("/networkpolicies/");
    let writes = calls.iter().filter(|call| {
        let reads = [
            "GET",
            "run ",
            "stop ",
            "probe",
            "publish",
            "datastore prepare",
            "datastore count",
            "datastore get",
        ];
        !reads.iter().any(|read| call.text.contains(read)) && !policies(&call.text)
    });
    assert_eq!(writes.count(), 0, "{calls:#?}");
}

#[tokio::test]
async fn nothing_runs_before_the_network_policies_and_the_syncers_rights_exist() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    let first = |part: &str| fixture.script.first(part).unwrap_or_else(|| panic!("no call: {part}"));
    let workloads = fixture.id.workload_namespace();
    assert!(first("/networkpolicies/") < first("runtime run kube-apiserver"));
    assert!(first("/resourcequotas/") < first("runtime run kube-apiserver"));
    // The default requests that the quota needs.
    assert!(first("/limitranges/") < first("/resourcequotas/"));
    assert!(first("datastore prepare") < first("runtime run kube-apiserver"));
    assert!(first(&format!("{workloads}/rolebindings/")) < first("runtime run syncer"));
    assert!(first("runtime run syncer") < first("/apiservices/"));
    assert!(
        first("runtime run syncer") < first("GET /metrics"),
        "they take time that the team waits for"
    );
}

/// Without the policies, nothing but the level of the namespace confines the tenant's pods.
#[tokio::test]
async fn the_pod_security_level_is_lower_only_where_policies_are_installed() {
    for (has_policies, level) in [(true, "privileged"), (false, "baseline")] {
        let mut fixture = Fixture::new();
        fixture.context.has_admission_policies = has_policies;
        fixture.give_class(&json!({"sync": {"pods": {"capabilities": ["IPC_LOCK"]}}}));
        fixture.reconcile().await.unwrap();
        let path = format!("/api/v1/namespaces/{}", fixture.id.workload_namespace());
        let namespace = fixture.host.get(&path).unwrap();
        assert_eq!(
            namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"],
            level
        );
        let given = &namespace["metadata"]["annotations"]["allow.berth.dev/capabilities"];
        assert_eq!(given.is_null(), !has_policies, "{namespace}");
    }
}

/// Who has rights on namespaces can own annotations there as well, and an apply leaves those: the scripted host leaves all.
#[tokio::test]
async fn rules_that_a_class_takes_away_are_gone_whoever_owns_them() {
    const RULE: &str = "allow.berth.dev/runtime-classes";
    let mut fixture = Fixture::new();
    let path = format!("/api/v1/namespaces/{}", fixture.id.workload_namespace());
    let annotations = |fixture: &Fixture| fixture.host.get(&path).unwrap()["metadata"]["annotations"].clone();
    fixture.give_class(&json!({"sync": {"pods": {"runtimeClasses": ["kata"], "schedulers": ["other"]}}}));
    fixture.reconcile().await.unwrap();
    assert_eq!(annotations(&fixture)[RULE], "kata");
    fixture.set_class(&json!({"sync": {"pods": {"schedulers": ["other"]}}}));
    fixture.reconcile().await.unwrap();
    let left = annotations(&fixture);
    assert!(left.get(RULE).is_none(), "{left}");
    assert_eq!(left["allow.berth.dev/schedulers"], "other");
    assert!(!left["berth.dev/owner-uid"].is_null(), "{left}");
}
