//! The Secret with the team's kubeconfig.

use super::fixture::Fixture;
use serde_json::json;

const SECRET: &str = "/api/v1/namespaces/team/secrets/vision-kubeconfig";

#[tokio::test]
async fn the_secret_of_an_earlier_version_is_replaced_and_a_lost_one_is_written_again() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    let current = fixture.host.get(SECRET).unwrap();
    assert_eq!(current["type"], "cluster.x-k8s.io/secret");
    let mut earlier = current.clone();
    earlier["type"] = "Opaque".into();
    earlier["metadata"]["uid"] = "earlier".into();
    fixture.host.insert(SECRET, earlier);
    fixture.reconcile().await.unwrap();
    let replaced = fixture.host.get(SECRET).unwrap();
    assert_eq!(replaced["type"], "cluster.x-k8s.io/secret");
    assert_ne!(replaced["metadata"]["uid"], "earlier");
    assert_eq!(replaced["data"], current["data"]);

    fixture.host.remove(SECRET);
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.host.get(SECRET).unwrap()["data"], current["data"]);
}

#[tokio::test]
async fn a_secret_of_the_team_is_not_replaced_whatever_its_type() {
    let mut fixture = Fixture::new();
    let own = json!({"metadata": {"name": "vision-kubeconfig", "namespace": "team", "uid": "own"}, "type": "Opaque"});
    fixture.host.insert(SECRET, own);
    let own = fixture.host.get(SECRET);
    for _ in 0..3 {
        let _ = fixture.reconcile().await;
    }
    assert_eq!(fixture.host.get(SECRET), own);
    assert_eq!(
        fixture.condition("ControlPlaneReady").unwrap()["reason"],
        "SecretExists"
    );
}
