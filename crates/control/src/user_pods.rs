//! Tenants' host pods that have not ended, by the users who created them.

use berth_api::{PODS, conditions::USER_LIMIT_EXCEEDED, labels, text::one_line};
use berth_node_lifecycle::{
    demand::{Claim, read_claims, shorten},
    pod_phase::has_ended,
    pod_requests::{self, MOST_RESOURCES},
};
use berth_quota::{UserAmounts, UserGang};
use berth_runtime::locks::lock;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
};

/// A host pod, as far as limits of users matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedUserPod {
    /// Slug of its tenant.
    pub tenant: String,
    /// Its namespace on the host.
    pub namespace: String,
    /// Its name on the host.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Who created it, as the tenant's API server says, in [one line](one_line): the tenant chooses the name, and people see it in lists.
    pub created_by: Option<String>,
    /// What it requests: itself, and extended resources.
    pub amounts: UserAmounts,
    /// Its claims of devices.
    pub claims: Vec<Claim>,
    /// Whether it waits behind the gate [`labels::USER_QUOTA_GATE`].
    pub is_gated: bool,
    /// Whether it is being deleted.
    pub is_ending: bool,
    /// Its gang.
    pub gang: Option<UserGang>,
    /// Its priority.
    pub priority: i32,
    /// When it was created, in seconds since the epoch.
    pub since: i64,
    /// The message of its condition [`USER_LIMIT_EXCEEDED`], if that is true.
    pub condition: Option<String>,
}

/// Host pods that have not ended, by namespace and name.
#[derive(Debug, Default)]
pub struct UserPods {
    pods: Mutex<HashMap<String, Arc<ObservedUserPod>>>,
    /// Slugs of the tenants whose Project limits its users.
    limited: Mutex<HashSet<String>>,
}

impl UserPods {
    /// Sets a pod; none if it is gone or has ended. Returns whether limits of users may have to be decided again.
    pub fn put(&self, name: &str, pod: Option<ObservedUserPod>) -> bool {
        let mut all = lock(&self.pods);
        let pod = pod.map(Arc::new);
        let before = match &pod {
            Some(pod) => all.insert(name.to_owned(), Arc::clone(pod)),
            None => all.remove(name),
        };
        if before == pod {
            return false;
        }
        let limited = lock(&self.limited);
        let mut both = before.iter().chain(&pod);
        both.any(|pod| is_counted(pod, &limited))
    }

    /// Removes all pods except these. Returns whether that was any.
    pub fn retain(&self, names: &HashSet<String>) -> bool {
        let mut all = lock(&self.pods);
        let before = all.len();
        all.retain(|name, _| names.contains(name));
        all.len() < before
    }

    /// The pods of tenants with limits, and all pods with a gate, or that say that they wait.
    pub fn list_counted(&self) -> Vec<Arc<ObservedUserPod>> {
        // In the same order as above.
        let all = lock(&self.pods);
        let limited = lock(&self.limited);
        all.values().filter(|pod| is_counted(pod, &limited)).cloned().collect()
    }

    /// Sets the tenants with limits. Returns the slugs of those for which that changed.
    pub fn set_limited(&self, limited: HashSet<String>) -> HashSet<String> {
        let mut known = lock(&self.limited);
        let changed = known.symmetric_difference(&limited).cloned().collect();
        *known = limited;
        changed
    }
}

/// Whether something may have to be decided about a pod, or written: its gate can be off while it still says that it waits.
fn is_counted(pod: &ObservedUserPod, limited: &HashSet<String>) -> bool {
    pod.is_gated || pod.condition.is_some() || limited.contains(&pod.tenant)
}

/// Reads a host pod that a syncer created; none if it has ended.
pub fn read_pod(pod: &Pod) -> Option<ObservedUserPod> {
    let tenant = pod.labels().get(labels::TENANT)?.clone();
    let annotation = |key: &str| pod.annotations().get(key).cloned();
    let spec = pod.spec.as_ref()?;
    let status = pod.status.as_ref();
    if has_ended(pod) {
        return None;
    }
    let mut amounts: UserAmounts = pod_requests::of_pod(pod)
        .into_iter()
        // Extended resources have a domain.
        .filter(|(resource, thousandths)| resource.contains('/') && *thousandths > 0)
        .take(MOST_RESOURCES)
        .map(|(resource, thousandths)| (resource, u64::try_from(thousandths / 1000).unwrap_or(u64::MAX)))
        .collect();
    amounts.insert(PODS.to_owned(), 1);
    let gates = spec.scheduling_gates.iter().flatten();
    let mut conditions = status.iter().flat_map(|status| status.conditions.iter().flatten());
    let condition = conditions.find(|condition| condition.type_ == USER_LIMIT_EXCEEDED && condition.status == "True");
    Some(ObservedUserPod {
        namespace: pod.namespace().unwrap_or_default(),
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        created_by: annotation(labels::CREATED_BY).map(|user| shorten(&one_line(&user))),
        amounts,
        claims: read_claims(pod),
        is_gated: gates.into_iter().any(|gate| gate.name == labels::USER_QUOTA_GATE),
        is_ending: pod.metadata.deletion_timestamp.is_some(),
        gang: annotation(labels::GANG).filter(|gang| !gang.is_empty()).map(|gang| {
            let namespace = annotation(labels::ORIGIN_NAMESPACE).unwrap_or_default();
            let size = annotation(labels::GANG_SIZE).and_then(|size| size.parse().ok());
            UserGang {
                name: shorten(&format!("{tenant}/{namespace}/{gang}")),
                size: size.unwrap_or_default(),
            }
        }),
        priority: spec.priority.unwrap_or_default(),
        since: pod.creation_timestamp().map_or(0, |time| time.0.as_second()),
        condition: condition.map(|condition| condition.message.clone().unwrap_or_default()),
        tenant,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(spec: &Value, status: &Value) -> Option<ObservedUserPod> {
        let pod = json!({
            "metadata": {
                "name": "x-1", "namespace": "berth-w", "uid": "u", "labels": {"berth.dev/tenant": "vision-abc"},
                "annotations": {"berth.dev/created-by": "alice", "berth.dev/origin-namespace": "ml", "berth.dev/gang": "train",
                    "berth.dev/gang-size": "4"},
                "creationTimestamp": "1970-01-01T00:01:00Z",
            },
            "spec": spec, "status": status,
        });
        read_pod(&serde_json::from_value(pod).unwrap())
    }

    fn gated() -> Value {
        json!({
            "schedulingGates": [{"name": "other"}, {"name": "berth.dev/user-quota"}],
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "4", "nvidia.com/gpu": "2"}}}],
        })
    }

    #[test]
    fn a_pod_counts_with_its_extended_resources_until_it_ends() {
        let condition = json!([{"type": "berth.dev/UserLimitExceeded", "status": "True", "message": "wait"}]);
        let pod = read(&gated(), &json!({"phase": "Pending", "conditions": condition})).unwrap();
        assert_eq!(pod.created_by.as_deref(), Some("alice"));
        assert_eq!(
            pod.amounts,
            [("nvidia.com/gpu".to_owned(), 2), ("pods".to_owned(), 1)].into()
        );
        assert!(pod.is_gated && pod.condition.as_deref() == Some("wait"));
        assert_eq!(
            pod.gang,
            Some(UserGang {
                name: "vision-abc/ml/train".into(),
                size: 4
            })
        );
        assert_eq!(pod.since, 60);
        assert_eq!(read(&gated(), &json!({"phase": "Succeeded"})), None);
        let open = read(&json!({"containers": [{"name": "c"}]}), &json!({})).unwrap();
        assert!(!open.is_gated && open.condition.is_none());
    }

    #[test]
    fn the_name_of_a_user_is_one_line() {
        let pod = json!({
            "metadata": {"labels": {"berth.dev/tenant": "vision-abc"},
                "annotations": {"berth.dev/created-by": "mallory\n  User bob\t8"}},
            "spec": {"containers": []},
        });
        let pod = read_pod(&serde_json::from_value(pod).unwrap()).unwrap();
        assert_eq!(pod.created_by.as_deref(), Some("mallory\u{fffd}  User bob\u{fffd}8"));
    }

    #[test]
    fn only_pods_of_limited_users_are_a_reason_to_decide() {
        let pods = UserPods::default();
        let open = read(&json!({"containers": [{"name": "c"}]}), &json!({}));
        assert!(!pods.put("berth-w/x-1", open.clone()), "nobody is limited");
        assert!(pods.list_counted().is_empty());
        assert!(pods.put("berth-w/x-1", read(&gated(), &json!({}))), "it has to start");
        assert!(pods.put("berth-w/x-1", open.clone()), "it started");
        let slugs = HashSet::from(["vision-abc".to_owned()]);
        assert_eq!(pods.set_limited(slugs.clone()), slugs);
        assert!(pods.set_limited(slugs).is_empty());
        assert!(!pods.put("berth-w/x-1", open), "nothing changed");
        assert_eq!(pods.list_counted().len(), 1);
        assert!(pods.put("berth-w/x-1", None), "it is gone");
    }
}
