//! Pods that name claims of devices.

use super::{
    super::{CLAIMS_PAUSE, claims::MOST_OF_USER},
    Fixture, path, reconcile,
};
use berth_node_lifecycle::devices::{ClaimSpec, DeviceClaim};
use serde_json::{Value, json};

const DEVICES: &str = "gpu.example.com.deviceclass.resource.k8s.io/devices";

impl Fixture {
    /// Lets a pod name a claim of devices.
    fn add_claim(&self, pod: &str, claim: &str) {
        let mut object = self.host.get(&path(pod)).unwrap();
        object["spec"]["resourceClaims"] = json!([{"name": "devices", "resourceClaimName": claim}]);
        self.host.insert(&path(pod), object);
    }

    /// A claim of this many devices.
    fn put_claim(&self, name: &str, count: u32) {
        self.put_claim_on_host(name, count);
        self.observe_claim(name, count);
    }

    /// The same that the watch does not know yet.
    fn put_claim_on_host(&self, name: &str, count: u32) {
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name, "namespace": "berth-w"},
            "spec": spec_of_claim(count),
        });
        self.host.insert(&path_of_claim(name), claim);
    }

    /// What the watch says of a claim.
    fn observe_claim(&self, name: &str, count: u32) {
        let spec: ClaimSpec = serde_json::from_value(spec_of_claim(count)).unwrap();
        let claim = DeviceClaim::read(Some(&spec), None);
        self.context
            .stores
            .devices
            .put_claim(&format!("berth-w/{name}"), Some(claim));
    }
}

fn path_of_claim(claim: &str) -> String {
    format!("/apis/resource.k8s.io/v1/namespaces/berth-w/resourceclaims/{claim}")
}

/// The spec of a claim of this many devices.
fn spec_of_claim(count: u32) -> Value {
    let exactly = json!({"deviceClassName": "gpu.example.com", "count": count});
    json!({"devices": {"requests": [{"name": "r", "exactly": exactly}]}})
}

#[tokio::test]
async fn devices_of_claims_count_for_the_user() {
    let mut fixture = Fixture::new(10);
    fixture.set_quotas(&json!([{"user": "*", "limits": [{"resource": DEVICES, "limit": 2}]}]));
    for (second, (pod, claim)) in [
        (1, ("a1", "shared")),
        (2, ("a2", "shared")),
        (3, ("a3", "one")),
        (4, ("a4", "later")),
    ] {
        fixture.add_pod("a", pod, "alice", second);
        fixture.add_claim(pod, claim);
    }
    fixture.put_claim("shared", 2);
    fixture.put_claim("one", 1);
    fixture.reconcile().await;
    assert_eq!(fixture.started(), ["a1"]);
    fixture.reconcile().await;
    assert_eq!(fixture.started(), ["a1", "a2"], "the claim that both share counts once");
    assert_eq!(fixture.condition("a3")["reason"], "UserLimitExceeded");
    assert_eq!(fixture.condition("a4"), Value::Null, "what it claims is not known");

    fixture.put_claim("later", 3);
    fixture.host.remove(&path("a1"));
    fixture.host.remove(&path("a2"));
    fixture.reconcile().await;
    assert_eq!(fixture.started(), ["a3"]);
    assert_eq!(fixture.condition("a4")["reason"], "UserLimitExceeded");
}

#[tokio::test]
async fn a_pod_with_a_template_waits_until_the_host_has_made_its_claim() {
    let mut fixture = Fixture::new(10);
    fixture.set_quotas(&json!([{"user": "*", "limits": [{"resource": DEVICES, "limit": 2}]}]));
    let read = |count: u32| {
        let spec: ClaimSpec = serde_json::from_value(spec_of_claim(count)).unwrap();
        Some(DeviceClaim::read(Some(&spec), None))
    };
    fixture.add_pod("a", "a1", "alice", 1);
    let mut pod = fixture.host.get(&path("a1")).unwrap();
    pod["spec"]["resourceClaims"] = json!([{"name": "devices", "resourceClaimTemplateName": "t"}]);
    fixture.host.insert(&path("a1"), pod.clone());
    let devices = std::sync::Arc::clone(&fixture.context.stores.devices);
    devices.put_template("berth-w/t", read(1));
    fixture.reconcile().await;
    assert!(
        fixture.started().is_empty(),
        "another template may take the name before the host makes the claim"
    );
    devices.put_template("berth-w/t", read(8));
    pod["status"]["resourceClaimStatuses"] = json!([{"name": "devices", "resourceClaimName": "a1-devices-x"}]);
    fixture.host.insert(&path("a1"), pod);
    fixture.reconcile().await;
    assert!(fixture.started().is_empty(), "the claim is not known yet");
    devices.put_claim("berth-w/a1-devices-x", read(1));
    fixture.reconcile().await;
    assert_eq!(fixture.started(), ["a1"], "what counts is the claim that was made");
}

/// Pods of alice and of bob, each with a claim of its own, and limits of two devices.
fn with_claims() -> Fixture {
    let fixture = Fixture::new(10);
    fixture.set_quotas(&json!([{"user": "*", "limits": [{"resource": DEVICES, "limit": 2}]}]));
    for (second, user) in [(1, "alice"), (2, "bob")] {
        fixture.add_pod("a", user, user, second);
        fixture.add_claim(user, user);
        fixture.put_claim(user, 1);
    }
    fixture
}

#[tokio::test]
async fn a_claim_that_was_replaced_before_its_watch_knows_of_it_lets_no_pod_start() {
    let mut fixture = with_claims();
    // The claim is a larger one by now, and the pod is the one that the syncer has made for it.
    fixture.put_claim_on_host("alice", 8);
    fixture.add_pod("a", "alice-later", "alice", 3);
    fixture.observe();
    assert_eq!(reconcile(&fixture.context).await.unwrap(), Some(CLAIMS_PAUSE));
    assert_eq!(fixture.started(), ["bob"], "other users do not wait for it");
    fixture.host.remove(&path_of_claim("alice"));
    fixture.reconcile().await;
    assert_eq!(fixture.started(), ["bob"], "it is about to be replaced");

    fixture.put_claim("alice", 8);
    fixture.reconcile().await;
    assert_eq!(fixture.started(), ["alice-later", "bob"]);
    assert_eq!(fixture.condition("alice")["reason"], "UserLimitExceeded");
    fixture.put_claim("alice", 2);
    fixture.reconcile().await;
    assert_eq!(fixture.started(), ["alice", "alice-later", "bob"]);
}

#[tokio::test]
async fn a_claim_that_cannot_be_read_keeps_back_the_pods_of_its_users_alone() {
    let mut fixture = with_claims();
    fixture.script.fail_call(0);
    fixture.observe();
    let error = reconcile(&fixture.context).await.unwrap_err();
    assert!(error.to_string().contains("read a claim of devices"), "{error}");
    assert_eq!(fixture.started(), ["bob"]);
    fixture.reconcile().await;
    assert_eq!(fixture.started(), ["alice", "bob"]);
}

#[tokio::test]
async fn a_user_with_many_claims_holds_up_no_other_user() {
    let mut fixture = with_claims();
    fixture.set_quotas(&json!([{"user": "*", "limits": [{"resource": DEVICES, "limit": 1000}]}]));
    for name in (0..MOST_OF_USER).map(|number| format!("p{number}")) {
        fixture.add_pod("a", &name, "alice", 3);
        fixture.add_claim(&name, &name);
        fixture.put_claim(&name, 1);
    }
    fixture.observe();
    assert_eq!(reconcile(&fixture.context).await.unwrap(), Some(CLAIMS_PAUSE));
    let started = fixture.started();
    assert_eq!(started.len(), MOST_OF_USER + 1, "all but one");
    assert!(started.contains(&"bob".to_owned()));
    fixture.reconcile().await;
    assert_eq!(fixture.started().len(), MOST_OF_USER + 2);
}

#[tokio::test]
async fn claims_of_users_without_limits_of_devices_are_not_read() {
    let mut fixture = with_claims();
    fixture.set_quotas(&json!([{"user": "*", "limits": [{"resource": "pods", "limit": 2}]}]));
    fixture.reconcile().await;
    assert_eq!(fixture.started(), ["alice", "bob"]);
    let calls = fixture.script.calls();
    assert!(
        calls.iter().all(|call| !call.text.contains("resourceclaims")),
        "{calls:?}"
    );
}

#[tokio::test]
async fn a_gang_that_shares_a_claim_counts_it_once_and_other_users_count_it_again() {
    let mut fixture = Fixture::new(10);
    fixture.set_quotas(&json!([{"user": "*", "limits": [{"resource": DEVICES, "limit": 2}]}]));
    for (second, (pod, user, gang)) in [
        (1, ("a1", "alice", "g")),
        (2, ("a2", "alice", "g")),
        (3, ("b1", "bob", "")),
    ] {
        fixture.add_pod("a", pod, user, second);
        fixture.add_claim(pod, "shared");
        let mut object = fixture.host.get(&path(pod)).unwrap();
        object["metadata"]["annotations"]["berth.dev/gang"] = gang.into();
        object["metadata"]["annotations"]["berth.dev/gang-size"] = "2".into();
        fixture.host.insert(&path(pod), object);
    }
    fixture.put_claim("shared", 2);
    fixture.reconcile().await;
    assert_eq!(fixture.started(), ["a1", "a2", "b1"]);
    let users = fixture.context.ledger.users_of("vision").users;
    let used: Vec<u64> = users.iter().map(|user| user.resources[0].used).collect();
    assert_eq!(used, [2, 2]);
}
