//! What tenants run: pods, with and without GPUs, node groups that change, and budgets that hold up drains. Counts what the host has of it.

use super::{POOL, World};
use berth_api::{Amount, LIMITS_NAME, NodeGroup, labels, names::TenantId};
use berth_tests::objects::apply;
use k8s_openapi::api::{
    core::v1::{Node, Pod, ResourceQuota},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;
use std::collections::{BTreeMap, HashMap};

const GPU: &str = "nvidia.com/gpu";
const BUDGET: &str = "no-disruption";

impl World<'_> {
    /// A pod of a tenant that runs on a node with GPUs, or without GPUs never starts. The error says why there is none: the tenant waits for
    /// quota, or has as many as it may.
    pub(super) async fn create_pod(&mut self, gpus: u64) -> Result<String, String> {
        if self.tenants.is_empty() {
            return Err("there is no tenant".into());
        }
        let index = self.dice.index(self.tenants.len());
        let (id, (namespace, name)) = (self.id(index).await?, &self.tenants[index]);
        self.created += 1;
        let mut pod = json!({
            "metadata": {
                "name": format!("p{}", self.created),
                "labels": {labels::TENANT: id.slug(), labels::MANAGED_BY: labels::MANAGED_BY_SYNCER},
            },
            "spec": {
                "nodeSelector": {labels::TENANT: id.slug()},
                "tolerations": [
                    {"key": labels::TENANT, "operator": "Equal", "value": id.slug(), "effect": "NoExecute"},
                    {"key": "nvidia.com/gpu", "operator": "Exists"},
                ],
                "automountServiceAccountToken": false, "dnsPolicy": "Default", "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "main", "image": "train:1"}],
            },
        });
        if gpus > 0 {
            pod["spec"]["containers"][0]["resources"] = json!({"limits": {GPU: gpus.to_string()}});
        } else {
            pod["spec"]["schedulingGates"] = json!([{"name": "example.com/never"}]);
        }
        let pods: Api<Pod> = Api::namespaced(self.host.client.clone(), &id.workload_namespace());
        let created = pods
            .create(&PostParams::default(), &serde_json::from_value(pod).unwrap())
            .await;
        created.map_err(|error| error.to_string())?;
        Ok(format!("a pod of {namespace}/{name} with {gpus} GPUs was created"))
    }

    /// A node group with another name each time, so that a tenant that gets it loses the nodes that it has.
    pub(super) fn new_group(&mut self) -> NodeGroup {
        self.created += 1;
        let name = format!("g{}", self.created);
        match self.dice.below(4) {
            0 => NodeGroup::private(&name, POOL, 0),
            1 => NodeGroup::private(&name, POOL, 1),
            most => NodeGroup::dynamic(&name, POOL, 0, u32::try_from(most).unwrap() - 1),
        }
    }

    pub(super) async fn change_group(&mut self) -> String {
        if self.tenants.is_empty() {
            return "there is no tenant whose nodes change".into();
        }
        let index = self.dice.index(self.tenants.len());
        let group = self.new_group();
        self.set_group(index, &group).await
    }

    pub(super) async fn set_group(&self, index: usize, group: &NodeGroup) -> String {
        let (namespace, name) = &self.tenants[index];
        self.host
            .patch_tenant(namespace, name, &json!({"nodeGroups": [group]}))
            .await;
        let nodes = (group.minimum(), group.maximum());
        format!("{namespace}/{name} has the group {} of {nodes:?} nodes", group.name)
    }

    /// No pod of a tenant may be disrupted any more, or all may be.
    pub(super) async fn change_budget(&mut self) -> String {
        if self.tenants.is_empty() {
            return "there is no tenant with a budget".into();
        }
        let index = self.dice.index(self.tenants.len());
        let is_wanted = self.dice.below(2) == 0;
        match self.set_budget(index, is_wanted).await {
            Ok(what) => what,
            Err(why) => format!("no budget was changed: {why}"),
        }
    }

    /// The error says why there is none: the tenant waits for quota.
    pub(super) async fn set_budget(&self, index: usize, is_wanted: bool) -> Result<String, String> {
        let workloads = self.id(index).await?.workload_namespace();
        let client = &self.host.client;
        let changed = if is_wanted {
            let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": BUDGET},
                "spec": {"maxUnavailable": 0, "selector": {}}});
            apply(client, &workloads, &budget).await.map(drop)
        } else {
            let budgets = Api::<PodDisruptionBudget>::namespaced(client.clone(), &workloads);
            budgets.delete(BUDGET, &DeleteParams::default()).await.map(drop)
        };
        changed.map_err(|error| error.to_string())?;
        let (namespace, name) = &self.tenants[index];
        let may = if is_wanted { "may not" } else { "may" };
        Ok(format!("pods of {namespace}/{name} {may} be disrupted"))
    }

    pub(super) async fn id(&self, index: usize) -> Result<TenantId, String> {
        let (namespace, name) = &self.tenants[index];
        let tenant = self.host.tenants(namespace).get(name).await;
        let uid = tenant.map_err(|error| error.to_string())?.uid();
        Ok(TenantId::new(name, &uid.unwrap_or_default()))
    }

    /// Pods by workload namespace, as the host counts them.
    pub(super) async fn count_pods(&self) -> Result<BTreeMap<String, u64>, String> {
        let quotas = Api::<ResourceQuota>::all(self.host.client.clone());
        let limits = ListParams::default().fields(&format!("metadata.name={LIMITS_NAME}"));
        let list = quotas.list(&limits).await.map_err(|error| error.to_string())?;
        let counted = list.into_iter().map(|quota| {
            let namespace = quota.namespace().unwrap_or_default();
            let used = quota.status.and_then(|status| status.used).unwrap_or_default();
            let pods = used.get("count/pods").map(|pods| Amount::Text(pods.0.clone()));
            (namespace, pods.and_then(|pods| pods.value()).unwrap_or_default())
        });
        Ok(counted.collect())
    }

    /// GPUs of the nodes that each tenant has, until its pods there have ended, and those that these pods request, by UID.
    pub(super) async fn count_gpus(&self) -> Result<BTreeMap<String, [u64; 2]>, String> {
        let nodes = Api::<Node>::all(self.host.client.clone());
        let nodes = nodes.list(&ListParams::default()).await;
        let pods = Api::<Pod>::all(self.host.client.clone());
        let pods = pods.list(&ListParams::default().labels(labels::TENANT)).await;
        let mut owners: HashMap<String, (String, Option<String>)> = HashMap::new();
        let mut sums: BTreeMap<String, [u64; 2]> = BTreeMap::new();
        for node in nodes.map_err(|error| error.to_string())? {
            if let Some(uid) = node.annotations().get(labels::OWNER_UID) {
                let allocatable = node.status.as_ref().and_then(|status| status.allocatable.clone());
                let gpus = allocatable.and_then(|amounts| amounts.get(GPU)?.0.parse::<u64>().ok());
                sums.entry(uid.clone()).or_default()[0] += gpus.unwrap_or_default();
                let slug = node.labels().get(labels::TENANT).cloned();
                owners.insert(node.name_any(), (uid.clone(), slug));
            }
        }
        for pod in pods.map_err(|error| error.to_string())? {
            let spec = pod.spec.clone().unwrap_or_default();
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            let owner = spec.node_name.and_then(|node| owners.get(&node));
            let Some((uid, slug)) = owner.filter(|_| !matches!(phase, Some("Succeeded" | "Failed"))) else {
                continue;
            };
            if slug.as_ref() == pod.labels().get(labels::TENANT) {
                let requests = spec.containers[0].resources.as_ref().and_then(|of| of.limits.clone());
                let gpus = requests.and_then(|amounts| amounts.get(GPU)?.0.parse::<u64>().ok());
                sums.entry(uid.clone()).or_default()[1] += gpus.unwrap_or_default();
            }
        }
        Ok(sums)
    }
}
