//! What the schema of a TenantClass rejects, and that it accepts the examples.

use crate::classes::class;
use berth_api::TenantClass;
use berth_tests::{files::example, objects::expect_rejected, test_cluster::TestCluster};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) async fn schemas_reject_invalid_rules(host: Arc<TestCluster>) {
    let refused = [
        (class("1st", &json!({})), "starts with a letter"),
        (class("c", &json!({"versions": ["1.37.1"]})), "spec.versions[0]"),
        (
            class("c", &json!({"versions": ["v1.37.1", "v1.37.1"]})),
            "duplicate entries",
        ),
        (class("c", &json!({"defaultVersion": "1.37.1"})), "spec.defaultVersion"),
        (
            class("c", &json!({"defaultVersion": "v1.37.1", "versions": ["v1.36.4"]})),
            "defaultVersion must be one of versions",
        ),
        (class("c", &json!({"schedulingMode": "Nobody"})), "schedulingMode"),
        (
            class("c", &json!({"encryption": {"resources": ["namespaces"]}})),
            "spec.encryption.resources[0]",
        ),
        (
            class(
                "c",
                &json!({"encryption": {"resources": ["roles.rbac.authorization.k8s.io"]}}),
            ),
            "resources of groups that end with .k8s.io cannot be encrypted",
        ),
        (
            class("c", &json!({"network": {"endpointCIDRs": ["10.0.0.0/33"]}})),
            "must be a network",
        ),
        (
            class("c", &json!({"network": {"blockedCIDRs": ["10.0.0.1"]}})),
            "must be a network",
        ),
        (
            class(
                "c",
                &json!({"sync": {"pods": {"priority": {"lowest": 5, "highest": 5}}}}),
            ),
            "lowest must be less than highest",
        ),
        (
            class("c", &json!({"sync": {"ingress": {"hostnames": ["*.*.example.com"]}}})),
            "spec.sync.ingress.hostnames[0]",
        ),
        (
            class(
                "c",
                &json!({"sync": {"ingress": {"hostnames": ["*.{team}.example.com"]}}}),
            ),
            "placeholders in hostnames are {tenant} and {namespace}",
        ),
        (
            class(
                "c",
                &json!({"sync": {"ingress": {"hostnames": ["app-{tenant}.example.com"]}}}),
            ),
            "placeholders in hostnames are {tenant} and {namespace}",
        ),
        (
            class(
                "c",
                &json!({"idleReclaim": {"lastStep": "StopOwner", "ownerKinds": []}}),
            ),
            "needs at least one kind",
        ),
        (
            class(
                "c",
                &json!({"idleReclaim": {"ownerKinds": [{"group": "apps", "kind": "DaemonSet"}]}}),
            ),
            "can be stopped",
        ),
        (class("c", &json!({"idleReclaim": {"lastStep": "Delete"}})), "lastStep"),
        (
            class(
                "c",
                &json!({"authentication": {"serviceAccountMaxTokenExpiration": "59m"}}),
            ),
            "must be at least 1h",
        ),
    ];
    let refused = { refused.into_iter() }
        .chain(invalid_owner_kinds())
        .chain(invalid_audits())
        .chain(invalid_images());
    for (object, expected) in refused {
        expect_rejected(&host.client, "", &object, expected).await;
    }
}

/// Classes that list kinds of owners in a way that is not valid, and what the message says.
fn invalid_owner_kinds() -> Vec<(Value, &'static str)> {
    vec![
        (
            owner_kind("batch", "Job", &json!({"path": "spec.suspend"})),
            "Berth knows how to stop these",
        ),
        (
            owner_kind("kubeflow.org", "Notebook", &json!({})),
            "set one of path and annotation",
        ),
        (
            owner_kind(
                "ray.io",
                "RayCluster",
                &json!({"path": "spec.suspend", "annotation": "stop"}),
            ),
            "set one of path and annotation",
        ),
        (
            owner_kind(
                "ray.io",
                "RayCluster",
                &json!({"path": "spec.suspend", "value": "true"}),
            ),
            "is for annotation: with path, the field becomes true",
        ),
        (
            owner_kind("ray.io", "RayCluster", &json!({"path": "metadata.labels"})),
            "suspend.path",
        ),
        (
            owner_kind("kubeflow.org", "Notebook", &json!({"annotation": "berth.dev/restore"})),
            "are Berth's own",
        ),
        (
            owner_kind("kubeflow.org", "Notebook", &json!({"annotation": "a/b/c"})),
            "suspend.annotation",
        ),
    ]
}

/// Classes whose audit policy no API server reads, and what the message says.
fn invalid_audits() -> Vec<(Value, &'static str)> {
    let rule = |rule: Value| json!({ "rules": [rule] });
    let audits = [
        (json!({}), "set one of preset and rules"),
        (json!({"rules": []}), "set one of preset and rules"),
        (
            json!({"preset": "Writes", "rules": [{"level": "None"}]}),
            "set one of preset and rules",
        ),
        (json!({"preset": "All"}), "spec.audit.preset"),
        (rule(json!({"users": ["ada"]})), "spec.audit.rules[0].level"),
        (rule(json!({"level": "All"})), "spec.audit.rules[0].level"),
        (
            rule(json!({"level": "None", "nonResourceURLs": ["metrics"]})),
            "spec.audit.rules[0].nonResourceURLs[0]",
        ),
        (
            rule(json!({"level": "None", "nonResourceURLs": ["/metrics"], "namespaces": ["a"]})),
            "a rule is for nonResourceURLs, or for resources and namespaces",
        ),
        (
            rule(json!({"level": "None", "verbs": ["*"]})),
            "spec.audit.rules[0].verbs[0]",
        ),
        (
            rule(json!({"level": "None", "resources": [{"group": "apps/v1"}]})),
            "spec.audit.rules[0].resources[0].group",
        ),
        (
            rule(json!({"level": "None", "resources": [{"resources": ["*/*"]}]})),
            "spec.audit.rules[0].resources[0].resources[0]",
        ),
        (
            rule(json!({"level": "None", "resources": [{"resourceNames": ["a"]}]})),
            "resourceNames needs resources",
        ),
        (
            rule(json!({"level": "None", "omitStages": ["Done"]})),
            "spec.audit.rules[0].omitStages[0]",
        ),
    ];
    let of_class = |(audit, expected): (Value, &'static str)| (class("c", &json!({ "audit": audit })), expected);
    audits.into_iter().map(of_class).collect()
}

/// Classes with images that are not valid, and what the message says.
fn invalid_images() -> Vec<(Value, &'static str)> {
    let lists = [
        (json!([]), "spec.sync.pods.images"),
        (json!(["nginx"]), "spec.sync.pods.images[0]"),
        (json!(["*", "team/*"]), "spec.sync.pods.images[1]"),
        (json!(["registry.example.com"]), "spec.sync.pods.images[0]"),
        (json!(["registry.example.com/teams*"]), "spec.sync.pods.images[0]"),
        (json!(["registry.example.com/x:1"]), "spec.sync.pods.images[0]"),
        (json!(["registry.example.com/{team}/*"]), "spec.sync.pods.images[0]"),
        (json!(["registry.example.com/a,*"]), "spec.sync.pods.images[0]"),
        (json!(["docker.io/nginx"]), "images of Docker Hub are named"),
        (
            json!(["index.docker.io/library/nginx"]),
            "images of Docker Hub are named",
        ),
    ];
    let of_class = |(images, expected): (Value, &'static str)| {
        let spec = json!({"sync": {"pods": {"images": images}}});
        (class("c", &spec), expected)
    };
    lists.into_iter().map(of_class).collect()
}

/// A class that lists a kind of owners.
fn owner_kind(group: &str, kind: &str, suspend: &Value) -> Value {
    let owner_kind = json!({"group": group, "kind": kind, "suspend": suspend});
    class("c", &json!({"idleReclaim": {"ownerKinds": [owner_kind]}}))
}

pub(crate) async fn the_examples_are_valid(host: Arc<TestCluster>) {
    let classes: Api<TenantClass> = Api::all(host.client.clone());
    let params = PatchParams::apply("berth-tests").dry_run();
    for file in ["default", "training", "serving", "research", "audited", "encrypted"] {
        for class in example::<TenantClass>(&format!("classes/{file}.yaml")) {
            assert_eq!(class.name_any(), file);
            let stored = classes.patch(file, &params, &Patch::Apply(&class)).await.unwrap();
            assert_eq!(stored.spec, class.spec, "nothing was pruned or defaulted");
            assert_eq!(berth_control::controllers::tenant_class::validate(&class.spec), Ok(()));
        }
    }
}
