//! Rights of Berth's ServiceAccounts that are missing.

use super::*;

/// What is wrong with permissions.
fn missing_rights(facts: &Facts) -> Vec<String> {
    let results = check(facts).into_iter();
    let wrong = results.filter(|result| result.check == "permissions" && result.level == Level::Problem);
    wrong.map(|result| result.message).collect()
}

#[test]
fn each_right_that_control_lacks_is_named() {
    type Change = fn(&mut Facts);
    let cases: [(&str, Change); 7] = [
        ("the Role berth-system/berth-control is missing", |facts| {
            facts.roles = Ok(Vec::new());
        }),
        (
            "the Role berth-system/berth-control does not grant: create/delete/get/list jobs.batch",
            |facts| {
                let role = &mut facts.roles.as_mut().unwrap()[0];
                drop(role.rules.as_mut().unwrap().remove(0));
            },
        ),
        ("the RoleBinding berth-system/berth-control is missing", |facts| {
            facts.role_bindings = Ok(Vec::new());
        }),
        ("the ClusterRoleBinding berth-control-kinds is missing", |facts| {
            drop(facts.cluster_role_bindings.as_mut().unwrap().pop());
        }),
        ("the ClusterRoleBinding berth-control names nobody", |facts| {
            facts.cluster_role_bindings.as_mut().unwrap()[0].subjects = None;
        }),
        (
            "the ClusterRole berth-control does not grant: create/delete/get/list/update usagerecords.berth.dev",
            |facts| {
                let role = &mut facts.cluster_roles.as_mut().unwrap()[0];
                let rules = role.rules.as_mut().unwrap();
                rules.retain(|rule| rule.resources.iter().flatten().all(|name| name != "usagerecords"));
            },
        ),
        (
            "the ClusterRole berth-control-kinds does not grant: create/delete/get/list/patch/watch podgroups.scheduling.k8s.io, \
             create/delete/get/list/patch/watch workloads.scheduling.k8s.io",
            |facts| facts.cluster_roles.as_mut().unwrap()[1].rules = None,
        ),
    ];
    for (expected, change) in cases {
        let mut facts = healthy();
        change(&mut facts);
        assert_eq!(missing_rights(&facts), [expected]);
        assert_eq!(faults(&facts), ["permissions: Problem"], "{expected}");
    }
    // What the chart installs has a ServiceAccount.
    let mut facts = healthy();
    facts.control = Ok(Some(read(
        json!({"metadata": {}, "spec": {"selector": {}, "template": {}}}),
    )));
    assert_eq!(missing_rights(&facts).len(), 3, "{:?}", missing_rights(&facts));
    bind_account(&mut facts);
    assert!(missing_rights(&facts).is_empty(), "{:?}", missing_rights(&facts));
}

#[test]
fn jobs_for_certificates_of_etcd_need_their_rights() {
    let mut facts = healthy();
    facts.certificates_job = Ok(Some(read(
        json!({"metadata": {}, "spec": {"schedule": "0 3 * * *", "jobTemplate": {}}}),
    )));
    let expected = [
        "the Role berth-system/berth-certificates is missing",
        "the RoleBinding berth-system/berth-certificates is missing",
    ];
    assert_eq!(missing_rights(&facts), expected);
    let mut role = manifests::certificates_role();
    role.rules.as_mut().unwrap()[1].resource_names.as_mut().unwrap().pop();
    facts.roles.as_mut().unwrap().push(role);
    facts.role_bindings.as_mut().unwrap().push(read(json!({
        "metadata": {"name": "berth-certificates"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "berth-certificates"},
        "subjects": [{"kind": "ServiceAccount", "name": "berth-certificates", "namespace": "berth-system"}],
    })));
    let expected = "the Role berth-system/berth-certificates does not grant: get/patch secrets berth-etcd-peer";
    assert_eq!(missing_rights(&facts), [expected]);
}

#[test]
fn a_gateway_needs_its_rights() {
    let with_gateway = || {
        let mut facts = healthy();
        let (role, binding) = manifests::gateway_role();
        facts.cluster_roles.as_mut().unwrap().push(role);
        facts.cluster_role_bindings.as_mut().unwrap().push(binding);
        facts.gateway = Ok(Some(read(
            json!({"metadata": {}, "spec": {"selector": {}, "template": {}}}),
        )));
        facts
    };
    assert_eq!(missing_rights(&with_gateway()), Vec::<String>::new());
    let mut facts = with_gateway();
    drop(facts.cluster_roles.as_mut().unwrap().pop());
    assert_eq!(missing_rights(&facts), ["the ClusterRole berth-gateway is missing"]);
    let mut facts = with_gateway();
    drop(facts.cluster_role_bindings.as_mut().unwrap().pop());
    assert_eq!(
        missing_rights(&facts),
        ["the ClusterRoleBinding berth-gateway is missing"]
    );
    // Without the policies the chart does not grant the right that they confine.
    let without_patch = |facts: &mut Facts| {
        let role = facts.cluster_roles.as_mut().unwrap().last_mut().unwrap();
        role.rules.as_mut().unwrap()[0].verbs.retain(|verb| verb != "patch");
    };
    let mut facts = with_gateway();
    without_patch(&mut facts);
    let expected = "the ClusterRole berth-gateway does not grant: patch tenantclusters.berth.dev";
    assert_eq!(missing_rights(&facts), [expected]);
    facts.policies = Ok(Vec::new());
    assert_eq!(missing_rights(&facts), Vec::<String>::new());
}

/// Who may read some of it is shown what is wrong with that, and what could not be read, each once.
#[test]
fn what_cannot_be_read_is_never_ok_and_said_once() {
    type Change = fn(&mut Facts);
    fn deny<T>(what: &str) -> Read<T> {
        Err(format!("{what} is forbidden"))
    }
    let of_permissions = |facts: &Facts| -> Vec<(Level, String)> {
        let results = check(facts).into_iter().filter(|result| result.check == "permissions");
        results.map(|result| (result.level, result.message)).collect()
    };
    let cases: [(&str, Change); 8] = [
        ("clusterroles", |facts| facts.cluster_roles = deny("clusterroles")),
        ("clusterrolebindings", |facts| {
            facts.cluster_role_bindings = deny("clusterrolebindings");
        }),
        ("roles", |facts| facts.roles = deny("roles")),
        ("rolebindings", |facts| facts.role_bindings = deny("rolebindings")),
        ("cronjobs", |facts| facts.certificates_job = deny("cronjobs")),
        ("deployments", |facts| {
            facts.control = deny("deployments");
            facts.gateway = deny("deployments");
        }),
        // Without it, it is not known whom the bindings are for.
        ("deployments", |facts| facts.control = deny("deployments")),
        // What the gateway needs depends on them.
        ("policies", |facts| {
            let (role, binding) = manifests::gateway_role();
            facts.cluster_roles.as_mut().unwrap().push(role);
            facts.cluster_role_bindings.as_mut().unwrap().push(binding);
            facts.policies = deny("policies");
        }),
    ];
    for (what, change) in cases {
        let mut facts = healthy();
        change(&mut facts);
        let expected = format!("could not be checked: {what} is forbidden");
        assert_eq!(of_permissions(&facts), [(Level::Warning, expected)]);
    }
    // Other errors in between.
    let mut facts = healthy();
    facts.cluster_roles = deny("clusterroles");
    facts.roles = deny("roles");
    facts.cluster_role_bindings = deny("clusterrolebindings");
    assert_eq!(of_permissions(&facts).len(), 3, "{:?}", of_permissions(&facts));
    // What is known to be wrong is shown all the same.
    let mut facts = healthy();
    facts.roles = deny("roles");
    drop(facts.cluster_roles.as_mut().unwrap().remove(0));
    let levels: Vec<Level> = of_permissions(&facts).into_iter().map(|(level, _)| level).collect();
    assert_eq!(levels, [Level::Problem, Level::Warning]);
}
