//! Stores that a test fills itself.

use super::ScriptedApi;
use crate::{changes::Changes, clock::Clock, published_nodes::PublishedNode, stores::Stores};
use berth_api::{HostNodePool, Organization, Project, SchedulePolicy, TenantClass, TenantCluster, TenantSchedule};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, Node},
    networking::v1::NetworkPolicy,
    scheduling::v1::PriorityClass,
};
use kube::{
    Resource,
    core::PartialObjectMeta,
    runtime::{
        reflector::{self, store::Writer},
        watcher::Event,
    },
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::{fmt::Debug, hash::Hash, sync::Arc};

/// Paths of the namespaces of teams in a test.
pub(crate) const TEAM_NAMESPACES: &str = "/team-namespaces/";

/// Fills stores with the objects of a [`ScriptedApi`], as watches would.
pub(crate) struct StoreWriters {
    tenants: Writer<TenantCluster>,
    pools: Writer<HostNodePool>,
    classes: Writer<TenantClass>,
    schedule_policies: Writer<SchedulePolicy>,
    organizations: Writer<Organization>,
    projects: Writer<Project>,
    manifests: Writer<ConfigMap>,
    priority_classes: Writer<PriorityClass>,
    nodes: Writer<Node>,
    namespaces: Writer<PartialObjectMeta<Namespace>>,
    team_namespaces: Writer<PartialObjectMeta<Namespace>>,
    network_policies: Writer<NetworkPolicy>,
    tenant_nodes: Writer<PublishedNode>,
    tenant_schedules: Writer<TenantSchedule>,
    changes: Arc<Changes>,
}

impl StoreWriters {
    /// Stores that are empty at first.
    pub(crate) fn new() -> (Stores, Self) {
        let (tenants, tenant_writer) = reflector::store();
        let (pools, pool_writer) = reflector::store();
        let (classes, class_writer) = reflector::store();
        let (schedule_policies, schedule_policy_writer) = reflector::store();
        let (organizations, organization_writer) = reflector::store();
        let (projects, project_writer) = reflector::store();
        let (manifests, manifest_writer) = reflector::store();
        let (priority_classes, priority_class_writer) = reflector::store();
        let (nodes, node_writer) = reflector::store();
        let (namespaces, namespace_writer) = reflector::store();
        let (team_namespaces, team_namespace_writer) = reflector::store();
        let (network_policies, network_policy_writer) = reflector::store();
        let (tenant_nodes, tenant_node_writer) = reflector::store();
        let (tenant_schedules, tenant_schedule_writer) = reflector::store();
        let others = Stores::empty(Clock::default());
        let changes = Arc::clone(&others.changes);
        let stores = Stores {
            tenants,
            pools,
            classes,
            schedule_policies,
            organizations,
            projects,
            manifests,
            priority_classes,
            nodes,
            team_namespaces,
            namespaces,
            network_policies,
            tenant_nodes,
            tenant_schedules,
            ..others
        };
        let writers = Self {
            tenants: tenant_writer,
            pools: pool_writer,
            classes: class_writer,
            schedule_policies: schedule_policy_writer,
            organizations: organization_writer,
            projects: project_writer,
            manifests: manifest_writer,
            priority_classes: priority_class_writer,
            nodes: node_writer,
            namespaces: namespace_writer,
            team_namespaces: team_namespace_writer,
            network_policies: network_policy_writer,
            tenant_nodes: tenant_node_writer,
            tenant_schedules: tenant_schedule_writer,
            changes,
        };
        (stores, writers)
    }

    /// Replaces the contents of the stores with the objects of `host`.
    pub(crate) fn update(&mut self, host: &ScriptedApi) {
        fill(&mut self.tenants, host, "/tenantclusters/");
        fill(&mut self.pools, host, "/hostnodepools/");
        fill(&mut self.classes, host, "/tenantclasses/");
        fill(&mut self.schedule_policies, host, "/schedulepolicies/");
        fill(&mut self.organizations, host, "/organizations/");
        fill(&mut self.projects, host, "/projects/");
        fill(&mut self.manifests, host, "/namespaces/berth-system/configmaps/");
        fill(&mut self.priority_classes, host, "/priorityclasses/");
        fill(&mut self.nodes, host, "/api/v1/nodes/");
        fill_with(
            &mut self.namespaces,
            host.find("/api/v1/namespaces/")
                .into_iter()
                .filter(|object| object["kind"] == "Namespace"),
        );
        fill(&mut self.team_namespaces, host, TEAM_NAMESPACES);
        fill(&mut self.network_policies, host, "/networkpolicies/");
        fill(&mut self.tenant_nodes, host, "/tenantnodes/");
        fill(&mut self.tenant_schedules, host, "/tenantschedules/");
        self.changes.count_all();
    }
}

fn fill<K>(writer: &mut Writer<K>, host: &ScriptedApi, part: &str)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    fill_with(writer, host.find(part));
}

fn fill_with<K>(writer: &mut Writer<K>, objects: impl IntoIterator<Item = Value>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    writer.apply_watcher_event(&Event::Init);
    for object in objects {
        let object: K = serde_json::from_value(object).expect("an object of this kind");
        writer.apply_watcher_event(&Event::InitApply(object));
    }
    writer.apply_watcher_event(&Event::InitDone);
}
