use super::text::describe;
use super::*;
use serde_json::{Value, json};

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

#[test]
fn the_tree_shows_what_is_reserved_and_used_and_why_a_tenant_waits() {
    let organization: Organization = read(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "Organization", "metadata": {"name": "lab"}, "spec": {},
        "status": {"tenants": 3, "waitingTenants": 1},
    }));
    let project: Project = read(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "Project", "metadata": {"name": "vision"},
        "spec": {"organizationName": "lab", "namespaces": ["team"]},
        "status": {"tenants": 3, "waitingTenants": 1, "quotas": [
            {"resource": "gpus", "poolName": "h100", "nominalQuota": 16, "reserved": 24, "used": 8, "borrowed": 8},
            {"resource": "gpus", "gpuProduct": "H100", "nominalQuota": 48, "reserved": 24, "used": 0, "borrowed": 0},
            {"resource": "tenantclusters", "nominalQuota": 4, "reserved": 2, "borrowed": 0},
            {"resource": "datastore.bytes", "nominalQuota": 2_147_483_648_u64, "reserved": 1_073_741_824, "borrowed": 0},
            {"resource": "requests.cpu", "nominalQuota": 64, "reserved": 32, "used": 32, "borrowed": 0},
            {"resource": "requests.memory", "nominalQuota": 2_147_483_648_u64, "reserved": 1_073_741_824,
             "used": 536_870_912, "borrowed": 0},
        ]},
    }));
    let view = build_view(
        &[organization],
        &[project],
        &[waiting_tenant("team"), waiting_tenant("other")],
    );
    let expected = "Organization lab: 3 tenants, 1 waiting for quota\n  \
                    Project vision: 3 tenants, 1 waiting for quota\n    \
                    gpus of h100     [##########==========] 8 used, 24 reserved of 16, 8 borrowed\n    \
                    gpus of H100     [==========..........] 0 used, 24 reserved of 48\n    \
                    tenantclusters   [==========..........] 2 reserved of 4\n    \
                    datastore.bytes  [==========..........] 1Gi reserved of 2Gi\n    \
                    requests.cpu     [##########..........] 32 used, 32 reserved of 64\n    \
                    requests.memory  [#####=====..........] 512Mi used, 1Gi reserved of 2Gi\n    \
                    team/a: no quota is left\n\
                    Tenants without a Project: 1";
    assert_eq!(describe(&view), expected);
    assert_eq!(
        list_names(&view.levels),
        ["organization.berth.dev/lab", "project.berth.dev/vision"]
    );
}

#[test]
fn several_levels_are_summed_up() {
    let level = |kind: &str, name: &str, spec: Value, quotas: Value| {
        json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec,
            "status": {"quotas": quotas}})
    };
    let quota = |resource: &str, nominal: u64, reserved: u64, used: u64| json!({"resource": resource, "nominalQuota": nominal, "reserved": reserved, "used": used, "borrowed": 0});
    let lab = level("Organization", "lab", json!({}), json!([quota("pods", 100, 60, 30)]));
    let of_lab = json!({"organizationName": "lab"});
    let vision = json!([quota("pods", 50, 60, 30), quota("services", 9, 5, 1)]);
    let vision = level("Project", "vision", of_lab, vision);
    let unmeasured = json!({"resource": "pods", "nominalQuota": 20, "reserved": 10, "borrowed": 0});
    let alone = json!([unmeasured, quota("services", 1, 2, 2)]);
    let alone = level("Project", "alone", json!({}), alone);
    let view = build_view(&[read(lab)], &[read(vision), read(alone)], &[]);
    let expected = "All Organizations and Projects\n  \
                    pods      [===========.........] 70 reserved of 120\n  \
                    services  [######========......] 3 used, 7 reserved of 10\n\
                    Organization lab: 0 tenants\n";
    let text = describe(&view);
    assert!(text.starts_with(expected), "{text}");
}

#[test]
fn users_are_below_their_project() {
    let project: Project = read(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "Project", "metadata": {"name": "vision"}, "spec": {},
        "status": {"usersNotListed": 2, "users": [
            {"user": "alice", "waitingPods": 3, "message": "delete what is no longer needed", "resources": [
                {"resource": "nvidia.com/gpu", "limit": 8, "used": 8}, {"resource": "pods", "limit": 20, "used": 5},
            ]},
            {"user": "bob", "resources": [{"resource": "pods", "limit": 20, "used": 1}]},
        ]},
    }));
    let view = build_view(&[], &[project], &[]);
    let expected = "Project vision: 0 tenants\n  \
                    User alice: 3 pods wait\n    \
                    nvidia.com/gpu  [####################] 8 of 8\n    \
                    pods            [#####...............] 5 of 20\n    \
                    delete what is no longer needed\n  \
                    User bob\n    \
                    pods  [#...................] 1 of 20\n  \
                    and 2 more users with pods";
    assert_eq!(describe(&view), expected);
}

/// A tenant of this namespace that waits for quota.
fn waiting_tenant(namespace: &str) -> TenantCluster {
    read(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
        "metadata": {"name": "a", "namespace": namespace}, "spec": {},
        "status": {"conditions": [{
            "type": "QuotaReserved", "status": "False", "reason": "QuotaExceeded", "message": "no quota is left",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]},
    }))
}

#[test]
fn of_one_namespace_only_its_project_and_organization_are_shown() {
    let organization = |name: &str| -> Organization {
        read(
            json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Organization", "metadata": {"name": name}, "spec": {}}),
        )
    };
    let project = |name: &str, organization: &str| -> Project {
        read(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Project", "metadata": {"name": name},
            "spec": {"organizationName": organization, "namespaces": [name]},
        }))
    };
    let levels_of = |namespace: &str| {
        let mut organizations = vec![organization("lab"), organization("shop")];
        let mut projects = vec![
            project("vision", "lab"),
            project("sound", "lab"),
            project("web", "shop"),
        ];
        retain_levels_of(namespace, &mut organizations, &mut projects);
        list_names(&build_view(&organizations, &projects, &[]).levels)
    };
    assert_eq!(
        levels_of("vision"),
        ["organization.berth.dev/lab", "project.berth.dev/vision"]
    );
    assert!(levels_of("none").is_empty());
}

#[test]
fn a_team_that_may_not_list_projects_sees_why_its_tenants_wait() {
    let view = view_of_tenants(&[waiting_tenant("team")], "projects is forbidden");
    let expected = "Organizations and Projects are not shown: projects is forbidden\n\
                    team/a: no quota is left\n\
                    `berth get NAME` shows what is reserved for a tenant, and what it uses";
    assert_eq!(describe(&view), expected);
}

#[test]
fn a_user_forges_no_line() {
    let forged = "mallory\n  User bob: 9 pods wait\n    pods\t[####################] 20 of 20";
    let project: Project = read(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "Project", "metadata": {"name": "vision"}, "spec": {},
        "status": {"users": [{"user": forged, "waitingPods": 1, "message": format!("pods of user {forged} wait")}]},
    }));
    let text = describe(&build_view(&[], &[project], &[]));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(
        lines[1].starts_with("  User mallory\u{fffd}") && !text.contains('\t'),
        "{text}"
    );
}

#[test]
fn of_a_namespace_without_a_project_that_is_said() {
    let project = || -> Project {
        read(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Project", "metadata": {"name": "vision"},
            "spec": {"namespaces": ["team"]},
        }))
    };
    let text = |projects: Vec<Project>, namespace: Option<&str>| {
        let tenants = [waiting_tenant("other")];
        describe(&view_of_levels(
            Vec::new(),
            projects,
            &tenants,
            namespace.map(Into::into),
        ))
    };
    let expected =
        "Namespace other belongs to no Project: no quotas apply to its tenants besides those of their classes.";
    assert_eq!(text(vec![project()], Some("other")), expected);
    let nothing = "There are no Organizations and no Projects: no quotas apply besides those of classes.";
    assert_eq!(text(Vec::new(), Some("other")), nothing);
    assert_eq!(text(Vec::new(), None), nothing);
    assert!(text(vec![project()], Some("team")).starts_with("Project vision"));
}

#[test]
fn measured_bytes_can_be_compared_with_the_quota() {
    let project: Project = read(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "Project", "metadata": {"name": "vision"}, "spec": {},
        "status": {"quotas": [{"resource": "datastore.bytes", "nominalQuota": 2_147_483_648_u64, "reserved": 1_073_741_824,
            "used": 734_003_217, "borrowed": 0}]},
    }));
    let text = describe(&build_view(&[], &[project], &[]));
    assert!(text.ends_with("700.0Mi used, 1Gi reserved of 2Gi"), "{text}");
}
