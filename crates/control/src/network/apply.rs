//! Reading what the host says about its network, and making policies what they should be.

use super::{
    HostFacts, Isolation,
    deny::{self, Generation},
    facts, policies,
};
use crate::{
    apply::{ApplyError, is_status, optional},
    context::Context,
    controllers::tenant::{HostRanges, TenantMemory},
    error::{ReconcileError, api},
};
use berth_api::{labels, names::TenantId};
use ipnet::IpNet;
use k8s_openapi::api::{discovery::v1::EndpointSlice, networking::v1::NetworkPolicy};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, PostParams, Preconditions},
    runtime::reflector::ObjectRef,
};
use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Age after which the host is asked again which policies it serves.
const REFRESH: Duration = Duration::from_secs(60);

/// What flags say about the host's network.
#[derive(Clone, Debug, Default)]
pub struct NetworkConfig {
    /// Ranges that are never opened to a tenant, besides those that the host's API tells of.
    pub blocked: Vec<IpNet>,
}

/// What is known of the administrators' tier of the host.
#[derive(Debug, Default)]
pub struct Served(Mutex<Option<(Instant, Tier)>>);

#[derive(Clone, Copy, Debug)]
struct Tier {
    generation: Option<Generation>,
    /// Whether its rules can be about ranges of addresses.
    networks: bool,
}

impl Served {
    fn recall(&self) -> Option<Tier> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.filter(|(until, _)| Instant::now() < *until).map(|(_, tier)| tier)
    }

    fn remember(&self, tier: Tier) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Some((Instant::now() + REFRESH, tier));
    }
}

/// Puts together what the host says about its network.
///
/// # Errors
/// The host refuses or does not answer.
pub async fn host_facts(context: &Context, ranges: &HostRanges) -> Result<HostFacts, ReconcileError> {
    let slices: Api<EndpointSlice> = Api::namespaced(context.client.clone(), "default");
    let params = ListParams::default().labels("kubernetes.io/service-name=kubernetes");
    let slices = slices.list(&params).await.map_err(api("find the host's API servers"))?;
    let mut servers = facts::api_servers(&slices.items);
    servers.extend(named(&context.host.server));
    servers.sort();
    servers.dedup();
    let nodes = context.stores.nodes.state();
    let nodes = nodes.iter().map(Arc::as_ref);
    Ok(facts::gather(nodes, ranges.all(), servers, &context.network.blocked))
}

/// The address in a URL, if it is one.
fn named(url: &str) -> Option<SocketAddr> {
    let uri: http::Uri = url.parse().ok()?;
    let address: IpAddr = uri.host()?.trim_matches(['[', ']']).parse().ok()?;
    Some(SocketAddr::new(address, uri.port_u16().unwrap_or(443)))
}

/// Makes the policies of a tenant what they should be, and removes those that control made earlier and that are no longer
/// wanted.
///
/// # Errors
/// The host refuses or does not answer.
pub async fn ensure(context: &Context, memory: &TenantMemory, isolation: &Isolation<'_>) -> Result<(), ReconcileError> {
    let wanted = policies(isolation);
    for policy in &wanted {
        let reference = ObjectRef::from_obj(policy);
        match context.stores.network_policies.get(&reference) {
            Some(known) if is_as(&known, policy) => {}
            // What somebody added would outlast an apply: fields of others stay.
            Some(known) => replace(context, &known, policy).await?,
            None => memory.host.apply_again(policy).await?,
        }
    }
    apply_deny(context, memory, isolation).await?;
    let namespaces = [
        isolation.tenant.workload_namespace(),
        isolation.tenant.control_plane_namespace(),
    ];
    let names: BTreeSet<_> = wanted
        .iter()
        .map(|policy| (policy.namespace(), policy.name_any()))
        .collect();
    for known in context.stores.network_policies.state() {
        let place = (known.namespace(), known.name_any());
        if namespaces.iter().any(|namespace| place.0.as_ref() == Some(namespace)) && !names.contains(&place) {
            delete(context, &known).await?;
        }
    }
    Ok(())
}

/// Whether an object is as wanted, whatever else there is on it.
fn is_as(known: &NetworkPolicy, wanted: &NetworkPolicy) -> bool {
    let has = |(key, value): (&String, &String)| known.labels().get(key) == Some(value);
    known.spec == wanted.spec && wanted.labels().iter().all(has)
}

async fn replace(context: &Context, known: &NetworkPolicy, wanted: &NetworkPolicy) -> Result<(), ReconcileError> {
    let namespace = wanted.namespace().unwrap_or_default();
    let policies: Api<NetworkPolicy> = Api::namespaced(context.client.clone(), &namespace);
    let params = PostParams {
        field_manager: Some(labels::CONTROL_MANAGER.into()),
        ..PostParams::default()
    };
    let mut policy = wanted.clone();
    policy.metadata.uid = known.uid();
    policy.metadata.resource_version = known.resource_version();
    let replaced = policies.replace(&wanted.name_any(), &params, &policy).await;
    replaced.map_err(api("mend a NetworkPolicy"))?;
    Ok(())
}

async fn delete(context: &Context, policy: &NetworkPolicy) -> Result<(), ReconcileError> {
    let namespace = policy.namespace().unwrap_or_default();
    let policies: Api<NetworkPolicy> = Api::namespaced(context.client.clone(), &namespace);
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: policy.uid(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match policies.delete(&policy.name_any(), &params).await {
        Err(error) if !is_status(&error, 404) && !is_status(&error, 409) => Err(api("delete a NetworkPolicy")(error)),
        _ => Ok(()),
    }
}

async fn apply_deny(context: &Context, memory: &TenantMemory, isolation: &Isolation<'_>) -> Result<(), ReconcileError> {
    let tier = tier(context).await?;
    let Some(generation) = tier.generation else {
        return Ok(());
    };
    let resource = generation.resource();
    let policy = deny::policy(isolation, generation, tier.networks);
    match memory.host.apply_dynamic(&resource, &policy).await {
        // A definition without ranges of addresses: what is left is kept by the wall for NetworkPolicies.
        Err(ApplyError { source, object }) if tier.networks && is_invalid(&source) => {
            tracing::warn!(object, error = %source, "the host's administrators' policies cannot be about addresses");
            context.served.remember(Tier {
                networks: false,
                ..tier
            });
            let policy = deny::policy(isolation, generation, false);
            Ok(memory.host.apply_dynamic(&resource, &policy).await?)
        }
        other => Ok(other?),
    }
}

fn is_invalid(error: &kube::Error) -> bool {
    is_status(error, 422) || is_status(error, 400)
}

/// What the host serves, as it said not long ago.
async fn tier(context: &Context) -> Result<Tier, ReconcileError> {
    if let Some(tier) = context.served.recall() {
        return Ok(tier);
    }
    let mut found = None;
    for generation in Generation::ALL {
        let (version, plural) = generation.served_as();
        let served = match context.client.list_api_group_resources(&version).await {
            Ok(list) => list.resources.iter().any(|resource| resource.name == plural),
            Err(kube::Error::Api(status)) if status.code == 404 => false,
            Err(error) => return Err(api("ask which policies the host serves")(error)),
        };
        if served {
            found = Some(generation);
            break;
        }
    }
    let tier = Tier {
        generation: found,
        networks: true,
    };
    context.served.remember(tier);
    Ok(tier)
}

/// Removes what of a tenant's policies is in no namespace. The others go with their namespaces.
///
/// # Errors
/// The host refuses or does not answer.
pub async fn remove(context: &Context, tenant: &TenantId) -> Result<(), ReconcileError> {
    for generation in Generation::ALL {
        let policies: Api<DynamicObject> = Api::all_with(context.client.clone(), &generation.resource());
        optional(policies.delete(&deny::name(tenant), &DeleteParams::default()).await)
            .map_err(api("delete a tenant's policy"))?;
    }
    Ok(())
}
