//! Projects and Organizations that are deleted while they have tenants.

use super::{Fixture, ORGANIZATION, PROJECT, tenant_path};
use serde_json::{Value, json};

fn delete(object: &mut Value) {
    object["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z".into();
}

#[tokio::test]
async fn a_level_is_deleted_after_its_tenants_and_its_quotas_apply_until_then() {
    let mut fixture = Fixture::new(1);
    fixture.reconcile().await;
    assert_eq!(fixture.finalizers(PROJECT), Value::Null, "it has no tenants");
    fixture.add_tenant("a", "team", 1, &Value::Null);
    fixture.reconcile().await;
    for path in [PROJECT, ORGANIZATION] {
        assert_eq!(
            fixture.finalizers(path),
            json!([berth_api::labels::QUOTA_FINALIZER]),
            "{path}"
        );
        assert_eq!(fixture.condition(path, "Deleting"), None);
        fixture.change(path, delete);
    }
    fixture.add_tenant("b", "team", 2, &Value::Null);
    fixture.reconcile().await;
    assert_eq!(fixture.reserved(), ["a"]);
    for path in [PROJECT, ORGANIZATION] {
        let deleting = fixture.condition(path, "Deleting").unwrap();
        assert_eq!(deleting["reason"], "TenantsExist", "{path}");
        let message = deleting["message"].as_str().unwrap();
        assert!(message.contains(": team/a, team/b. Delete them"), "{message}");
    }
    assert_eq!(fixture.host.find("/events/").len(), 2);
    fixture.host.remove(&tenant_path("a", "team"));
    fixture.reconcile().await;
    assert_eq!(fixture.reserved(), ["b"]);
    fixture.host.remove(&tenant_path("b", "team"));
    fixture.reconcile().await;
    assert_eq!(
        (fixture.host.get(PROJECT), fixture.host.get(ORGANIZATION)),
        (None, None)
    );
}

#[tokio::test]
async fn an_annotation_ends_the_protection_of_a_level() {
    let mut fixture = Fixture::new(1);
    fixture.add_tenant("a", "team", 1, &Value::Null);
    fixture.change(PROJECT, |project| {
        project["metadata"]["annotations"] = json!({berth_api::labels::FORCE_DELETE: "true"});
    });
    fixture.reconcile().await;
    assert_eq!(
        fixture.finalizers(PROJECT),
        json!([berth_api::labels::QUOTA_FINALIZER]),
        "it is not deleted"
    );
    fixture.change(PROJECT, delete);
    fixture.reconcile().await;
    assert_eq!(fixture.host.get(PROJECT), None);
}

#[tokio::test]
async fn a_level_that_lost_its_last_tenant_has_no_finalizer() {
    let mut fixture = Fixture::new(1);
    fixture.add_tenant("a", "team", 1, &Value::Null);
    fixture.reconcile().await;
    fixture.host.remove(&tenant_path("a", "team"));
    fixture.reconcile().await;
    for path in [PROJECT, ORGANIZATION] {
        assert_eq!(fixture.finalizers(path), json!([]), "{path}");
    }
}

#[tokio::test]
async fn a_level_that_only_others_hold_does_not_say_that_it_waits_for_tenants() {
    let mut fixture = Fixture::new(1);
    fixture.add_tenant("a", "team", 1, &Value::Null);
    fixture.reconcile().await;
    for path in [PROJECT, ORGANIZATION] {
        fixture.change(path, |level| {
            let finalizers = level["metadata"]["finalizers"].as_array_mut().unwrap();
            finalizers.push(json!("example.com/keep"));
            delete(level);
        });
    }
    fixture.reconcile().await;
    for path in [PROJECT, ORGANIZATION] {
        assert!(fixture.condition(path, "Deleting").is_some(), "{path}");
    }
    fixture.host.remove(&tenant_path("a", "team"));
    fixture.reconcile().await;
    for path in [PROJECT, ORGANIZATION] {
        assert_eq!(fixture.finalizers(path), json!(["example.com/keep"]), "{path}");
        assert_eq!(fixture.condition(path, "Deleting"), None, "{path}");
        assert!(fixture.condition(path, "Ready").is_some(), "{path}");
    }
}
