use super::{IDLE_FIELDS, StatusTarget, TENANT_FIELDS, USAGE_FIELDS, write_status};
use crate::{
    apply::is_status,
    testing::{Script, ScriptedApi},
};
use berth_api::{TenantCluster, TenantClusterStatus};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const PATH: &str = "/apis/berth.dev/v1alpha1/namespaces/team/tenantclusters/vision";

/// A host with one tenant, what control has seen of it, and its calls.
struct Host {
    api: ScriptedApi,
    script: Script,
    seen: TenantCluster,
}

impl Host {
    fn new(status: &Value) -> Self {
        let script = Script::default();
        let api = ScriptedApi::new("host", &script);
        let object = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "spec": {},
            "metadata": {"name": "vision", "namespace": "team", "uid": "a"}, "status": status,
        });
        api.insert(PATH, object);
        let seen = serde_json::from_value(api.get(PATH).unwrap()).unwrap();
        Self { api, script, seen }
    }

    fn change(&self, change: impl FnOnce(&mut Value)) {
        let mut object = self.api.get(PATH).unwrap();
        change(&mut object);
        self.api.insert(PATH, object);
    }

    fn status(&self) -> Value {
        self.api.get(PATH).unwrap()["status"].clone()
    }

    async fn write(&self, fields: &BTreeSet<String>, status: &TenantClusterStatus) -> kube::Result<()> {
        let target = StatusTarget::of(&self.seen);
        write_status::<TenantCluster>(&self.api.client(), target, fields, status).await
    }

    async fn write_only(&self, version: &str, status: &TenantClusterStatus) -> kube::Result<()> {
        let target = StatusTarget {
            only_version: Some(version),
            ..StatusTarget::of(&self.seen)
        };
        write_status::<TenantCluster>(&self.api.client(), target, &TENANT_FIELDS, status).await
    }

    fn calls(&self) -> Vec<String> {
        let calls = self.script.calls().into_iter();
        calls
            .map(|call| call.text.split(' ').nth(1).unwrap_or_default().to_owned())
            .collect()
    }
}

fn full_status() -> Value {
    json!({
        "version": "v1.37.1",
        "controlPlaneNamespace": "berth-vision-cp",
        "expirationLimits": {"ttl": {"limit": "72h"}, "idle": {"limit": "8h"}},
        "violations": [{"reason": "R", "object": "o", "message": "m", "since": "2026-01-01T00:00:00Z"}],
        "idle": {"mode": "DryRun", "gpus": 2, "idleGPUs": 1},
    })
}

/// Some fields are gone, and a part of another one.
fn next_status() -> TenantClusterStatus {
    let status = json!({"version": "v1.37.2", "expirationLimits": {"ttl": {"limit": "72h"}}});
    serde_json::from_value(status).unwrap()
}

/// The same as it is stored, with what the other writer has written.
fn expected_status(idle: &Value) -> Value {
    let mut status = serde_json::to_value(next_status()).unwrap();
    status["idle"] = idle.clone();
    status
}

/// What a team can write without admission policies: that others have applied what control has written, or that nobody has.
fn forged_writers() -> [Value; 4] {
    let entry = |manager: &str, fields: &[&str]| {
        let fields: serde_json::Map<String, Value> = { fields.iter() }
            .map(|field| (format!("f:{field}"), json!({})))
            .collect();
        json!({"manager": manager, "operation": "Apply", "subresource": "status", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:status": fields}})
    };
    let pinned = entry("pin", &["violations", "controlPlaneNamespace", "expirationLimits"]);
    [
        json!([]),
        json!([{}]),
        json!([entry("berth-control", &["idle"]), pinned]),
        json!([
            entry("berth-control-idle", &["version", "violations"]),
            entry("berth-control", &["idle", "version"])
        ]),
    ]
}

#[tokio::test]
async fn a_status_is_written_whatever_is_said_of_who_has_written_it() {
    for writers in forged_writers() {
        let host = Host::new(&full_status());
        host.change(|object| object["metadata"]["managedFields"] = writers.clone());
        host.write(&TENANT_FIELDS, &next_status()).await.unwrap();
        let idle = full_status()["idle"].clone();
        assert_eq!(host.status(), expected_status(&idle), "{writers}");
        host.write(&IDLE_FIELDS, &TenantClusterStatus::default()).await.unwrap();
        let expected = serde_json::to_value(next_status()).unwrap();
        assert_eq!(host.status(), expected, "{writers}");
    }
}

/// What was written must not look as if it was not. Nothing corrects such a time.
#[tokio::test]
async fn an_answer_that_cannot_be_read_is_no_failure() {
    for (status, calls) in [
        (full_status(), vec!["PATCH"]),
        (Value::Null, vec!["PATCH", "GET", "PATCH"]),
    ] {
        let host = Host::new(&status);
        host.change(|object| object["metadata"]["managedFields"] = json!([{"manager": "x", "time": 5}]));
        host.write(&TENANT_FIELDS, &next_status()).await.unwrap();
        assert_eq!(host.status()["version"], "v1.37.2");
        assert_eq!(host.calls(), calls);
    }
}

#[tokio::test]
async fn two_writers_that_see_an_old_status_lose_nothing_of_each_other() {
    let host = Host::new(&full_status());
    let idle: TenantClusterStatus =
        serde_json::from_value(json!({"version": "old", "idle": {"mode": "Enforce", "gpus": 4, "idleGPUs": 4}}))
            .unwrap();
    host.write(&TENANT_FIELDS, &next_status()).await.unwrap();
    host.write(&IDLE_FIELDS, &idle).await.unwrap();
    let expected = expected_status(&serde_json::to_value(&idle.idle).unwrap());
    assert_eq!(host.status(), expected);
    host.write(&TENANT_FIELDS, &next_status()).await.unwrap();
    assert_eq!(host.status(), expected);
    assert_eq!(host.calls(), ["PATCH", "PATCH", "PATCH"]);
}

#[tokio::test]
async fn the_first_status_is_written_beside_what_another_has_written_meanwhile() {
    let host = Host::new(&Value::Null);
    assert!(host.seen.status.is_none());
    let idle = full_status()["idle"].clone();
    host.change(|object| object["status"] = json!({"idle": idle, "violations": full_status()["violations"]}));
    host.write(&TENANT_FIELDS, &next_status()).await.unwrap();
    assert_eq!(host.status(), expected_status(&idle));
    assert_eq!(host.calls(), ["PATCH", "GET", "PATCH"]);
    // And if it was lost.
    host.change(|object| object["status"] = Value::Null);
    let seen = Host {
        seen: serde_json::from_value(
            json!({"metadata": {"name": "vision", "namespace": "team", "uid": "a"}, "spec": {}, "status": {}}),
        )
        .unwrap(),
        ..host
    };
    seen.write(&TENANT_FIELDS, &next_status()).await.unwrap();
    assert_eq!(seen.status(), serde_json::to_value(next_status()).unwrap());
}

#[tokio::test]
async fn a_tenant_that_always_changes_gets_its_first_status_and_all_others() {
    let host = Host::new(&Value::Null);
    host.api.change_before_writes(PATH, 100);
    host.write(&TENANT_FIELDS, &next_status()).await.unwrap();
    assert_eq!(host.status(), serde_json::to_value(next_status()).unwrap());
    let first = host.calls().len();
    let host = Host {
        seen: serde_json::from_value(host.api.get(PATH).unwrap()).unwrap(),
        ..host
    };
    host.write(&TENANT_FIELDS, &TenantClusterStatus::default())
        .await
        .unwrap();
    assert_eq!(host.status(), json!({}));
    assert_eq!(host.calls().len(), first + 1);
}

#[tokio::test]
async fn the_last_try_of_a_first_status_is_for_no_other_object_of_the_name() {
    let host = Host::new(&Value::Null);
    host.api.change_before_writes(PATH, 100);
    let version = host.seen.metadata.resource_version.clone().unwrap();
    let error = host.write_only(&version, &next_status()).await.unwrap_err();
    assert!(is_status(&error, 409), "{error}");
    let patch = super::add_status(Some("b"), &serde_json::Map::new()).unwrap();
    let patch = serde_json::to_value(match patch {
        kube::api::Patch::Json(operations) => operations,
        other => panic!("{other:?}"),
    });
    assert_eq!(
        patch.unwrap(),
        json!([{"op": "test", "path": "/metadata/uid", "value": "b"}, {"op": "add", "path": "/status", "value": {}}])
    );
}

#[tokio::test]
async fn another_object_of_the_name_and_one_that_is_gone_get_no_status() {
    for status in [full_status(), Value::Null] {
        let host = Host::new(&status);
        host.change(|object| object["metadata"]["uid"] = "b".into());
        let error = host.write(&TENANT_FIELDS, &next_status()).await.unwrap_err();
        assert!(is_status(&error, 409), "{error}");
        assert_eq!(host.status(), status);
        host.api.remove(PATH);
        let error = host.write(&TENANT_FIELDS, &next_status()).await.unwrap_err();
        assert!(is_status(&error, 404), "{error}");
        assert_eq!(host.api.get(PATH), None);
    }
}

#[tokio::test]
async fn a_status_of_one_version_is_not_written_to_another() {
    for status in [full_status(), Value::Null] {
        let host = Host::new(&status);
        let version = host.seen.metadata.resource_version.clone().unwrap();
        host.change(|object| object["metadata"]["annotations"] = json!({"a": "b"}));
        let error = host.write_only(&version, &next_status()).await.unwrap_err();
        assert!(is_status(&error, 409), "{error}");
        assert_eq!(host.status(), status);
        let now = host.api.get(PATH).unwrap()["metadata"]["resourceVersion"].clone();
        host.write_only(now.as_str().unwrap(), &next_status()).await.unwrap();
        assert_eq!(host.status()["version"], "v1.37.2");
    }
}

#[tokio::test]
async fn a_refusal_is_an_error_and_not_tried_again() {
    let host = Host::new(&full_status());
    host.api
        .refuse_writes(Some(("/tenantclusters/", 422, "TenantCluster \"vision\" is invalid")));
    let error = host.write(&TENANT_FIELDS, &next_status()).await.unwrap_err();
    assert!(is_status(&error, 422), "{error}");
    assert_eq!(host.calls(), ["PATCH", "GET"]);
    host.api.refuse_writes(Some(("/tenantclusters/", 403, "no")));
    let error = host.write(&TENANT_FIELDS, &next_status()).await.unwrap_err();
    assert!(is_status(&error, 403), "{error}");
    assert_eq!(host.calls(), ["PATCH", "GET", "PATCH"]);
}

#[test]
fn each_field_of_a_tenant_has_one_writer() {
    let all = berth_api::crd::status_fields::<TenantCluster>();
    let writers = [&*TENANT_FIELDS, &*IDLE_FIELDS, &*USAGE_FIELDS];
    let fields: Vec<String> = writers.into_iter().flatten().cloned().collect();
    assert_eq!(fields.len(), all.len());
    assert_eq!(BTreeSet::from_iter(fields), all);
}
