//! The status of a Service in the tenant.
//!
//! | field | rule |
//! |---|---|
//! | `loadBalancer` | the host's, of load balancers |
//! | condition `berth.dev/Synced` | False while something is denied, and the host has less of the Service or nothing; otherwise there is none |
//! | other conditions | the tenant's own controllers' |

use crate::{
    model::{DeniedField, Observation, TenantWrite, json},
    translation::{
        conditions::{self, SYNCED},
        fields::{self, FieldIssues, Fields, Rule},
    },
};
use jiff::Timestamp;
use serde_json::{Value, json};

const INGRESS: Fields = &[
    ("hostname", Rule::Copy),
    ("ip", Rule::Copy),
    ("ipMode", Rule::Copy),
    ("ports", Rule::Copy),
];

fn before(service: &Value) -> Value {
    service.get("status").cloned().unwrap_or_else(|| json!({}))
}

/// The status of a Service with denied fields.
pub fn denied_status(service: &Value, denied: &[DeniedField], now: Timestamp) -> Value {
    let mut status = before(service);
    let condition = conditions::synced(&status, denied, now);
    conditions::put(&mut status, condition);
    status
}

/// The status of a Service that is not on the host for another reason.
pub fn not_synced_status(service: &Value, reason: &str, message: &str, now: Timestamp) -> Value {
    let mut status = before(service);
    let condition = conditions::not_synced(&status, reason, message, now);
    conditions::put(&mut status, condition);
    status
}

/// What to write to the tenant.
pub fn sync_status(observation: &Observation<'_>) -> Vec<TenantWrite> {
    let Observation {
        tenant, host, denied, ..
    } = observation;
    let mut status = before(tenant);
    // When a Service ceases to be a load balancer, the tenant's API server clears its addresses itself.
    let is_load_balancer = json::text(tenant, &["spec", "type"]) == Some("LoadBalancer");
    if is_load_balancer {
        let ingress: Vec<Value> = json::items(host, &["status", "loadBalancer", "ingress"])
            .iter()
            .map(|ingress| fields::copy(ingress, "", INGRESS, &mut FieldIssues::default()).into())
            .collect();
        status["loadBalancer"] = if ingress.is_empty() {
            json!({})
        } else {
            json!({"ingress": ingress})
        };
    }
    let was_denied = conditions::condition(&status, SYNCED).is_some();
    if !denied.is_empty() {
        let condition = conditions::synced(&status, denied, observation.now);
        conditions::put(&mut status, condition);
    } else if was_denied {
        let mut others = json::items(&status, &["conditions"]).to_vec();
        others.retain(|condition| json::text(condition, &["type"]) != Some(SYNCED));
        status["conditions"] = others.into();
    }
    if is_load_balancer || !denied.is_empty() || was_denied {
        vec![TenantWrite::Status(status)]
    } else {
        Vec::new()
    }
}
