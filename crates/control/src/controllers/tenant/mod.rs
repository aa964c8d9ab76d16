//! The `TenantCluster` controller.
//!
//! [`reconcile`] reads everything anew and never asks what woke it. Its steps are in the order in which a tenant comes
//! to life; each is idempotent, so that control may be killed between any two instructions.

mod bootstrap;
mod cleanup;
mod connection;
mod definitions;
mod dns;
mod exposure;
mod host_objects;
mod keys;
mod node_groups;
mod provision;
mod publish;
mod service_range;
mod settings;
mod state;
mod status;
mod usage;
mod validate;

pub use service_range::HostRanges;
pub use settings::{Settings, class_of};
pub use state::{TenantMemory, Tenants};
pub use validate::{Offer, validate};

use crate::{
    context::{Context, Key},
    error::{ReconcileError, api},
    network::host_network,
    nodes::Selectors,
};
use berth_api::{
    TenantCluster,
    conditions::{ACCEPTED, Finding},
    labels,
    names::TenantId,
};
use ipnet::IpNet;
use jiff::Timestamp;
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::reflector::ObjectRef,
};
use serde_json::json;
use state::Findings;
use std::{cell::OnceCell, sync::Arc, time::Duration};

/// Name of the ServiceCIDR in the tenant that stands for the host's Service ranges.
const SERVICE_CIDR_NAME: &str = "berth-host";
/// Pause after which a tenant that is well is looked at again: certificates and tokens are renewed in time, what was
/// changed by hand is mended, and a component that crashes is reported.
const RESYNC: Duration = Duration::from_secs(60);
/// Pause after which a tenant that is not ready is looked at again, whatever else may wake it earlier.
const RECHECK: Duration = Duration::from_secs(5);

/// Brings one tenant to where its spec says. Returns when to look again.
///
/// # Errors
/// A step failed; the condition of the step says so, and the queue tries again later.
pub async fn reconcile(context: &Context, namespace: &str, name: &str) -> Result<Option<Duration>, ReconcileError> {
    let Some(cluster) = context.stores.tenants.get(&ObjectRef::new(name).within(namespace)) else {
        return cleanup::orphans(context, namespace, name).await;
    };
    let Some(uid) = cluster.uid() else { return Ok(None) };
    let tenant = TenantId::new(name, &uid);
    let memory = context.tenants.of(&uid, &context.client);

    if cluster.meta().deletion_timestamp.is_some() {
        return cleanup::run(context, &memory, &cluster, &tenant).await;
    }
    let mut findings = Findings::default();
    let settings = match Acceptor::new(context).judge(&cluster) {
        Ok(settings) => {
            findings.add(Finding::yes(ACCEPTED, "Valid", "the spec can be carried out"));
            add_finalizer(context, &cluster).await?;
            context.queue.add(Key::Fleet);
            Some(settings)
        }
        Err(refusal) => {
            findings.add(refusal);
            settings::recorded(context, &cluster, &tenant).await?
        }
    };
    let outcome = match &settings {
        Some(settings) => {
            let key = Key::Tenant {
                namespace: namespace.into(),
                name: name.into(),
            };
            provision::run(context, &memory, &cluster, &tenant, settings, &key, &mut findings).await
        }
        None => Ok(()),
    };
    if let Err(error) = &outcome {
        // What this process believes to have applied may be what is missing.
        memory.host.forget();
        findings.add(status::failed_step(&findings, error));
    }
    status::write(
        context,
        &cluster,
        &tenant,
        settings.as_ref(),
        &findings,
        Timestamp::now(),
    )
    .await?;
    let is_well = findings.first_missing().is_none_or(|missing| missing.kind == ACCEPTED);
    outcome.map(|()| Some(if is_well { RESYNC } else { RECHECK }))
}

/// Judges whether specs can be carried out with the pools and versions that there are now. Looks at the nodes once, for all
/// tenants that it is asked about.
pub struct Acceptor<'a> {
    context: &'a Context,
    offer: Offer,
    closed: OnceCell<Vec<IpNet>>,
}

impl<'a> Acceptor<'a> {
    /// For the host as it is now.
    pub fn new(context: &'a Context) -> Self {
        let nodes = context.stores.nodes.state();
        let totals = Selectors::of(context).totals(nodes.iter().map(|node| node.labels()));
        let pools = context.stores.pools.state().into_iter().map(|pool| {
            let total = totals.get(&pool.name_any()).copied().unwrap_or_default();
            (pool.name_any(), (pool.as_ref().clone(), total))
        });
        Self {
            offer: Offer {
                versions: context.runtime.versions(),
                pools: pools.collect(),
                uses_pods: context.runtime.uses_pods(),
            },
            closed: OnceCell::new(),
            context,
        }
    }

    /// Whether the spec can be carried out.
    pub fn accepts(&self, cluster: &TenantCluster) -> bool {
        self.judge(cluster).is_ok()
    }

    /// What the spec comes to, or the finding that says why it cannot be carried out.
    fn judge(&self, cluster: &TenantCluster) -> Result<Settings, Finding> {
        let closed: &[IpNet] = if cluster.spec.network.egress.is_some() {
            // Few tenants ask for anything.
            self.closed.get_or_init(|| {
                let nodes = self.context.stores.nodes.state();
                let blocked = &self.context.network_config.blocked;
                host_network::collect_host_network(nodes.iter().map(Arc::as_ref), [], Vec::new(), blocked).blocked
            })
        } else {
            &[]
        };
        let class = |name: &str| self.context.stores.classes.get(&ObjectRef::new(name));
        let settings = settings::resolve(cluster, class, closed)?;
        validate(&cluster.spec, settings.scheduling, &self.offer)?;
        Ok(settings)
    }
}

/// From here on the object cannot go before everything made for it is gone.
async fn add_finalizer(context: &Context, cluster: &TenantCluster) -> Result<(), ReconcileError> {
    if cluster
        .finalizers()
        .iter()
        .any(|finalizer| finalizer == labels::FINALIZER)
    {
        return Ok(());
    }
    let namespace = cluster.namespace().unwrap_or_default();
    let clusters: Api<TenantCluster> = Api::namespaced(context.client.clone(), &namespace);
    let mut finalizers = cluster.finalizers().to_vec();
    finalizers.push(labels::FINALIZER.into());
    // With the UID a namesake is not touched, with the resource version no other finalizer is lost.
    let body = json!({"metadata": {
        "uid": cluster.uid(), "resourceVersion": cluster.resource_version(), "finalizers": finalizers,
    }});
    clusters
        .patch(&cluster.name_any(), &PatchParams::default(), &Patch::Merge(&body))
        .await
        .map_err(api("add the finalizer"))?;
    Ok(())
}
