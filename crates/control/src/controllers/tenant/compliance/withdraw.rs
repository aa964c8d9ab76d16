//! What is withdrawn from the settings of a tenant when a grace period is over.

use super::{super::settings::Settings, Withdrawal};
use crate::{authentication::ResolvedAuthentication, network};
use berth_api::{ControlPlaneServiceType, TenantClassSpec};

/// Withdraws from the settings what is no longer allowed and whose grace period is over. `rules` are those of the class.
pub(in super::super) fn withdraw(settings: &mut Settings, rules: Option<&TenantClassSpec>, withdrawals: &[Withdrawal]) {
    for withdrawal in withdrawals {
        match withdrawal {
            Withdrawal::AllNodes => settings.sync.shared_nodes.pools.clear(),
            Withdrawal::SharedPool(pool) => settings.sync.shared_nodes.pools.retain(|shared| shared != pool),
            Withdrawal::Networks => {
                if let Some(rules) = rules {
                    settings.network = network::restrict_to_class(&settings.network, &rules.network).0;
                }
            }
            Withdrawal::Service => {
                if let Some(rules) = rules {
                    withdraw_service(settings, rules);
                }
            }
            Withdrawal::Issuers => {
                if let Some(rules) = rules {
                    settings.authentication = ResolvedAuthentication::of_class(&rules.authentication);
                }
            }
            Withdrawal::ArgoCd => settings.argo_cd = None,
            Withdrawal::Storage(offer) => {
                settings.withdrawn_storage.insert(offer.clone());
            }
            Withdrawal::Nothing | Withdrawal::OwnNodes => {}
        }
    }
}

/// Gives the API server a Service that the class allows: of type ClusterIP if possible.
fn withdraw_service(settings: &mut Settings, rules: &TenantClassSpec) {
    let rules = &rules.control_plane.service;
    let endpoint = &mut settings.endpoint;
    if !rules.types.is_empty() && !rules.types.contains(&endpoint.kind) {
        let first = rules.types.iter().copied().min();
        endpoint.kind = first.unwrap_or(ControlPlaneServiceType::ClusterIp);
    }
    let may_have_annotations = endpoint.kind == ControlPlaneServiceType::LoadBalancer;
    endpoint
        .annotations
        .retain(|key, _| may_have_annotations && rules.annotations.contains(key));
}
