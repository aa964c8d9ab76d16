//! Promising free nodes to a tenant: all that a plan has for one of its groups, or none. Where the API server takes the record of
//! one and refuses that of another, the one is given back.

use super::{Pass, REFUSED_POLL, STALE_POLL, marks, marks::Marked, notes, pods::PodsOnNode};
use crate::{
    error::{ReconcileError, api},
    nodes::{
        is_available,
        record::{NodeRecord, State},
    },
};
use berth_planner::{Action, ActionKind};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use std::{collections::BTreeMap, time::Duration};

/// A node that the plan promises.
struct Promise<'a> {
    node: &'a str,
    of: u32,
    why: String,
}

/// Whether a node can be promised, looked at anew.
enum Look {
    Free(Box<Node>),
    /// It was ours already: promised to the same group, or further.
    Held,
    Taken,
}

/// What became of a promise.
enum Promised {
    /// The node is promised, as it is now. With its record, if it was free before.
    Yes(Box<Node>, Option<Box<NodeRecord>>),
    /// It changed meanwhile.
    Stale,
    /// The API server did not want the record.
    Refused,
}

/// Carries out all promises of a plan. Returns when to plan anew, if one was not possible any more.
pub(super) async fn all(pass: &mut Pass<'_>, actions: &[Action]) -> Result<Option<Duration>, ReconcileError> {
    let mut batches: BTreeMap<(&str, &str), Vec<Promise<'_>>> = BTreeMap::new();
    for action in actions {
        if let ActionKind::Reserve {
            tenant,
            node_group,
            required_nodes,
        } = &action.kind
        {
            batches.entry((tenant, node_group)).or_default().push(Promise {
                node: &action.node,
                of: *required_nodes,
                why: action.reason.to_string(),
            });
        }
    }
    let mut again = None;
    for ((tenant, group), promises) in batches {
        let of_batch = batch(pass, tenant, group, &promises).await?;
        again = [again, of_batch].into_iter().flatten().min();
    }
    Ok(again)
}

/// Promises nodes to one group. The plan was made on a view that may lag behind, even behind this control's own last
/// changes: all nodes are looked at anew before the first of them is promised.
async fn batch(
    pass: &mut Pass<'_>,
    tenant: &str,
    group: &str,
    promises: &[Promise<'_>],
) -> Result<Option<Duration>, ReconcileError> {
    let Some(slug) = pass.slug(tenant) else {
        return Ok(Some(STALE_POLL));
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
        return Ok(Some(STALE_POLL));
    }
    let promised = promises.iter().zip(looks).map(|(promise, look)| async {
        match look {
            Look::Free(node) => promise_one(pass, *node, promise, tenant, group).await,
            Look::Held => raise(pass, promise, tenant, group).await,
            Look::Taken => Ok(Promised::Stale),
        }
    });
    let promised: Vec<Promised> = try_join_all(promised).await?;
    let is_refused = promised.iter().any(|one| matches!(one, Promised::Refused));
    let mut again = is_refused.then_some(REFUSED_POLL);
    for one in promised {
        match one {
            Promised::Yes(node, Some(record)) if is_refused => {
                let why = "another node that was promised with it is refused";
                if let Some(free) = pass.free(&node, Some(&record), why).await? {
                    pass.saw(free);
                }
            }
            Promised::Yes(node, _) => pass.saw(*node),
            Promised::Stale => again = Some(STALE_POLL),
            Promised::Refused => {}
        }
    }
    Ok(again)
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
    if let Err(error) = pass.write(node, &record, &[]).await {
        refused(pass, node, error).await?;
    }
    Ok(Look::Taken)
}

/// Has a node rest whose record the API server did not want. Any other error is returned.
async fn refused(pass: &Pass<'_>, node: &Node, error: ReconcileError) -> Result<(), ReconcileError> {
    let Some(why) = error.refusal() else {
        return Err(error);
    };
    pass.context.refusals.note(&node.name_any(), why, pass.now.as_second());
    notes::refused(pass, node, why).await;
    Ok(())
}

/// Promises one node. A heartbeat may come in between: that is no reason to leave the tenant with a part of its nodes.
async fn promise_one(
    pass: &Pass<'_>,
    mut node: Node,
    promise: &Promise<'_>,
    tenant: &str,
    group: &str,
) -> Result<Promised, ReconcileError> {
    let nodes: Api<Node> = Api::all(pass.context.client.clone());
    loop {
        let pool = pass.pool_name(&node);
        let record = NodeRecord::reserved(tenant, group, &pool, promise.of, pass.now, &promise.why);
        match pass.write(&node, &record, &[]).await {
            Ok(Some(patched)) => return Ok(Promised::Yes(Box::new(patched), Some(Box::new(record)))),
            Ok(None) => {}
            Err(error) => {
                refused(pass, &node, error).await?;
                // It is as free as it was. Left there, the mark would have it cleaned.
                marks::remove(pass.context, promise.node).await?;
                return Ok(Promised::Refused);
            }
        }
        match nodes.get_opt(promise.node).await.map_err(api("look at a node"))? {
            Some(newer) if NodeRecord::read(&newer).is_none() && is_available(&newer) => node = newer,
            _ => return Ok(Promised::Stale),
        }
    }
}

/// Changes for how many fellows a reserved node waits.
async fn raise(pass: &Pass<'_>, promise: &Promise<'_>, tenant: &str, group: &str) -> Result<Promised, ReconcileError> {
    let nodes: Api<Node> = Api::all(pass.context.client.clone());
    let Some(node) = nodes.get_opt(promise.node).await.map_err(api("look at a node"))? else {
        return Ok(Promised::Stale);
    };
    match NodeRecord::read(&node) {
        Some(record) if record.state == State::Reserved && record.uid == tenant && record.group == group => {
            let record = NodeRecord {
                reserved_with: promise.of,
                reason: promise.why.clone(),
                ..record
            };
            match pass.write(&node, &record, &[]).await {
                Ok(Some(node)) => Ok(Promised::Yes(Box::new(node), None)),
                Ok(None) => Ok(Promised::Stale),
                Err(error) => refused(pass, &node, error).await.map(|()| Promised::Refused),
            }
        }
        _ => Ok(Promised::Yes(Box::new(node), None)),
    }
}
