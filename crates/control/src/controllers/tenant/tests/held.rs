//! A tenant is deleted although finalizers that syncers may set hold what it has on the host.

use super::fixture::{Fixture, TENANT};
use serde_json::{Value, json};

/// Enough reconciles to come to a namespace.
const MAX_RECONCILES: usize = 10;

fn path_of_pod(fixture: &Fixture) -> String {
    format!("/api/v1/namespaces/{}/pods/held", fixture.id.workload_namespace())
}

/// A tenant that is ready, with a pod that has these finalizers.
async fn fixture_with_held_pod(finalizers: &[&str]) -> Fixture {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    let pod = json!({"metadata": {"name": "held", "uid": "held", "finalizers": finalizers}});
    fixture.host.insert(&path_of_pod(&fixture), pod);
    fixture
}

async fn begin_deletion(fixture: &mut Fixture) {
    fixture.change_tenant(|cluster| cluster["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
    for _ in 0..MAX_RECONCILES {
        Box::pin(fixture.reconcile()).await.unwrap();
    }
}

#[tokio::test]
async fn kueues_finalizer_alone_does_not_keep_a_tenant() {
    let mut fixture = fixture_with_held_pod(&["kueue.x-k8s.io/managed"]).await;
    assert!(fixture.delete().await.is_empty());
    assert!(fixture.host.get(&path_of_pod(&fixture)).is_none());
}

#[tokio::test]
async fn a_finalizer_of_a_controller_of_the_host_is_left_to_it() {
    for finalizers in [&["example.com/f"][..], &["kueue.x-k8s.io/managed", "example.com/f"]] {
        let mut fixture = fixture_with_held_pod(finalizers).await;
        begin_deletion(&mut fixture).await;
        let pod = fixture.host.get(&path_of_pod(&fixture)).unwrap();
        assert_eq!(pod["metadata"]["finalizers"], json!(finalizers));
        assert_eq!(fixture.reason("Deleting").1, "PodsOverdue");
    }
}

#[tokio::test]
async fn the_finalizer_of_a_pod_group_does_not_keep_a_tenant() {
    const MESSAGE: &str = "Some content in the namespace has finalizers remaining: scheduling.k8s.io/podgroup-protection in 1 resource instances";
    for (finalizers, message, is_gone) in [
        (json!(["scheduling.k8s.io/podgroup-protection"]), MESSAGE, true),
        (
            json!(["scheduling.k8s.io/podgroup-protection"]),
            "something else",
            false,
        ),
        (
            json!(["scheduling.k8s.io/podgroup-protection", "example.com/f"]),
            MESSAGE,
            false,
        ),
    ] {
        let mut fixture = Fixture::new();
        fixture.reconcile_until_ready().await;
        let name = fixture.id.workload_namespace();
        let namespace = format!("/api/v1/namespaces/{name}");
        let mut held: Value = fixture.host.get(&namespace).unwrap();
        // As long as the host finds something in it.
        held["metadata"]["finalizers"] = json!(["kubernetes"]);
        held["status"] = json!({"conditions": [
            {"type": "NamespaceFinalizersRemaining", "status": "True", "message": message},
        ]});
        fixture.host.insert(&namespace, held);
        let group = format!("/apis/scheduling.k8s.io/v1alpha2/namespaces/{name}/podgroups/g");
        let metadata = json!({
            "name": "g", "namespace": name, "uid": "g", "finalizers": finalizers, "deletionTimestamp": "2026-01-01T00:00:00Z",
        });
        fixture.host.insert(&group, json!({"metadata": metadata}));
        begin_deletion(&mut fixture).await;
        assert_eq!(fixture.host.get(&group).is_none(), is_gone, "{finalizers} {message}");
        assert!(fixture.host.get(TENANT).is_some(), "its namespace is there");
    }
}
