//! Tenants come, go, grow and shrink and create pods, namespaces move between Projects, and quotas change, as a dice says. After each step
//! the sums agree: what tenants have reserved and what they use is what their Projects report, and the sum of these is what their
//! Organization reports.

use crate::setup::SOON;
use berth_api::{
    Amount, LIMITS_NAME, Organization, Project, TenantClass, TenantCluster, TenantClusterSpec, TreeQuotaStatus, labels,
    names::TenantId,
};
use berth_tests::{
    dice::Dice,
    objects::apply,
    tenant::{ensure_namespace, until_gone},
    test_cluster::TestCluster,
    wait::until,
};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

const STEPS: u32 = 40;
const ORGANIZATIONS: [&str; 2] = ["sums-x", "sums-y"];
/// Projects with the index of their Organization.
const PROJECTS: [(&str, usize); 4] = [("sums-a", 0), ("sums-b", 0), ("sums-c", 1), ("sums-d", 1)];
const NAMESPACES: [&str; 5] = ["sums-1", "sums-2", "sums-3", "sums-4", "sums-5"];
/// Classes with the pods that they let a tenant have.
const CLASSES: [(&str, u32); 2] = [("sums-small", 3), ("sums-large", 7)];

/// Amounts by resource: what is reserved, and what is used.
type Amounts = BTreeMap<String, [u64; 2]>;

pub(crate) async fn sums_of_used_quota_agree_whatever_happens(host: Arc<TestCluster>) {
    let mut world = World::create(&host).await;
    let what = world.create_tenant().await;
    world.until_sums_agree(&what).await;
    until("a tenant can create pods", SOON, async || world.create_pod().await).await;
    world.until_sums_agree("a pod was created").await;
    assert!(world.most_pods > 0);
    for _ in 0..STEPS {
        let what = world.step().await;
        world.until_sums_agree(&what).await;
    }
    assert!(world.most_used > 2 && world.most_waiting > 0, "{world:?}");
    eprintln!(
        "at most {} tenants had quota, and {} waited; at most {} pods existed",
        world.most_used, world.most_waiting, world.most_pods
    );
    world.delete().await;
}

struct World<'a> {
    host: &'a TestCluster,
    dice: Dice,
    /// Namespace and name of each tenant.
    tenants: Vec<(&'static str, String)>,
    /// The index of the Project of each namespace.
    owners: [usize; NAMESPACES.len()],
    created: u32,
    most_pods: u64,
    most_used: u64,
    most_waiting: u32,
}

impl std::fmt::Debug for World<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("tenants", &self.tenants)
            .field("owners", &self.owners)
            .field("most_used", &self.most_used)
            .field("most_waiting", &self.most_waiting)
            .finish_non_exhaustive()
    }
}

impl<'a> World<'a> {
    async fn create(host: &'a TestCluster) -> Self {
        for namespace in NAMESPACES {
            ensure_namespace(&host.client, namespace).await;
        }
        for (name, pods) in CLASSES {
            let class = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": name},
                "spec": {"limits": {"pods": pods}}});
            apply(&host.client, "", &class).await.unwrap();
        }
        let world = Self {
            host,
            dice: Dice::from_environment(),
            tenants: Vec::new(),
            owners: [0, 1, 2, 3, 0],
            created: 0,
            most_pods: 0,
            most_used: 0,
            most_waiting: 0,
        };
        for organization in 0..ORGANIZATIONS.len() {
            world.set_organization(organization, 3).await;
        }
        for project in 0..PROJECTS.len() {
            world.set_project(project).await;
        }
        world
    }

    /// An Organization with quota for so many tenants, and for fewer than seven pods each.
    async fn set_organization(&self, index: usize, tenants: u64) {
        let quotas = quotas(tenants);
        let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Organization",
            "metadata": {"name": ORGANIZATIONS[index]}, "spec": {"quotas": quotas}});
        apply(&self.host.client, "", &object).await.unwrap();
    }

    /// A Project with its namespaces. What it uses is limited by its Organization.
    async fn set_project(&self, index: usize) {
        let (name, organization) = PROJECTS[index];
        let owners = self.owners.iter().zip(NAMESPACES);
        let own = owners.filter(|(owner, _)| **owner == index);
        let namespaces: Vec<&str> = own.map(|(_, namespace)| namespace).collect();
        let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Project", "metadata": {"name": name},
            "spec": {"organizationName": ORGANIZATIONS[organization], "namespaces": namespaces}});
        apply(&self.host.client, "", &object).await.unwrap();
    }

    async fn step(&mut self) -> String {
        match self.dice.below(13) {
            0..=3 => self.create_tenant().await,
            4 => self.delete_tenant().await,
            5 | 6 => self.change_class().await,
            7 | 8 => self.move_namespace().await,
            9..=11 => self
                .create_pod()
                .await
                .unwrap_or_else(|why| format!("no pod was created: {why}")),
            _ => {
                let (index, tenants) = (self.dice.index(ORGANIZATIONS.len()), self.dice.below(5));
                self.set_organization(index, tenants).await;
                format!("{} has quota for {tenants}", ORGANIZATIONS[index])
            }
        }
    }

    async fn create_tenant(&mut self) -> String {
        let namespace = NAMESPACES[self.dice.index(NAMESPACES.len())];
        let class = CLASSES[self.dice.index(CLASSES.len())].0;
        self.created += 1;
        let name = format!("t{}", self.created);
        let spec = TenantClusterSpec {
            class_name: Some(class.into()),
            ..TenantClusterSpec::default()
        };
        let tenant = TenantCluster::new(&name, spec);
        let tenants = self.host.tenants(namespace);
        tenants.create(&PostParams::default(), &tenant).await.unwrap();
        self.tenants.push((namespace, name.clone()));
        format!("{namespace}/{name} of {class} was created")
    }

    async fn delete_tenant(&mut self) -> String {
        if self.tenants.is_empty() {
            return "there is no tenant to delete".into();
        }
        let (namespace, name) = self.tenants.swap_remove(self.dice.index(self.tenants.len()));
        let tenants = self.host.tenants(namespace);
        tenants.delete(&name, &DeleteParams::default()).await.unwrap();
        format!("{namespace}/{name} was deleted")
    }

    async fn change_class(&mut self) -> String {
        if self.tenants.is_empty() {
            return "there is no tenant to change".into();
        }
        let index = self.dice.index(self.tenants.len());
        let (namespace, name) = &self.tenants[index];
        let class = CLASSES[self.dice.index(CLASSES.len())].0;
        let patch = Patch::Merge(json!({"spec": {"className": class}}));
        let tenants = self.host.tenants(namespace);
        tenants.patch(name, &PatchParams::default(), &patch).await.unwrap();
        format!("{namespace}/{name} is of {class}")
    }

    /// A pod of a tenant that never starts. The error says why there is none: the tenant waits for quota, or has as many as it may.
    async fn create_pod(&mut self) -> Result<String, String> {
        if self.tenants.is_empty() {
            return Err("there is no tenant".into());
        }
        let (namespace, name) = self.tenants[self.dice.index(self.tenants.len())].clone();
        let tenant = self.host.tenants(namespace).get(&name).await;
        let tenant = tenant.map_err(|error| error.to_string())?;
        let id = TenantId::new(&name, &tenant.uid().unwrap_or_default());
        self.created += 1;
        let pod = json!({
            "metadata": {
                "name": format!("p{}", self.created),
                "labels": {labels::TENANT: id.slug(), labels::MANAGED_BY: labels::MANAGED_BY_SYNCER},
            },
            "spec": {
                "schedulingGates": [{"name": "example.com/never"}],
                "nodeSelector": {labels::TENANT: id.slug()},
                "tolerations": [{"key": labels::TENANT, "operator": "Equal", "value": id.slug(), "effect": "NoExecute"}],
                "automountServiceAccountToken": false, "dnsPolicy": "Default",
                "containers": [{"name": "main", "image": "train:1"}],
            },
        });
        let pods: Api<Pod> = Api::namespaced(self.host.client.clone(), &id.workload_namespace());
        let created = pods
            .create(&PostParams::default(), &serde_json::from_value(pod).unwrap())
            .await;
        created.map_err(|error| error.to_string())?;
        Ok(format!("a pod of {namespace}/{name} was created"))
    }

    /// First both Projects name the namespace, so that it always belongs to one.
    async fn move_namespace(&mut self) -> String {
        let (namespace, to) = (self.dice.index(NAMESPACES.len()), self.dice.index(PROJECTS.len()));
        let from = std::mem::replace(&mut self.owners[namespace], to);
        self.set_project(to).await;
        self.set_project(from).await;
        format!(
            "{} went from {} to {}",
            NAMESPACES[namespace], PROJECTS[from].0, PROJECTS[to].0
        )
    }

    async fn until_sums_agree(&mut self, after: &str) {
        let what = format!("the sums agree after {after}");
        let (used, pods, waiting) = until(&what, SOON, async || self.compare().await).await;
        self.most_pods = self.most_pods.max(pods);
        self.most_used = self.most_used.max(used);
        self.most_waiting = self.most_waiting.max(waiting);
    }

    /// Tenants that have quota, their pods, and tenants that wait, if all sums agree.
    async fn compare(&self) -> Result<(u64, u64, u32), String> {
        let text = |error: kube::Error| error.to_string();
        let client = &self.host.client;
        let all = ListParams::default();
        let held = self.amounts_of_tenants().await?;
        let projects = Api::<Project>::all(client.clone()).list(&all).await.map_err(text)?;
        let organizations = Api::<Organization>::all(client.clone())
            .list(&all)
            .await
            .map_err(text)?;
        let (mut used, mut pods, mut waiting) = (0, 0, 0);
        for (index, organization) in ORGANIZATIONS.iter().enumerate() {
            let mut sums: Amounts = [("pods".to_owned(), [0; 2]), ("tenantclusters".to_owned(), [0; 2])].into();
            for (name, _) in PROJECTS.iter().filter(|(_, own)| *own == index) {
                let project = projects.iter().find(|project| project.name_any() == *name);
                let project = project.ok_or("a Project is missing")?;
                let status = project.status.clone().unwrap_or_default();
                if status.observed_generation != project.metadata.generation {
                    return Err(format!("{name} was not observed"));
                }
                let reported = amounts(&status.quotas);
                let own = held.get(*name).cloned().unwrap_or_default();
                for (resource, sum) in &mut sums {
                    let amount = reported.get(resource).copied().unwrap_or_default();
                    if own.get(resource).copied().unwrap_or_default() != amount {
                        return Err(format!("{name} reports {reported:?}, and its tenants have {own:?}"));
                    }
                    add(sum, amount);
                }
                waiting += status.waiting_tenants.unwrap_or_default();
            }
            let found = organizations.iter().find(|found| found.name_any() == *organization);
            let status = found.and_then(|found| found.status.clone()).unwrap_or_default();
            let reported = amounts(&status.quotas);
            if reported != sums {
                return Err(format!(
                    "{organization} reports {reported:?}, and its Projects {sums:?}"
                ));
            }
            used += sums["tenantclusters"][0];
            pods += sums["pods"][1];
        }
        Ok((used, pods, waiting))
    }

    /// What tenants have reserved by their status, and what exists on the host, by Project.
    async fn amounts_of_tenants(&self) -> Result<BTreeMap<String, Amounts>, String> {
        let counted = self.count_pods().await?;
        let mut sums: BTreeMap<String, Amounts> = BTreeMap::new();
        for (namespace, owner) in NAMESPACES.iter().zip(self.owners) {
            let list = self.host.tenants(namespace).list(&ListParams::default()).await;
            for tenant in list.map_err(|error| error.to_string())? {
                let id = TenantId::new(&tenant.name_any(), &tenant.uid().unwrap_or_default());
                let status = tenant.status.unwrap_or_default();
                let Some(quota) = status.quota else { continue };
                if quota.project_name != PROJECTS[owner].0 {
                    return Err(format!("a tenant of {namespace} has quota of {}", quota.project_name));
                }
                let of_project = sums.entry(quota.project_name).or_default();
                for (resource, amount) in quota.reserved {
                    add(of_project.entry(resource).or_default(), [amount, 0]);
                }
                let runs = u64::from(status.control_plane_namespace.is_some());
                let pods = counted.get(&id.workload_namespace()).copied().unwrap_or_default();
                for (resource, amount) in [("tenantclusters", runs), ("pods", pods)] {
                    add(of_project.entry(resource.to_owned()).or_default(), [0, amount]);
                }
            }
        }
        Ok(sums)
    }

    /// Pods by workload namespace, as the host counts them.
    async fn count_pods(&self) -> Result<BTreeMap<String, u64>, String> {
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

    async fn delete(self) {
        for (namespace, name) in &self.tenants {
            let tenants = self.host.tenants(namespace);
            tenants.delete(name, &DeleteParams::default()).await.unwrap();
        }
        for (namespace, name) in &self.tenants {
            until_gone(self.host, namespace, name).await;
        }
        let at_once = DeleteParams::default();
        let client = &self.host.client;
        for (name, _) in PROJECTS {
            Api::<Project>::all(client.clone())
                .delete(name, &at_once)
                .await
                .unwrap();
        }
        for name in ORGANIZATIONS {
            Api::<Organization>::all(client.clone())
                .delete(name, &at_once)
                .await
                .unwrap();
        }
        for (name, _) in CLASSES {
            Api::<TenantClass>::all(client.clone())
                .delete(name, &at_once)
                .await
                .unwrap();
        }
    }
}

fn quotas(tenants: u64) -> Value {
    json!([
        {"resource": "tenantclusters", "nominalQuota": tenants, "borrowingLimit": 0},
        {"resource": "pods", "nominalQuota": tenants * 5, "borrowingLimit": 0},
    ])
}

fn amounts(quotas: &[TreeQuotaStatus]) -> Amounts {
    let amounts = quotas.iter().map(|quota| {
        let amounts = [quota.reserved, quota.used.unwrap_or_default()];
        (quota.resource.as_str().to_owned(), amounts)
    });
    amounts.collect()
}

fn add(sum: &mut [u64; 2], amounts: [u64; 2]) {
    for (sum, amount) in sum.iter_mut().zip(amounts) {
        *sum += amount;
    }
}
