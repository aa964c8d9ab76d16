//! People who are removed from a spec lose their rights whatever else the spec says.

use super::{
    fixture::Fixture,
    quota::{decide, reservation, reserved, waiting},
};
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
async fn who_is_removed_goes_although_the_spec_is_not_accepted() {
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
async fn who_is_removed_goes_although_the_spec_waits_for_quota() {
    let mut fixture = Fixture::new();
    set_admins(&fixture, &["ada", "eve"]);
    decide(&fixture, reserved(reservation()));
    fixture.reconcile_until_ready().await;
    decide(&fixture, waiting(Some(reservation())));
    Box::pin(expect_removal(&mut fixture, "QuotaReserved")).await;
}
