//! Tenants come, go, grow and shrink, create pods and change their node groups, budgets hold up drains, namespaces move between Projects, and
//! quotas change, as a dice says. After each step the sums agree: what tenants have reserved and what they use is what their Projects report,
//! and the sum of these is what their Organization reports.

mod workloads;

use crate::setup::{SOON, until_all_free};
use berth_api::{
    NodeGroup, Organization, Project, TenantClass, TenantCluster, TenantClusterSpec, TreeQuotaStatus, labels,
    names::TenantId,
};
use berth_tests::{
    dice::Dice,
    objects::apply,
    tenant::{ensure_namespace, until_gone},
    test_cluster::TestCluster,
    wait::{until, until_true},
};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

const STEPS: u32 = 50;
/// Steps after which a dice that never lets enough tenants have quota at the same time is a failure.
const MOST_STEPS: u32 = 300;
const ORGANIZATIONS: [&str; 2] = ["sums-x", "sums-y"];
/// Projects with the index of their Organization.
const PROJECTS: [(&str, usize); 4] = [("sums-a", 0), ("sums-b", 0), ("sums-c", 1), ("sums-d", 1)];
const NAMESPACES: [&str; 5] = ["sums-1", "sums-2", "sums-3", "sums-4", "sums-5"];
/// Classes with the pods that they let a tenant have.
const CLASSES: [(&str, u32); 2] = [("sums-small", 3), ("sums-large", 7)];

const POOL: &str = "h100";
/// GPUs of a node.
const GPUS: u64 = 8;

/// What the Organizations limit.
const RESOURCES: [&str; 3] = ["gpus", "pods", "tenantclusters"];

/// Amounts by resource: what is reserved, and what is used.
type Amounts = BTreeMap<String, [u64; 2]>;

pub(crate) async fn sums_of_used_quota_agree_whatever_happens(host: Arc<TestCluster>) {
    let mut world = World::create(&host).await;
    world.lose_a_node_whose_pods_stay().await;
    let mut steps = 0;
    while steps < STEPS || (!world.has_seen_enough() && steps < MOST_STEPS) {
        let what = world.step().await;
        world.until_sums_agree(&what).await;
        steps += 1;
    }
    assert!(world.has_seen_enough(), "{world:?}");
    eprintln!(
        "at most {} tenants had quota, and {} waited; at most {} pods existed, and {:?} GPUs were reserved and used",
        world.most_used, world.most_waiting, world.most_pods, world.most_gpus
    );
    world.delete().await;
}

/// What all tenants have together.
#[derive(Debug, Default)]
struct Sums {
    /// Tenants that have quota.
    tenants: u64,
    /// Tenants that wait.
    waiting: u32,
    pods: u64,
    /// Reserved and used.
    gpus: [u64; 2],
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
    /// Reserved and used.
    most_gpus: [u64; 2],
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
            most_gpus: [0; 2],
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

    /// Whether sums had several parts, and quota was short.
    fn has_seen_enough(&self) -> bool {
        self.most_used > 2 && self.most_waiting > 0
    }

    /// A tenant has a node, and loses it while a budget keeps its pod there. Then it creates another pod: the host may count one that is
    /// created together with the limit of its namespace minutes later.
    async fn lose_a_node_whose_pods_stay(&mut self) {
        let what = self.create_tenant_with(NodeGroup::private("before", POOL, 1)).await;
        self.until_sums_agree(&what).await;
        until("a tenant can create pods", SOON, async || self.create_pod(GPUS).await).await;
        until("its GPUs count", SOON, async || self.expect_gpus([GPUS; 2]).await).await;
        until("there is a budget", SOON, async || self.set_budget(0, true).await).await;
        let what = self.set_group(0, &NodeGroup::private("after", POOL, 0)).await;
        let nodes: Api<Node> = Api::all(self.host.client.clone());
        let draining = ListParams::default().labels(&format!("{}=Draining", labels::NODE_STATE));
        until_true("the node is drained", SOON, async || {
            nodes.list(&draining).await.is_ok_and(|list| !list.items.is_empty())
        })
        .await;
        self.until_sums_agree(&what).await;
        until("its GPUs count", SOON, async || self.expect_gpus([GPUS; 2]).await).await;
        until("there is no budget", SOON, async || self.set_budget(0, false).await).await;
        until("no GPU counts", SOON, async || self.expect_gpus([0; 2]).await).await;
        let what = self.create_pod(0).await.unwrap();
        self.until_sums_agree(&what).await;
        assert!(self.most_pods > 0);
    }

    /// An error unless so many GPUs are reserved and used, by all sums.
    async fn expect_gpus(&self, expected: [u64; 2]) -> Result<(), String> {
        let found = self.compare().await?;
        if found.gpus == expected {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    }

    /// An Organization with quota for so many tenants, for fewer than seven pods each, and for one node each.
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
        match self.dice.below(15) {
            0..=2 => {
                let group = self.new_group();
                self.create_tenant_with(group).await
            }
            3 => self.delete_tenant().await,
            4 | 5 => self.change_class().await,
            6 => self.move_namespace().await,
            7..=10 => {
                let gpus = [0, GPUS / 2, GPUS / 2, GPUS][self.dice.index(4)];
                let created = self.create_pod(gpus).await;
                created.unwrap_or_else(|why| format!("no pod was created: {why}"))
            }
            11 | 12 => self.change_group().await,
            13 => self.change_budget().await,
            _ => {
                let (index, tenants) = (self.dice.index(ORGANIZATIONS.len()), self.dice.below(5));
                self.set_organization(index, tenants).await;
                format!("{} has quota for {tenants}", ORGANIZATIONS[index])
            }
        }
    }

    async fn create_tenant_with(&mut self, group: NodeGroup) -> String {
        let namespace = NAMESPACES[self.dice.index(NAMESPACES.len())];
        let class = CLASSES[self.dice.index(CLASSES.len())].0;
        self.created += 1;
        let name = format!("t{}", self.created);
        let spec = TenantClusterSpec {
            class_name: Some(class.into()),
            node_groups: vec![group],
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
        self.host
            .patch_tenant(namespace, name, &json!({"className": class}))
            .await;
        format!("{namespace}/{name} is of {class}")
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
        let sums = until(&what, SOON, async || self.compare().await).await;
        self.most_pods = self.most_pods.max(sums.pods);
        for (most, now) in self.most_gpus.iter_mut().zip(sums.gpus) {
            *most = now.max(*most);
        }
        self.most_used = self.most_used.max(sums.tenants);
        self.most_waiting = self.most_waiting.max(sums.waiting);
    }

    /// What all tenants have together, if all sums agree.
    async fn compare(&self) -> Result<Sums, String> {
        let text = |error: kube::Error| error.to_string();
        let client = &self.host.client;
        let all = ListParams::default();
        let held = self.amounts_of_tenants().await?;
        let projects = Api::<Project>::all(client.clone()).list(&all).await.map_err(text)?;
        let organizations = Api::<Organization>::all(client.clone())
            .list(&all)
            .await
            .map_err(text)?;
        let mut total = Sums::default();
        for (index, organization) in ORGANIZATIONS.iter().enumerate() {
            let mut sums: Amounts = RESOURCES.map(|resource| (resource.to_owned(), [0; 2])).into();
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
                total.waiting += status.waiting_tenants.unwrap_or_default();
            }
            let found = organizations.iter().find(|found| found.name_any() == *organization);
            let status = found.and_then(|found| found.status.clone()).unwrap_or_default();
            let reported = amounts(&status.quotas);
            if reported != sums {
                return Err(format!(
                    "{organization} reports {reported:?}, and its Projects {sums:?}"
                ));
            }
            total.tenants += sums["tenantclusters"][0];
            total.pods += sums["pods"][1];
            add(&mut total.gpus, sums["gpus"]);
        }
        Ok(total)
    }

    /// What tenants have reserved by their status, and what exists on the host, by Project.
    async fn amounts_of_tenants(&self) -> Result<BTreeMap<String, Amounts>, String> {
        let (counted, gpus) = (self.count_pods().await?, self.count_gpus().await?);
        let mut sums: BTreeMap<String, Amounts> = BTreeMap::new();
        for (namespace, owner) in NAMESPACES.iter().zip(self.owners) {
            let list = self.host.tenants(namespace).list(&ListParams::default()).await;
            for tenant in list.map_err(|error| error.to_string())? {
                let uid = tenant.uid().unwrap_or_default();
                let id = TenantId::new(&tenant.name_any(), &uid);
                let status = tenant.status.unwrap_or_default();
                let Some(quota) = status.quota else { continue };
                if quota.project_name != PROJECTS[owner].0 {
                    return Err(format!("a tenant of {namespace} has quota of {}", quota.project_name));
                }
                let of_project = sums.entry(quota.project_name).or_default();
                let own_gpus = gpus.get(&uid).copied().unwrap_or_default();
                add(of_project.entry("gpus".to_owned()).or_default(), own_gpus);
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

    async fn delete(self) {
        for (namespace, name) in &self.tenants {
            let tenants = self.host.tenants(namespace);
            tenants.delete(name, &DeleteParams::default()).await.unwrap();
        }
        for (namespace, name) in &self.tenants {
            until_gone(self.host, namespace, name).await;
        }
        until_all_free(self.host).await;
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
        {"resource": "gpus", "poolName": POOL, "nominalQuota": tenants * GPUS, "borrowingLimit": 0},
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
