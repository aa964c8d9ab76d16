//! Which keys a change wakes.

use super::*;
use berth_api::{Project, ProjectSpec, TenantClusterSpec, TenantClusterStatus};
use k8s_openapi::api::core::v1::Namespace;
use serde_json::json;

fn tenant(name: &str, phase: Phase) -> Arc<TenantCluster> {
    let mut tenant = TenantCluster::new(name, TenantClusterSpec::default());
    tenant.metadata.namespace = Some("team".into());
    tenant.metadata.uid = Some(name.into());
    tenant.status = Some(TenantClusterStatus {
        phase: Some(phase),
        class_name: Some("gold".into()),
        ..TenantClusterStatus::default()
    });
    Arc::new(tenant)
}

fn node(owner: Option<&str>, heartbeat: &str) -> Node {
    let mut node = json!({
        "metadata": {"name": "n", "labels": {"berth.dev/pool": "h100", "berth.dev/node-group": "a"}},
        "status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat}]},
    });
    if let Some(owner) = owner {
        node["metadata"]["annotations"] = json!({"berth.dev/owner-uid": owner, "berth.dev/state": "Assigned"});
    }
    serde_json::from_value(node).unwrap()
}

fn woken(wakes: &[Wake]) -> Vec<&str> {
    let names = wakes.iter().filter_map(|wake| match wake {
        Wake::Now(Key::Tenant { name, .. }) | Wake::Soon(Key::Tenant { name, .. }) => Some(name.as_str()),
        _ => None,
    });
    names.collect()
}

#[test]
fn a_node_wakes_its_owner_its_former_owner_and_tenants_that_are_not_ready() {
    let tenants = [
        tenant("a", Phase::Ready),
        tenant("b", Phase::Ready),
        tenant("c", Phase::Provisioning),
    ];
    let mut seen = Seen::default();
    let mut wakes = |node: &Node| for_node(node, &mut seen, &tenants, &[]);
    assert_eq!(woken(&wakes(&node(Some("a"), "2026-01-01T00:00:00Z"))), ["a", "c"]);
    assert!(
        wakes(&node(Some("a"), "2026-01-01T00:00:10Z")).is_empty(),
        "a heartbeat"
    );
    assert_eq!(woken(&wakes(&node(Some("b"), "2026-01-01T00:00:10Z"))), ["a", "b", "c"]);
    assert_eq!(woken(&wakes(&node(None, "2026-01-01T00:00:10Z"))), ["b", "c"]);
}

#[test]
fn usage_is_counted_when_a_node_begins_and_ceases_to_serve_a_tenant() {
    let mut seen = Seen::default();
    let mut wakes = |state: &str, seconds: u32, is_gone: bool| {
        let mut node = node(Some("a"), &format!("2026-01-01T00:00:{seconds:02}Z"));
        node.annotations_mut().insert("berth.dev/state".into(), state.into());
        node.labels_mut().insert("x".into(), seconds.to_string());
        if is_gone {
            seen.forget("n");
        }
        for_node(&node, &mut seen, &[], &[]).contains(&Wake::Later(Key::Usage))
    };
    assert!(wakes("Joining", 0, false), "it is new");
    assert!(!wakes("Joining", 1, false));
    assert!(wakes("Assigned", 2, false));
    assert!(!wakes("Cordoned", 3, false), "it still serves");
    assert!(wakes("Scrubbing", 4, false));
    assert!(!wakes("Validating", 5, false));
    assert!(wakes("Assigned", 6, false));
    assert!(wakes("Assigned", 6, true), "its Node was deleted");
}

#[test]
fn usage_is_counted_when_a_spec_changes_and_when_it_is_accepted() {
    let mut seen = Seen::default();
    let mut wakes = |generation: i64, accepted: i64| {
        let mut tenant = (*tenant("a", Phase::Ready)).clone();
        tenant.metadata.generation = Some(generation);
        let accepted = json!([{"type": "Accepted", "status": "True", "reason": "Valid", "message": "",
            "observedGeneration": accepted, "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        tenant.status.as_mut().unwrap().conditions = serde_json::from_value(accepted).unwrap();
        for_tenant(&tenant, &mut seen).contains(&Wake::Later(Key::Usage))
    };
    assert!(wakes(1, 0), "it is new");
    assert!(wakes(1, 1));
    assert!(!wakes(1, 1));
    assert!(wakes(2, 1));
    assert!(wakes(2, 2));
    assert!(!wakes(2, 2));
}

#[test]
fn labels_of_a_tenant_in_other_namespaces_wake_nobody() {
    let (store, mut writer) = kube::runtime::reflector::store();
    let known = tenant("a", Phase::Ready);
    writer.apply_watcher_event(&kube::runtime::watcher::Event::Apply((*known).clone()));
    let id = TenantId::new("a", "a");
    let wakes = |slug: &str, place: &str, name: &str, of: (&str, &str)| {
        let secret: k8s_openapi::api::core::v1::Secret = serde_json::from_value(json!({"metadata": {
            "name": name, "namespace": place,
            "labels": {"berth.dev/tenant": slug, "berth.dev/tenant-namespace": of.0, "berth.dev/tenant-name": of.1},
        }}))
        .unwrap();
        for_child(&secret, &store).len()
    };
    let own = ("team", "a");
    assert_eq!(wakes(id.slug(), &id.control_plane_namespace(), "pki", own), 1);
    assert_eq!(wakes(id.slug(), "team", "a-kubeconfig", own), 1);
    assert_eq!(wakes(id.slug(), "argocd", &id.argo_cd_secret(), own), 1);
    assert_eq!(wakes(id.slug(), "team", "other", own), 0);
    assert_eq!(wakes(id.slug(), "elsewhere", "a-kubeconfig", own), 0);
    let other = TenantId::new("b", "b");
    assert_eq!(
        wakes(other.slug(), &other.workload_namespace(), "x", own),
        0,
        "a stolen syncer credential"
    );
    assert_eq!(
        wakes(id.slug(), &id.control_plane_namespace(), "x", ("team", "none")),
        0
    );
}

#[test]
fn new_labels_of_a_namespace_wake_the_tenants_in_it() {
    let tenants = [tenant("a", Phase::Ready)];
    let mut seen = Seen::default();
    let mut namespace = |name: &str, label: &str| {
        let namespace: Namespace = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"team": label}},
        }))
        .unwrap();
        for_team_namespace(&namespace, &mut seen, &tenants)
    };
    assert_eq!(woken(&namespace("team", "vision")), ["a"]);
    assert!(namespace("team", "vision").is_empty(), "nothing has changed");
    assert_eq!(woken(&namespace("team", "speech")), ["a"]);
    assert!(namespace("other", "speech").is_empty());
}

#[test]
fn what_a_tenant_shows_of_what_it_used_wakes_nothing() {
    let tenant = tenant("a", Phase::Ready);
    let used = |hours: &str, version: &str| {
        let mut tenant = (*tenant).clone();
        let usage = json!([{"month": "2026-11", "meteredThrough": "2026-11-10T12:00:00Z",
            "hours": [{"resource": "GPU", "hours": hours}]}]);
        tenant.metadata.resource_version = Some(version.into());
        tenant.status.as_mut().unwrap().monthly_usage = serde_json::from_value(usage).unwrap();
        tenant
    };
    let mut seen = Seen::default();
    let mut wakes = |tenant: &TenantCluster| !for_tenant(tenant, &mut seen).is_empty();
    assert!(wakes(&tenant));
    assert!(!wakes(&used("1.0", "2")));
    assert!(!wakes(&used("2.0", "3")));
    assert!(wakes(&used("2.0", "3")), "it is listed again");
    let mut changed = used("3.0", "4");
    changed.status.as_mut().unwrap().phase = Some(Phase::Sleeping);
    assert!(wakes(&changed), "something else has changed as well");
    seen.forget(&full_name(tenant.as_ref()));
    assert!(!for_tenant(&used("4.0", "5"), &mut seen).is_empty(), "it is new");
}

#[test]
fn quotas_are_decided_again_when_a_tenant_changes_its_spec_or_is_gone() {
    let tenant = tenant("a", Phase::Ready);
    let mut changed = (*tenant).clone();
    changed.metadata.generation = Some(2);
    let mut seen = Seen::default();
    let mut wakes = |tenant: &TenantCluster| for_tenant(tenant, &mut seen).contains(&Wake::Soon(Key::Quotas));
    assert!(wakes(&tenant));
    assert!(!wakes(&tenant), "a status");
    assert!(wakes(&changed));
    seen.forget(&full_name(tenant.as_ref()));
    assert!(for_tenant(&changed, &mut seen).contains(&Wake::Soon(Key::Quotas)));
}

#[test]
fn a_project_wakes_tenants_and_policies_if_schedules_are_for_levels() {
    let policy = |name: &str, kind: &str| {
        let spec = json!({"timeZone": "UTC", "targets": [{"kind": kind, "name": "vision"}], "windows": []});
        Arc::new(SchedulePolicy::new(name, serde_json::from_value(spec).unwrap()))
    };
    let tenants = [tenant("a", Phase::Ready)];
    let (of_class, of_project) = (policy("nights", "TenantClass"), policy("weekends", "Project"));
    let mut project = Project::new("vision", ProjectSpec::default());
    let mut seen = Seen::default();
    let planned = [
        Wake::Soon(Key::Quotas),
        Wake::Soon(Key::Fleet),
        // What was used up to now belongs to the level as it was.
        Wake::Later(Key::Usage),
    ];
    assert_eq!(
        for_level(&project, &mut seen, &tenants, std::slice::from_ref(&of_class)),
        planned
    );
    let policies = [of_class, of_project];
    assert!(
        for_level(&project, &mut seen, &tenants, &policies).is_empty(),
        "a status"
    );
    project.metadata.generation = Some(2);
    let wakes = for_level(&project, &mut seen, &tenants, &policies);
    assert_eq!(woken(&wakes), ["a"]);
    assert!(wakes.contains(&Wake::Now(Key::SchedulePolicy("weekends".into()))));
    assert!(!wakes.contains(&Wake::Now(Key::SchedulePolicy("nights".into()))));
}

#[test]
fn a_class_wakes_the_tenants_that_name_it_or_run_with_it_once_a_change() {
    let tenants = [tenant("a", Phase::Ready)];
    let mut class = TenantClass::new("gold", berth_api::TenantClassSpec::default());
    let mut seen = Seen::default();
    assert_eq!(woken(&for_class(&class, &mut seen, &tenants)), ["a"]);
    assert_eq!(
        for_class(&class, &mut seen, &tenants),
        [Wake::Now(Key::Class("gold".into()))]
    );
    class.metadata.generation = Some(2);
    assert_eq!(woken(&for_class(&class, &mut seen, &tenants)), ["a"]);
}

#[test]
fn a_manifest_wakes_the_tenants_of_the_classes_that_name_it_once_a_change() {
    let tenants = [tenant("a", Phase::Ready)];
    let mut class = TenantClass::new("gold", berth_api::TenantClassSpec::default());
    let mut map = ConfigMap::default();
    map.metadata.name = Some("base".into());
    map.metadata.resource_version = Some("1".into());
    let mut seen = Seen::default();
    assert!(for_manifest(&map, &mut seen, &[Arc::new(class.clone())], &tenants).is_empty());
    class.spec.manifests = vec![berth_api::ClassManifest {
        config_map_ref: berth_api::ManifestConfigMap { name: "base".into() },
        ..berth_api::ClassManifest::default()
    }];
    let classes = [Arc::new(class)];
    assert!(for_manifest(&map, &mut seen, &classes, &tenants).is_empty());
    map.metadata.resource_version = Some("2".into());
    assert_eq!(woken(&for_manifest(&map, &mut seen, &classes, &tenants)), ["a"]);
}
