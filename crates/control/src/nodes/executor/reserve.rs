//! Promising free nodes to a tenant: all that a plan has for one of its groups, or none.

use super::{Pass, marks, marks::Marked, notes, pods::PodsOnNode};
use crate::{
    error::{ReconcileError, api},
    nodes::{
        is_available,
        record::{NodeRecord, State},
    },
};
use berth_planner::{Action, Step};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use std::collections::BTreeMap;

/// A node that the plan promises.
struct Promise<'a> {
    node: &'a str,
    of: u32,
    why: &'a str,
}

/// Whether a node can be promised, looked at anew.
enum Look {
    Free(Box<Node>),
    /// It was ours already: promised to the same group, or further.
    Held,
    Taken,
}

/// Carries out all promises of a plan. `false`: one was not possible any more, so that the plan is void.
pub(super) async fn all(pass: &mut Pass<'_>, actions: &[Action]) -> Result<bool, ReconcileError> {
    let mut batches: BTreeMap<(&str, &str), Vec<Promise<'_>>> = BTreeMap::new();
    for action in actions {
        if let Step::Reserve { tenant, group, of } = &action.step {
            batches.entry((tenant, group)).or_default().push(Promise {
                node: &action.node,
                of: *of,
                why: &action.why,
            });
        }
    }
    let mut are_kept = true;
    for ((tenant, group), promises) in batches {
        are_kept &= batch(pass, tenant, group, &promises).await?;
    }
    Ok(are_kept)
}

/// Promises nodes to one group. The plan was made on a view that may lag behind, even behind this control's own last
/// changes: all nodes are looked at anew before the first of them is promised.
async fn batch(
    pass: &mut Pass<'_>,
    tenant: &str,
    group: &str,
    promises: &[Promise<'_>],
) -> Result<bool, ReconcileError> {
    let Some(slug) = pass.slug(tenant) else {
        return Ok(false);
    };
    let looks = promises
        .iter()
        .map(|promise| look(pass, promise.node, tenant, group, &slug));
    let looks = try_join_all(looks).await?;
    if looks.iter().any(|look| matches!(look, Look::Taken)) {
        // Those that were marked just now stay what they were: free.
        for look in &looks {
            if let Look::Free(node) = look {
                marks::remove(pass.context, &node.name_any()).await?;
            }
        }
        return Ok(false);
    }
    let patched = promises.iter().zip(looks).map(|(promise, look)| async {
        match look {
            Look::Free(node) => promise_one(pass, *node, promise, tenant, group).await,
            Look::Held => raise(pass, promise, tenant, group).await,
            Look::Taken => Ok(None),
        }
    });
    let patched: Vec<Option<Node>> = try_join_all(patched).await?;
    let mut all = true;
    for node in patched {
        match node {
            Some(node) => pass.saw(node),
            None => all = false,
        }
    }
    Ok(all)
}

/// Looks at a node as it is now, and marks it if it can be promised.
async fn look(pass: &Pass<'_>, name: &str, tenant: &str, group: &str, slug: &str) -> Result<Look, ReconcileError> {
    let nodes: Api<Node> = Api::all(pass.context.client.clone());
    let Some(node) = nodes.get_opt(name).await.map_err(api("look at a node"))? else {
        return Ok(Look::Taken);
    };
    if let Some(record) = NodeRecord::read(&node) {
        let is_same = record.state.is_coming() && record.uid == tenant && record.group == group;
        return Ok(if is_same { Look::Held } else { Look::Taken });
    }
    if !is_available(&node) {
        return Ok(Look::Taken);
    }
    let pods = PodsOnNode::list(pass.context, name).await?;
    if !pods.of_tenants.is_empty() {
        let reason = format!("its record was lost while pods were on it: {}", pods.names().join(", "));
        return lost(pass, &node, State::Draining, "", &reason).await;
    }
    match marks::set(pass.context, &node, slug).await? {
        Marked::Now | Marked::Again => Ok(Look::Free(Box::new(node))),
        Marked::Before(previous) => {
            let reason = "its record was lost before it was clean";
            lost(pass, &node, State::Scrubbing, &previous, reason).await
        }
    }
}

/// Gives a node that only seemed free the record that it lost, so that it is cleaned.
async fn lost(
    pass: &Pass<'_>,
    node: &Node,
    state: State,
    previous: &str,
    reason: &str,
) -> Result<Look, ReconcileError> {
    let pool = pass.pool_name(node);
    let unclean = NodeRecord::unclean(node, previous, &pool, pass.now, reason);
    let record = match state {
        State::Scrubbing => unclean,
        state => unclean.to(state, pass.now, reason),
    };
    pass.write(node, &record, &[]).await?;
    Ok(Look::Taken)
}

/// Promises one node, unless the API server does not want it. A heartbeat may come in between: that is no reason to leave the tenant with a part of its nodes.
async fn promise_one(
    pass: &Pass<'_>,
    mut node: Node,
    promise: &Promise<'_>,
    tenant: &str,
    group: &str,
) -> Result<Option<Node>, ReconcileError> {
    let nodes: Api<Node> = Api::all(pass.context.client.clone());
    loop {
        let pool = pass.pool_name(&node);
        let record = NodeRecord::reserved(tenant, group, &pool, promise.of, pass.now, promise.why);
        match pass.write(&node, &record, &[]).await {
            Ok(Some(patched)) => return Ok(Some(patched)),
            Ok(None) => {}
            Err(error) => {
                let Some(why) = error.refusal() else {
                    return Err(error);
                };
                // The next plan has another node in its place.
                pass.context.refusals.note(promise.node, why, pass.now.as_second());
                notes::refused(pass, &node, why).await;
                return Ok(None);
            }
        }
        match nodes.get_opt(promise.node).await.map_err(api("look at a node"))? {
            Some(newer) if NodeRecord::read(&newer).is_none() && is_available(&newer) => node = newer,
            _ => return Ok(None),
        }
    }
}

/// Changes for how many fellows a reserved node waits.
async fn raise(
    pass: &Pass<'_>,
    promise: &Promise<'_>,
    tenant: &str,
    group: &str,
) -> Result<Option<Node>, ReconcileError> {
    let nodes: Api<Node> = Api::all(pass.context.client.clone());
    let Some(node) = nodes.get_opt(promise.node).await.map_err(api("look at a node"))? else {
        return Ok(None);
    };
    match NodeRecord::read(&node) {
        Some(record) if record.state == State::Reserved && record.uid == tenant && record.group == group => {
            let record = NodeRecord {
                reserved_with: promise.of,
                reason: promise.why.to_owned(),
                ..record
            };
            pass.write(&node, &record, &[]).await
        }
        _ => Ok(Some(node)),
    }
}
