//! The ClusterRoles of the chart that extend those of Kubernetes.

use crate::render::{named, template};
use berth_control::install::manifests;
use serde_json::{Value, json};

/// The names of the chart's ClusterRoles that are part of one of Kubernetes.
fn aggregated(all: &[Value]) -> Vec<String> {
    let is_part = |document: &&Value| {
        let mut labels = document["metadata"]["labels"].as_object().into_iter().flatten();
        labels.any(|(key, _)| key.starts_with("rbac.authorization.k8s.io/aggregate-to-"))
    };
    all.iter().filter(is_part).map(named).collect()
}

/// Where the verb `use` is not needed, a user who may edit TenantClusters may name every class and pool.
#[tokio::test]
async fn edit_is_extended_only_where_classes_and_pools_need_a_right_of_their_own() {
    let (view, edit) = ("ClusterRole/berth-tenants-view", "ClusterRole/berth-tenants-edit");
    for (values, expected) in [
        (json!({}), vec![edit, view]),
        // Values of an older release, with which a platform team may upgrade.
        (
            json!({"rbac": null, "admissionPolicies": {"requireUse": null}}),
            vec![edit, view],
        ),
        (json!({"admissionPolicies": {"requireUse": false}}), vec![view]),
        (json!({"admissionPolicies": {"enabled": false}}), vec![view]),
        (json!({"rbac": {"aggregateToDefaultRoles": false}}), vec![]),
    ] {
        let mut names = aggregated(&template(&values).await.unwrap());
        names.sort();
        assert_eq!(names, expected, "{values}");
    }
}

/// What all tenants used is for whom the platform names, and for no one who has a role in a namespace.
#[tokio::test]
async fn readers_of_usage_have_a_role_that_nothing_binds_or_extends() {
    const NAME: &str = "berth-usage-reader";
    let all = template(&json!({})).await.unwrap();
    let is_role = |document: &&Value| named(document) == format!("ClusterRole/{NAME}");
    let role = all.iter().find(is_role).unwrap();
    let rule = json!({"apiGroups": ["berth.dev"], "resources": ["usagerecords", "ratecards"], "verbs": ["get", "list", "watch"]});
    assert_eq!(role["rules"], json!([rule]));
    assert!(role["metadata"]["labels"].is_null(), "{role}");
    assert!(all.iter().all(|document| document["roleRef"]["name"] != NAME));
}

/// `berth doctor` compares what is installed with the Roles of the code.
#[tokio::test]
async fn roles_in_the_own_namespace_are_those_that_doctor_expects() {
    let all = template(&json!({})).await.unwrap();
    for expected in [manifests::role(), manifests::certificates_role()] {
        let name = format!("Role/{}", expected.metadata.name.as_deref().unwrap());
        let found = all.iter().find(|document| named(document) == name).unwrap();
        assert_eq!(found["rules"], json!(expected.rules), "{name}");
        assert_eq!(
            found["metadata"]["namespace"],
            json!(expected.metadata.namespace),
            "{name}"
        );
    }
}

#[tokio::test]
async fn nothing_that_is_extended_may_name_classes_or_read_secrets() {
    let all = template(&json!({})).await.unwrap();
    let roles = aggregated(&all);
    for role in all.iter().filter(|document| roles.contains(&named(document))) {
        for rule in role["rules"].as_array().unwrap() {
            assert_eq!(rule["apiGroups"], json!(["berth.dev"]), "{role}");
            let verbs = rule["verbs"].as_array().unwrap();
            assert!(!verbs.contains(&json!("use")) && !verbs.contains(&json!("*")), "{role}");
            let resources = rule["resources"].as_array().unwrap();
            assert!(
                resources
                    .iter()
                    .all(|resource| !resource.as_str().unwrap().contains('/')),
                "{role}"
            );
        }
    }
}
