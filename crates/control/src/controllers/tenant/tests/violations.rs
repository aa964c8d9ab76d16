//! A class or a pool that no longer allows what a tenant runs with.

use super::{
    fixture::{Fixture, NODE, TENANT},
    quota::{decide, reservation, reserved, waiting},
};
use crate::{
    controllers::tenant::{Validator, WithoutClass},
    testing::{TEAM_NAMESPACES, VERSION},
};
use berth_api::StorageOffer;
use berth_node_lifecycle::fleet::WithdrawnNodes;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;

const POOL: &str = "/apis/berth.dev/v1alpha1/hostnodepools/h100";

/// A tenant of class gold, which allows everything and offers one StorageClass.
async fn ready() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.give_class(&json!({"sync": {"storage": {"classes": ["fast"]}}}));
    fixture.reconcile_until_ready().await;
    assert_eq!(reason(&fixture, "Compliant"), "Allowed");
    fixture
}

fn reason(fixture: &Fixture, condition: &str) -> String {
    let condition = fixture.condition(condition).unwrap_or_default();
    condition["reason"].as_str().unwrap_or_default().to_owned()
}

/// Reason, and whether it is enforced, of all violations.
fn violations(fixture: &Fixture) -> Vec<(String, bool)> {
    let status = fixture.status();
    let all = status["violations"].as_array().cloned().unwrap_or_default();
    all.iter()
        .map(|violation| {
            (
                violation["reason"].as_str().unwrap().to_owned(),
                violation["enforced"] == true,
            )
        })
        .collect()
}

fn event_reasons(fixture: &Fixture) -> Vec<String> {
    let events = fixture.host.find("/events/");
    let warnings = events.iter().filter(|event| event["type"] == "Warning");
    warnings
        .map(|event| event["reason"].as_str().unwrap_or_default().to_owned())
        .collect()
}

/// Nodes that the planner takes from the tenant, as far as the watches have seen its status.
fn withdrawn(fixture: &Fixture) -> WithdrawnNodes {
    let context = &fixture.context;
    let runtime = context.runtime.as_ref();
    let validator = Validator::new(&context.stores, runtime, &context.network_config, context.without_class);
    let cluster = &context.stores.tenants.state()[0];
    validator.withdrawn_nodes(cluster, Timestamp::now())
}

/// The settings that the tenant runs with.
fn settings(fixture: &Fixture) -> Value {
    let maps = fixture.host.find("/configmaps/settings");
    serde_json::from_str(maps[0]["data"]["settings.json"].as_str().unwrap()).unwrap()
}

#[tokio::test]
async fn a_class_that_forbids_the_namespace_is_reported_first_and_enforced_then() {
    let mut fixture = ready().await;
    let forbids = json!({
        "allowedNamespaces": {"from": "None"}, "enforcementGracePeriod": "0s",
        "sync": {"storage": {"classes": ["slow"]}},
    });
    fixture.set_class(&forbids);
    fixture.reconcile().await.unwrap();
    assert_eq!(reason(&fixture, "Accepted"), "ClassNotAllowed");
    assert_eq!(reason(&fixture, "Compliant"), "EnforcementPending");
    assert_eq!(violations(&fixture), [("ClassNotAllowed".to_owned(), false)]);
    // Everything runs, and with the rules that the class has now.
    assert_eq!(reason(&fixture, "ControlPlaneReady"), "Running");
    assert_eq!(settings(&fixture)["sync"]["storage"]["classes"], json!(["slow"]));
    fixture.reconcile().await.unwrap();
    assert_eq!(violations(&fixture), [("ClassNotAllowed".to_owned(), true)]);
    assert_eq!(reason(&fixture, "Compliant"), "Enforced");
    assert_eq!(reason(&fixture, "ControlPlaneReady"), "Running");
    let reasons = event_reasons(&fixture);
    for expected in ["ClassNotAllowed", "ViolationEnforced"] {
        assert!(reasons.iter().any(|reason| reason == expected), "{reasons:?}");
    }
    fixture.set_class(&json!({}));
    fixture.reconcile_until_ready().await;
    assert_eq!(
        (reason(&fixture, "Compliant"), violations(&fixture)),
        ("Allowed".into(), vec![])
    );
}

/// Root on a node reports any address: that of another tenant's database is closed then, and nothing else happens to that tenant.
#[tokio::test]
async fn no_spec_is_rejected_because_of_an_address_that_a_node_reports() {
    let mut fixture = ready().await;
    fixture.set_class(
        &json!({"sync": {"storage": {"classes": ["fast"]}}, "network": {"egress": {"allowedCIDRs": ["0.0.0.0/0"]}}}),
    );
    let mut node = fixture.host.get(NODE).unwrap();
    node["status"]["addresses"] = json!([{"type": "ExternalIP", "address": "198.51.100.7"}]);
    node["spec"] = json!({"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24"]});
    fixture.host.insert(NODE, node);
    for (network, status) in [
        ("169.254.0.0/16", "False"),
        ("224.0.0.0/4", "False"),
        ("10.244.0.7/32", "False"),
        ("198.51.100.7/32", "True"),
    ] {
        fixture.change_tenant(|cluster| {
            cluster["spec"]["network"] = json!({"egress": {"allow": [{"cidr": network}]}});
        });
        fixture.reconcile().await.unwrap();
        assert_eq!(fixture.reason("Accepted").0, status, "{network}");
    }
}

#[tokio::test]
async fn violations_stay_and_go_whatever_is_said_of_who_has_written_the_status() {
    let mut fixture = ready().await;
    let idle = json!({"mode": "DryRun", "gpus": 1, "idleGPUs": 1});
    let usage = json!([{"month": "2026-11", "meteredThrough": "2026-11-10T12:00:00Z", "inUse": true,
        "hours": [{"resource": "GPU", "hours": "8.0"}]}]);
    fixture.change_tenant(|cluster| {
        cluster["status"]["idle"] = idle.clone();
        cluster["status"]["monthlyUsage"] = usage.clone();
    });
    let forbids = json!({"allowedNamespaces": {"from": "None"}, "enforcementGracePeriod": "1h"});
    fixture.set_class(&forbids);
    fixture.reconcile().await.unwrap();
    let forged = json!({"manager": "berth-control", "operation": "Apply", "subresource": "status", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:status": {"f:idle": {}}}});
    for (generation, writers) in [(2, json!([])), (3, json!([forged]))] {
        fixture.change_tenant(|cluster| {
            cluster["metadata"]["managedFields"] = writers;
            cluster["metadata"]["generation"] = generation.into();
        });
        fixture.reconcile().await.unwrap();
        assert_eq!(violations(&fixture), [("ClassNotAllowed".to_owned(), false)]);
        assert_eq!(fixture.status()["idle"], idle);
        assert_eq!(fixture.status()["monthlyUsage"], usage);
    }
    fixture.set_class(&json!({}));
    fixture.reconcile_until_ready().await;
    assert_eq!(violations(&fixture), vec![]);
    assert_eq!(fixture.status()["idle"], idle);
}

#[tokio::test]
async fn storage_is_withdrawn_from_a_tenant_whose_spec_is_accepted_and_given_back() {
    let mut fixture = ready().await;
    let namespace = fixture.id.workload_namespace();
    let (claim, pod) = (format!("{namespace}/data"), format!("{namespace}/train"));
    let (claims, pods) = (
        Arc::clone(&fixture.context.stores.storage_claims),
        Arc::clone(&fixture.context.stores.inline_volumes),
    );
    claims.put(&claim, vec![StorageOffer::StorageClass("fast".into())]);
    fixture.reconcile().await.unwrap();
    assert_eq!(reason(&fixture, "Compliant"), "Allowed");
    let offers = |classes: Value| json!({"enforcementGracePeriod": "0s", "sync": {"storage": {"classes": classes}}});
    fixture.set_class(&offers(json!(["slow"])));
    for (enforced, withdrawn) in [(false, json!(null)), (true, json!(["StorageClass/fast"]))] {
        fixture.reconcile().await.unwrap();
        assert_eq!(reason(&fixture, "Accepted"), "Valid");
        assert_eq!(violations(&fixture), [("StorageClassNotAllowed".to_owned(), enforced)]);
        assert_eq!(settings(&fixture)["withdrawnStorage"], withdrawn);
    }
    // As long as the claim is there, whatever else happens.
    fixture.reconcile().await.unwrap();
    assert_eq!(settings(&fixture)["withdrawnStorage"], json!(["StorageClass/fast"]));
    fixture.set_class(&offers(json!(["slow", "fast"])));
    fixture.reconcile_until_ready().await;
    assert_eq!(violations(&fixture), vec![]);
    assert_eq!(settings(&fixture)["withdrawnStorage"], json!(null));
    // The class offers no driver.
    pods.put(&pod, vec![StorageOffer::InlineDriver("inline.example.com".into())]);
    for enforced in [false, true] {
        fixture.reconcile().await.unwrap();
        assert_eq!(violations(&fixture), [("InlineDriverNotAllowed".to_owned(), enforced)]);
    }
    assert_eq!(
        settings(&fixture)["withdrawnStorage"],
        json!(["CSIDriver/inline.example.com"])
    );
    pods.put(&pod, Vec::new());
    fixture.set_class(&offers(json!([])));
    fixture.reconcile().await.unwrap();
    claims.put(&claim, Vec::new());
    fixture.reconcile().await.unwrap();
    assert_eq!(reason(&fixture, "Compliant"), "Allowed");
}

#[tokio::test]
async fn nodes_are_withdrawn_after_the_status_says_so_and_only_if_it_still_holds() {
    let mut fixture = ready().await;
    let forbids = |grace: &str| json!({"allowedNamespaces": {"from": "None"}, "enforcementGracePeriod": grace});
    fixture.set_class(&forbids("0s"));
    // Each reconcile sees the status that the one before it wrote.
    for enforced in [false, false, true] {
        fixture.reconcile().await.unwrap();
        assert_eq!(withdrawn(&fixture).all, enforced, "{}", fixture.status()["violations"]);
    }
    // The status still says that it is enforced.
    for later in [forbids("1h"), json!({})] {
        fixture.set_class(&later);
        fixture.reconcile().await.unwrap();
        assert_eq!(withdrawn(&fixture), WithdrawnNodes::default(), "{later}");
        fixture.set_class(&forbids("0s"));
        for _ in 0..3 {
            fixture.reconcile().await.unwrap();
        }
        assert!(withdrawn(&fixture).all);
    }
}

#[tokio::test]
async fn nodes_of_a_pool_are_withdrawn_and_no_others() {
    let mut fixture = ready().await;
    let change_pool = |fixture: &Fixture, change: fn(&mut Value)| {
        let mut pool = fixture.host.get(POOL).unwrap();
        pool["spec"]["enforcementGracePeriod"] = "0s".into();
        change(&mut pool["spec"]);
        fixture.host.insert(POOL, pool);
    };
    change_pool(&fixture, |spec| spec["allowedNamespaces"] = json!({"from": "None"}));
    for _ in 0..3 {
        fixture.reconcile().await.unwrap();
    }
    let of_pool = WithdrawnNodes {
        pools: ["h100".to_owned()].into(),
        ..WithdrawnNodes::default()
    };
    assert_eq!(withdrawn(&fixture), of_pool);
    change_pool(&fixture, |spec| {
        spec["allowedNamespaces"] = json!({"from": "All"});
        spec["modes"] = json!(["Dynamic"]);
    });
    for _ in 0..3 {
        fixture.reconcile().await.unwrap();
    }
    assert_eq!(violations(&fixture), [("ModeNotOffered".to_owned(), true)]);
    let of_group = WithdrawnNodes {
        groups: ["train".to_owned()].into(),
        ..WithdrawnNodes::default()
    };
    assert_eq!(withdrawn(&fixture), of_group);
}

#[tokio::test]
async fn a_spec_that_is_not_accepted_keeps_no_rule_of_the_class_away() {
    let mut fixture = ready().await;
    let mut cluster = fixture.host.get(TENANT).unwrap();
    cluster["spec"]["version"] = "v1.99.0".into();
    fixture.host.insert(TENANT, cluster);
    fixture.set_class(&json!({"sync": {"storage": {"classes": ["slow"]}}}));
    fixture.reconcile().await.unwrap();
    assert_eq!(reason(&fixture, "Accepted"), "UnsupportedVersion");
    assert_eq!(settings(&fixture)["sync"]["storage"]["classes"], json!(["slow"]));
    assert_ne!(settings(&fixture)["version"], "v1.99.0");
    // What runs is allowed.
    assert_eq!(reason(&fixture, "Compliant"), "Allowed");
}

#[tokio::test]
async fn without_quota_a_class_lowers_limits_and_does_not_raise_them() {
    for (version, verdict, accepted) in [
        ("v1.99.0", reserved(reservation()), "UnsupportedVersion"),
        (VERSION, waiting(Some(reservation())), "Valid"),
    ] {
        let mut fixture = ready().await;
        decide(&fixture, reserved(reservation()));
        fixture.reconcile_until_ready().await;
        let before = settings(&fixture)["limits"]["pods"].as_u64().unwrap();
        let mut cluster = fixture.host.get(TENANT).unwrap();
        cluster["spec"]["version"] = version.into();
        fixture.host.insert(TENANT, cluster);
        let rules = |pods: u64| {
            json!({
                "limits": {"pods": pods, "services": 7}, "sync": {"storage": {"classes": ["slow"]}},
            })
        };
        for (pods, expected) in [(before + 1, before), (before - 1, before - 1)] {
            fixture.set_class(&rules(pods));
            decide(&fixture, verdict.clone());
            fixture.reconcile().await.unwrap();
            assert_eq!(reason(&fixture, "Accepted"), accepted);
            let limits = settings(&fixture)["limits"].clone();
            assert_eq!((&limits["pods"], &limits["services"]), (&json!(expected), &json!(7)));
        }
        assert_eq!(settings(&fixture)["sync"]["storage"]["classes"], json!(["slow"]));
    }
}

#[tokio::test]
async fn a_forbidden_version_is_reported_and_stays() {
    let mut fixture = ready().await;
    let version = settings(&fixture)["version"].clone();
    fixture.set_class(&json!({"versions": ["v1.36.4"], "enforcementGracePeriod": "0s"}));
    for _ in 0..3 {
        fixture.reconcile().await.unwrap();
        assert_eq!(reason(&fixture, "Compliant"), "NotEnforced");
    }
    assert_eq!(settings(&fixture)["version"], version);
}

#[tokio::test]
async fn since_when_something_is_forbidden_survives_settings_that_cannot_be_read() {
    let mut fixture = ready().await;
    fixture.set_class(&json!({"allowedNamespaces": {"from": "None"}}));
    fixture.reconcile().await.unwrap();
    let before = fixture.status()["violations"].clone();
    assert_eq!(before[0]["enforced"], false, "{before}");
    // The first call of a reconcile reads the settings.
    fixture.script.fail_call(fixture.count_calls());
    fixture.reconcile().await.unwrap_err();
    assert_eq!(fixture.status()["violations"], before);
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.status()["violations"], before);
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_reported_until_the_spec_is_accepted() {
    for record in [json!({"settings.json": "{}"}), json!({"settings.json": "?"}), json!({})] {
        let mut fixture = ready().await;
        let path = format!(
            "/api/v1/namespaces/{}/configmaps/settings",
            fixture.id.control_plane_namespace()
        );
        let mut map = fixture.host.get(&path).unwrap();
        map["data"] = record.clone();
        fixture.host.insert(&path, map);
        let version = |version: &'static str| move |cluster: &mut Value| cluster["spec"]["version"] = version.into();
        fixture.change_tenant(version("v1.99.0"));
        let before = fixture.status();
        for _ in 0..2 {
            let error = fixture.reconcile().await.unwrap_err();
            assert_eq!(error.reason(), "SettingsUnreadable", "{record}");
        }
        assert_eq!(reason(&fixture, "Accepted"), "UnsupportedVersion");
        let condition = fixture.condition("InfrastructureReady").unwrap();
        assert_eq!(condition["reason"], "SettingsUnreadable");
        let message = condition["message"].as_str().unwrap();
        assert!(message.contains("/settings of the host"), "{message}");
        let events = event_reasons(&fixture);
        let published = { events.iter() }.filter(|reason| *reason == "SettingsUnreadable");
        assert_eq!(published.count(), 1, "{events:?}");
        for unchanged in ["className", "version", "endpoint", "kubeconfig"] {
            assert_eq!(fixture.status()[unchanged], before[unchanged], "{unchanged}");
        }
        fixture.change_tenant(version(VERSION));
        fixture.reconcile_until_ready().await;
        assert_eq!(settings(&fixture)["version"], VERSION);
    }
}

#[tokio::test]
async fn the_labels_of_the_namespace_decide_and_may_change() {
    let mut fixture = Fixture::new();
    let mut pool = fixture.host.get(POOL).unwrap();
    pool["spec"]["allowedNamespaces"] = json!({"from": "Selector", "selector": {"matchLabels": {"team": "vision"}}});
    fixture.host.insert(POOL, pool);
    let label = |fixture: &Fixture, team: &str| {
        let metadata = json!({"name": "team", "labels": {"team": team}});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
        fixture.host.insert(&format!("{TEAM_NAMESPACES}team"), namespace);
    };
    fixture.reconcile().await.unwrap();
    assert_eq!(reason(&fixture, "Accepted"), "NamespaceUnknown");
    label(&fixture, "speech");
    fixture.reconcile().await.unwrap();
    assert_eq!(reason(&fixture, "Accepted"), "PoolNotAllowed");
    assert!(fixture.condition("Compliant").is_none(), "nothing runs");
    label(&fixture, "vision");
    fixture.reconcile_until_ready().await;
    label(&fixture, "speech");
    fixture.reconcile().await.unwrap();
    assert_eq!(violations(&fixture), [("PoolNotAllowed".to_owned(), false)]);
    let violation = fixture.status()["violations"][0].clone();
    assert_eq!(violation["object"], "HostNodePool/h100");
    assert!(violation["deadline"].is_string(), "a day by default: {violation}");
}

#[tokio::test]
async fn without_a_class_a_new_tenant_gets_nothing_and_a_running_one_goes_on() {
    let default = "/apis/berth.dev/v1alpha1/tenantclasses/default";
    let mut new = Fixture::new();
    new.context.without_class = WithoutClass::Deny;
    new.reconcile().await.unwrap();
    assert_eq!(reason(&new, "Accepted"), "NoClass");
    assert!(new.host.find(&new.id.control_plane_namespace()).is_empty());
    let class = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": "default"}, "spec": {},
    });
    new.host.insert(default, class);
    new.reconcile_until_ready().await;

    let mut running = Fixture::new();
    running.reconcile_until_ready().await;
    running.context.without_class = WithoutClass::Deny;
    for _ in 0..3 {
        running.reconcile().await.unwrap();
        assert_eq!(reason(&running, "Accepted"), "NoClass");
        assert_eq!(reason(&running, "Compliant"), "NotEnforced");
        assert_eq!(reason(&running, "ControlPlaneReady"), "Running");
    }
}

#[tokio::test]
async fn a_tenant_that_is_not_accepted_ends_and_has_the_manifests_that_its_class_says_now() {
    let mut fixture = ready().await;
    let manifests = json!([{"name": "base", "version": "v1", "mode": "Keep", "configMapRef": {"name": "base"}}]);
    let rules = json!({"versions": ["v1.36.4"], "expiration": {"maxTTL": "2h"}, "manifests": manifests});
    fixture.set_class(&rules);
    fixture.reconcile().await.unwrap();
    assert_eq!(reason(&fixture, "Accepted"), "VersionNotAllowed");
    assert_eq!(reason(&fixture, "Expiring"), "ExpiresWithinDay");
    assert_eq!(settings(&fixture)["manifests"], manifests);
}

#[tokio::test]
async fn the_end_of_a_tenant_survives_settings_that_cannot_be_read() {
    let mut fixture = ready().await;
    let rules = json!({"versions": ["v1.36.4"], "expiration": {"maxExpireAfterIdle": "2h"}});
    fixture.set_class(&rules);
    fixture.reconcile().await.unwrap();
    let before = fixture.status();
    assert!(before["idleSince"].is_string(), "{before}");
    // The first call of a reconcile reads the settings.
    fixture.script.fail_call(fixture.count_calls());
    fixture.reconcile().await.unwrap_err();
    let after = fixture.status();
    assert_eq!(
        (&after["idleSince"], &after["expiresAt"]),
        (&before["idleSince"], &before["expiresAt"])
    );
    assert_eq!(reason(&fixture, "Expiring"), "ExpiresWithinDay");
}

#[tokio::test]
async fn another_class_does_not_begin_the_grace_period_of_storage_anew() {
    let mut fixture = ready().await;
    let namespace = fixture.id.workload_namespace();
    let claims = Arc::clone(&fixture.context.stores.storage_claims);
    for class in ["fast", "slow"] {
        let uses = vec![StorageOffer::StorageClass(class.into())];
        claims.put(&format!("{namespace}/{class}"), uses);
    }
    let silver = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": "silver", "uid": "silver"},
        "spec": {"sync": {"storage": {"classes": ["slow"]}}}});
    let path = "/apis/berth.dev/v1alpha1/tenantclasses/silver";
    fixture.host.insert(path, silver);
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.status()["violations"][0]["object"], "StorageClass/slow");
    let long_ago = "2026-01-01T00:00:00Z";
    fixture.change_tenant(|cluster| {
        cluster["status"]["violations"][0]["since"] = long_ago.into();
        cluster["spec"]["className"] = "silver".into();
    });
    for _ in 0..5 {
        fixture.reconcile().await.unwrap();
    }
    let status = fixture.status();
    let violation = &status["violations"][0];
    assert_eq!(
        (&status["className"], &violation["object"], &violation["since"]),
        (&json!("silver"), &json!("StorageClass/fast"), &json!(long_ago))
    );
}
