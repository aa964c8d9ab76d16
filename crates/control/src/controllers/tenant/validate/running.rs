//! What a tenant that runs is held to: the rules of its class and of its pools as they are now.

use super::{
    super::{
        access::{self, CLASS_NOT_ALLOWED, Namespace, POOL_NOT_ALLOWED},
        compliance::{self, Assessment, Forbidden, MODE_NOT_OFFERED, Rules, Running},
        fetch::ObservedNodes,
        settings::{self, Settings},
    },
    Validator,
};
use crate::controllers::tenant_class;
use berth_api::{TenantClass, TenantClassSpec, TenantCluster, TenantLimits, Violation, names::TenantId};
use berth_node_lifecycle::{Assignment, fleet::WithdrawnNodes};
use jiff::Timestamp;
use kube::ResourceExt;
use std::sync::Arc;

impl Validator<'_> {
    /// The limits of a running tenant whose spec cannot be carried out: those of its class. None: that class is gone or invalid, so
    /// that the tenant keeps limits that only its record has.
    pub fn running_limits(&self, cluster: &TenantCluster) -> Option<TenantLimits> {
        let running = cluster.status.as_ref().and_then(|status| status.class_name.as_deref());
        let Some(name) = running else {
            return Some(TenantLimits::default());
        };
        let class = self.running_class(cluster, Some(name))?;
        Some(class.spec.limits.clone())
    }

    /// What a tenant runs with whose spec is not accepted or waits, and what of it is not allowed. `accepted` is what it was accepted with
    /// last.
    pub(in super::super) fn hold_to_rules(
        &self,
        cluster: &TenantCluster,
        accepted: Settings,
        nodes: &ObservedNodes,
        now: Timestamp,
    ) -> (Settings, Assessment) {
        let (name, object) = self.namespace_of(cluster);
        let class = self.running_class(cluster, accepted.class.as_deref());
        // Settings without a class are Berth's own.
        let of_class = class.as_deref().filter(|_| accepted.class.is_some());
        let of_class = of_class.map(|class| &class.spec);
        // What the spec no longer lists is neither kept nor a violation.
        let accepted = settings::without_removed(accepted, cluster, of_class);
        let rules = Rules {
            without_class: self.without_class,
            namespace: Namespace {
                name: &name,
                labels: object.as_ref().map(|object| object.labels()),
            },
            class: class.as_deref(),
            pools: &self.available.pools,
        };
        let held = nodes.owned.iter().filter_map(|node| {
            let record = Assignment::read(node)?;
            let is_held = record.state.is_pending() || record.state.runs_tenant_pods();
            is_held.then_some((record.group, record.pool))
        });
        let running = Running {
            settings: &accepted,
            groups: &cluster.spec.node_groups,
            held: held.collect(),
        };
        let mut found = compliance::find_forbidden(&running, &rules);
        let mut settings = match of_class {
            Some(rules) => settings::under_rules(accepted, cluster, rules),
            None => accepted,
        };
        settings.withdrawn_storage.clear();
        found.extend(self.find_forbidden_storage(cluster, &settings));
        let assessment = assess(cluster, found, now);
        compliance::withdraw(&mut settings, of_class, &assessment.withdrawals);
        (settings, assessment)
    }

    /// What a tenant runs with whose spec is accepted, and what of it is not allowed all the same: storage that its class does not offer, which the
    /// spec does not name.
    pub(in super::super) fn hold_storage_to_rules(
        &self,
        cluster: &TenantCluster,
        mut settings: Settings,
        now: Timestamp,
    ) -> (Settings, Assessment) {
        let found = self.find_forbidden_storage(cluster, &settings);
        let assessment = if settings.is_new_class(cluster) {
            compliance::assess_in_new_class(found, recorded_violations(cluster), now)
        } else {
            assess(cluster, found, now)
        };
        compliance::withdraw(&mut settings, None, &assessment.withdrawals);
        (settings, assessment)
    }

    fn find_forbidden_storage(&self, cluster: &TenantCluster, settings: &Settings) -> Vec<Forbidden> {
        let Some(uid) = cluster.uid() else { return Vec::new() };
        let id = TenantId::new(&cluster.name_any(), &uid);
        let namespace = id.workload_namespace();
        let mut used = self.stores.storage_claims.of(&namespace);
        used.extend(self.stores.inline_volumes.of(&namespace));
        let class = settings.class.as_deref().and_then(|name| self.class(name));
        let grace = class.map_or_else(
            || TenantClassSpec::default().enforcement_grace_period(),
            |class| class.spec.enforcement_grace_period(),
        );
        compliance::find_forbidden_storage(settings, &used, grace)
    }

    /// Nodes that a tenant whose spec is not accepted may not keep: what the status reports as enforced, if it is still forbidden and its
    /// grace period is still over.
    pub fn withdrawn_nodes(&self, cluster: &TenantCluster, now: Timestamp) -> WithdrawnNodes {
        let mut withdrawn = WithdrawnNodes::default();
        let Some(status) = cluster.status.as_ref().filter(|status| !status.violations.is_empty()) else {
            return withdrawn;
        };
        let (name, object) = self.namespace_of(cluster);
        let namespace = Namespace {
            name: &name,
            labels: object.as_ref().map(|object| object.labels()),
        };
        for violation in status.violations.iter().filter(|violation| violation.enforced) {
            let is_due = |grace: i64| compliance::deadline_after(violation.since.0, grace) <= now;
            if violation.reason == CLASS_NOT_ALLOWED {
                let class = self.running_class(cluster, status.class_name.as_deref());
                withdrawn.all |= class.is_some_and(|class| {
                    let allows = class.spec.allowed_namespaces.allows(namespace.labels);
                    allows == Some(false) && is_due(class.spec.enforcement_grace_period())
                });
            }
            let pool_name = compliance::pool_of(violation);
            let Some((pool_name, (pool, _))) = pool_name.and_then(|name| self.available.pools.get_key_value(name))
            else {
                continue;
            };
            if !is_due(pool.spec.enforcement_grace_period()) {
                continue;
            }
            if violation.reason == POOL_NOT_ALLOWED && compliance::pool_forbids(pool, &namespace) {
                withdrawn.pools.insert(pool_name.clone());
            }
            if violation.reason == MODE_NOT_OFFERED {
                let groups = compliance::groups_without_mode(&cluster.spec.node_groups, pool_name, pool);
                withdrawn.groups.extend(groups);
            }
        }
        withdrawn
    }

    /// The class whose rules a running tenant has, if it exists and is valid. One that contradicts itself changes nothing.
    fn running_class(&self, cluster: &TenantCluster, running: Option<&str>) -> Option<Arc<TenantClass>> {
        let name = access::running_class(cluster, running, |name| self.class(name).is_some())?;
        let class = self.class(&name)?;
        tenant_class::validate(&class.spec).is_ok().then_some(class)
    }
}

/// What is forbidden, with what the status says since when.
fn assess(cluster: &TenantCluster, found: Vec<Forbidden>, now: Timestamp) -> Assessment {
    compliance::assess(found, recorded_violations(cluster), now)
}

fn recorded_violations(cluster: &TenantCluster) -> &[Violation] {
    let status = cluster.status.as_ref();
    status.map(|status| status.violations.as_slice()).unwrap_or_default()
}
