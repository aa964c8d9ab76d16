//! Tenants' host pods that request devices.

mod read;

pub use read::{count_gpus_of_claim, read_pod};

use berth_idle_reclaim::pod::{ClaimedGpus, GpuPod};
use berth_runtime::locks::lock;
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
};

/// Host pods that request devices, and the GPUs that claims have, by namespace and name.
#[derive(Debug, Default)]
pub struct GpuPods {
    pods: Mutex<HashMap<String, Arc<GpuPod>>>,
    /// Claims that have their devices.
    claims: Mutex<HashMap<String, u32>>,
}

impl GpuPods {
    /// Sets a pod; none if it is gone or requests no devices.
    pub fn put(&self, name: &str, pod: Option<GpuPod>) {
        put(&self.pods, name, pod.map(Arc::new));
    }

    /// Removes all pods except these.
    pub fn retain(&self, names: &HashSet<String>) {
        lock(&self.pods).retain(|name, _| names.contains(name));
    }

    /// Sets how many GPUs a claim has; none if it is gone or has no devices yet.
    pub fn put_claim(&self, name: &str, gpus: Option<u32>) {
        put(&self.claims, name, gpus);
    }

    /// Removes all claims except these.
    pub fn retain_claims(&self, names: &HashSet<String>) {
        lock(&self.claims).retain(|name, _| names.contains(name));
    }

    /// All pods, by the slug of their tenant, with the GPUs that they have by claims.
    pub fn by_tenant(&self) -> HashMap<String, Vec<Arc<GpuPod>>> {
        let mut tenants: HashMap<String, Vec<Arc<GpuPod>>> = HashMap::new();
        let claims = lock(&self.claims).clone();
        for pod in lock(&self.pods).values() {
            let mut pod = Arc::clone(pod);
            let claimed_gpus =
                count_claimed(&claims, &pod, &pod.claims).map_or(ClaimedGpus::Unknown, ClaimedGpus::Known);
            if pod.claimed_gpus != claimed_gpus {
                Arc::make_mut(&mut pod).claimed_gpus = claimed_gpus;
            }
            let unused = count_claimed(&claims, &pod, &pod.unused_claims).unwrap_or_default();
            if pod.unused_claimed_gpus != unused {
                Arc::make_mut(&mut pod).unused_claimed_gpus = unused;
            }
            tenants.entry(pod.tenant.clone()).or_default().push(pod);
        }
        for pods in tenants.values_mut() {
            pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        }
        tenants
    }
}

fn put<V>(all: &Mutex<HashMap<String, V>>, name: &str, value: Option<V>) {
    match value {
        Some(value) => drop(lock(all).insert(name.to_owned(), value)),
        None => drop(lock(all).remove(name)),
    }
}

/// The GPUs of some claims of a pod; none as long as one of them has no devices.
fn count_claimed(claims: &HashMap<String, u32>, pod: &GpuPod, names: &[String]) -> Option<u32> {
    let of_claim = |claim: &String| claims.get(&format!("{}/{claim}", pod.namespace)).copied();
    let counts: Option<Vec<u32>> = names.iter().map(of_claim).collect();
    Some(counts?.into_iter().fold(0, u32::saturating_add))
}

#[cfg(test)]
mod tests {
    use super::{
        read::tests::{read, with_gpus},
        *,
    };
    use serde_json::json;
    use std::collections::BTreeSet;

    #[test]
    fn pods_have_the_gpus_of_their_claims() {
        let pods = GpuPods::default();
        let pod = json!({"nodeName": "n1", "containers": [{"name": "c"}], "resourceClaims": [
            {"name": "a", "resourceClaimName": "x"}, {"name": "b", "resourceClaimTemplateName": "t"},
        ]});
        let claimed = || pods.by_tenant()["vision-abc"][0].claimed_gpus;
        pods.put("berth-w/x-123", read(&pod, &json!({})));
        pods.put_claim("berth-w/x", Some(0));
        pods.put_claim("berth-w/t", Some(8));
        assert_eq!(
            claimed(),
            ClaimedGpus::Unknown,
            "the claim of the template is not made yet"
        );
        let made = json!({"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "b-1"}]});
        pods.put("berth-w/x-123", read(&pod, &made));
        assert_eq!(claimed(), ClaimedGpus::Unknown, "it has no devices yet");
        pods.put_claim("berth-w/b-1", Some(2));
        assert_eq!(claimed(), ClaimedGpus::Known(2));
        pods.retain_claims(&HashSet::from(["berth-w/b-1".to_owned()]));
        assert_eq!(claimed(), ClaimedGpus::Unknown);
    }

    #[test]
    fn extended_resources_that_are_devices_of_a_driver_count_once() {
        let pods = GpuPods::default();
        let mapping =
            json!({"containerName": "c", "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-0"});
        let status = json!({"extendedResourceClaimStatus": {"resourceClaimName": "x-1", "requestMappings": [mapping]}});
        pods.put("berth-w/x-123", read(&with_gpus("2"), &status));
        pods.put_claim("berth-w/x-1", Some(2));
        let pod = Arc::clone(&pods.by_tenant()["vision-abc"][0]);
        assert_eq!(pod.gpus(&BTreeSet::new()), 2);
    }

    #[test]
    fn extended_resources_of_init_containers_that_have_ended_are_unused() {
        let pods = GpuPods::default();
        let spec = json!({"nodeName": "n1", "containers": [{"name": "main"}],
            "initContainers": [{"name": "load", "resources": {"requests": {"nvidia.com/gpu": "2"}}}]});
        let unused_by = |container: &str| {
            let mapping = json!({"containerName": container, "resourceName": "nvidia.com/gpu", "requestName": "r"});
            let ended = json!({"name": "load", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                "state": {"terminated": {"exitCode": 0}}});
            let status = json!({"initContainerStatuses": [ended],
                "extendedResourceClaimStatus": {"resourceClaimName": "x-1", "requestMappings": [mapping]}});
            pods.put("berth-w/x-123", read(&spec, &status));
            pods.put_claim("berth-w/x-1", Some(2));
            pods.by_tenant()["vision-abc"][0].unused_claimed_gpus
        };
        assert_eq!((unused_by("load"), unused_by("main")), (2, 0));
    }

    #[test]
    fn gpus_of_claims_that_no_container_names_are_unused() {
        let pods = GpuPods::default();
        let pod = json!({"nodeName": "n1", "resourceClaims": [
            {"name": "a", "resourceClaimName": "x"}, {"name": "b", "resourceClaimName": "y"},
        ], "containers": [{"name": "c", "resources": {"claims": [{"name": "b"}]}}]});
        pods.put("berth-w/x-123", read(&pod, &json!({})));
        pods.put_claim("berth-w/x", Some(8));
        pods.put_claim("berth-w/y", Some(2));
        let pod = Arc::clone(&pods.by_tenant()["vision-abc"][0]);
        assert_eq!(pod.claimed_gpus, ClaimedGpus::Known(10));
        assert_eq!((pod.unused_claimed_gpus, pod.usable_gpus(&BTreeSet::new())), (8, 2));
    }

    #[test]
    fn pods_are_found_by_tenant() {
        let pods = GpuPods::default();
        pods.put("berth-w/x-123", read(&with_gpus("1"), &json!({})));
        assert_eq!(pods.by_tenant()["vision-abc"].len(), 1);
        pods.retain(&HashSet::new());
        assert!(pods.by_tenant().is_empty());
    }
}
