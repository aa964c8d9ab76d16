//! People who are removed from a spec lose their rights whatever else the spec says.

use super::{
    super::build::stored_binding,
    fixture::Fixture,
    quota::{decide, reservation, reserved, waiting},
    sleep::{WAKE, fall_asleep, reconcile_until, request},
};
use jiff::Timestamp;
use serde_json::{Value, json};

const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/berth:access";

fn users(names: &[&str]) -> Value {
    names.iter().map(|name| json!({"kind": "User", "name": name})).collect()
}

fn set_admins(fixture: &Fixture, names: &[&str]) {
    fixture.change_tenant(|cluster| cluster["spec"]["access"] = json!({ "admins": users(names) }));
}

/// Who is admin in the tenant, and whom the record of its settings has.
fn admins(fixture: &Fixture) -> (Value, Value) {
    let names = |subjects: &Value| -> Value {
        let all = subjects.as_array().into_iter().flatten();
        all.map(|subject| subject["name"].clone()).collect()
    };
    let binding = fixture.tenant.get(&format!("{BINDINGS}:admins")).unwrap();
    let maps = fixture.host.find("/configmaps/settings");
    let record: Value = serde_json::from_str(maps[0]["data"]["settings.json"].as_str().unwrap()).unwrap();
    (names(&binding["subjects"]), names(&record["access"]["admins"]))
}

/// Reconciles until everything is recorded and carried out.
async fn reconcile_some(fixture: &mut Fixture) {
    for _ in 0..6 {
        Box::pin(fixture.reconcile()).await.unwrap();
    }
}

/// Checks that only a removal is carried out, and that it stays.
async fn expect_removal(fixture: &mut Fixture, condition: &str) {
    set_admins(fixture, &["ada", "mallory"]);
    reconcile_some(fixture).await;
    assert_eq!(fixture.condition(condition).unwrap()["status"], "False");
    assert_eq!(admins(fixture), (json!(["ada"]), json!(["ada"])), "{condition}");
    set_admins(fixture, &["ada", "eve"]);
    reconcile_some(fixture).await;
    assert_eq!(
        admins(fixture),
        (json!(["ada"]), json!(["ada"])),
        "{condition}: it waits"
    );
}

#[tokio::test]
async fn a_removed_admin_goes_although_the_spec_is_not_accepted() {
    let mut fixture = Fixture::new();
    set_admins(&fixture, &["ada", "eve"]);
    fixture.reconcile_until_ready().await;
    let version = fixture.status()["version"].clone();
    fixture.change_tenant(|cluster| cluster["spec"]["nodeGroups"][0]["replicas"] = 1000.into());
    Box::pin(expect_removal(&mut fixture, "Accepted")).await;
    assert_eq!(fixture.condition("Accepted").unwrap()["reason"], "NotEnoughNodes");
    assert_eq!(fixture.status()["version"], version);
    fixture.change_tenant(|cluster| cluster["spec"]["nodeGroups"][0]["replicas"] = 1.into());
    reconcile_some(&mut fixture).await;
    let both = json!(["ada", "eve"]);
    assert_eq!(admins(&fixture), (both.clone(), both));
}

#[tokio::test]
async fn a_removed_admin_goes_although_the_spec_waits_for_quota() {
    let mut fixture = Fixture::new();
    set_admins(&fixture, &["ada", "eve"]);
    decide(&fixture, reserved(reservation()));
    fixture.reconcile_until_ready().await;
    decide(&fixture, waiting(Some(reservation())));
    Box::pin(expect_removal(&mut fixture, "QuotaReserved")).await;
}

/// Lets the datastore have a binding of a role to users.
pub(super) fn store_binding(fixture: &Fixture, name: &str, role: &str, users: &[&str]) {
    let value = stored_binding::encode(name, role, users);
    let mut values = fixture.stored.values.lock().unwrap();
    values.insert(stored_binding::path(name), value);
}

/// Wakes the tenant. Returns the bindings that were deleted in the datastore before the API server was started.
pub(super) async fn wake(fixture: &mut Fixture) -> Vec<String> {
    let before = fixture.count_calls();
    request(fixture, WAKE, Timestamp::now());
    reconcile_until(fixture, "Awake", |_| {}).await;
    let calls = fixture.script.calls().split_off(before);
    let earlier = calls.iter().map(|call| call.text.as_str());
    let earlier = earlier.take_while(|text| *text != "runtime run kube-apiserver");
    let deleted = earlier.filter_map(|text| text.strip_prefix("datastore delete clusterrolebindings/"));
    deleted.map(ToOwned::to_owned).collect()
}

#[tokio::test]
async fn an_admin_removed_in_a_sleep_is_gone_before_the_api_server_starts() {
    let admins_binding = vec!["berth:access:admins".to_owned()];
    for (left, deleted) in [(&["ada", "eve"][..], Vec::new()), (&["ada"][..], admins_binding)] {
        let mut fixture = Fixture::new();
        set_admins(&fixture, &["ada", "eve"]);
        fixture.reconcile_until_ready().await;
        fall_asleep(&mut fixture).await;
        store_binding(&fixture, "berth:access:admins", "cluster-admin", &["ada", "eve"]);
        store_binding(&fixture, "berth:access:viewers", "berth:viewer", &[]);
        set_admins(&fixture, left);
        // Those whose role stays do not wait for it if nobody was removed.
        assert_eq!(wake(&mut fixture).await, deleted);
        assert_eq!(admins(&fixture).0, json!(left));
    }
}
