//! Reservations: for each node group of a tenant all free nodes that a plan has for it, or none. If the API server accepts
//! the assignment of one node and rejects that of another, the first is freed again.

use super::{Pass, RETRY_PAUSE, STALE_POLL, events, failures::StepFailures};
use crate::{
    controllers::{
        in_use_markers::{self, MarkedMachines, Marker, MarkerVersion, PreviousUse, Use},
        pods_on_node::PodsOnNode,
    },
    error::ReconcileError,
};
use berth_node_lifecycle::{
    Assignment, AssignmentState, is_assignable, platform_pods::describe_use, transitions::reason_after_sharing,
};
use berth_planner::{Action, ActionKind};
use futures::{StreamExt, future::join_all, stream};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// How many nodes are read, or checked, at once. A check reads the pods of a node, and reads and writes its in-use marker.
const CONCURRENCY: usize = 8;

/// The node group of a tenant that nodes are reserved for.
struct NodeGroup<'a> {
    /// UID of the tenant.
    tenant: &'a str,
    name: &'a str,
}

/// A node that the plan reserves.
struct Reservation<'a> {
    node: &'a str,
    /// How many nodes the group must have before this one joins.
    required_nodes: u32,
    reason: String,
}

/// Whether a node can be reserved, as the API server has it now.
enum Candidate {
    /// It is free, and has an in-use marker, which is known if it was created for this reservation.
    Free(Box<Node>, Option<MarkerVersion>),
    /// It is reserved for the same group already, or is joining it.
    ReservedAlready,
    Unavailable,
}

enum Outcome {
    /// The reserved node, and its assignment if it was free before.
    Reserved(Box<Node>, Option<Box<Assignment>>),
    /// The node changed meanwhile.
    Stale,
    /// The API server rejected the assignment.
    Rejected,
}

/// Nodes by name, as they were read for the reservations of a pass.
type ReadNodes<'a> = BTreeMap<&'a str, Node>;

/// Makes all reservations of a plan. Returns when to plan again, if one was no longer possible.
pub(super) async fn reserve_nodes(
    pass: &mut Pass<'_>,
    actions: &[Action],
    failures: &mut StepFailures,
) -> Option<Duration> {
    let mut by_group: BTreeMap<(&str, &str), Vec<Reservation<'_>>> = BTreeMap::new();
    for action in actions {
        if let ActionKind::Reserve {
            tenant,
            node_group,
            required_nodes,
        } = &action.kind
        {
            by_group.entry((tenant, node_group)).or_default().push(Reservation {
                node: &action.node,
                required_nodes: *required_nodes,
                reason: action.reason.to_string(),
            });
        }
    }
    let names = by_group.values().flatten().map(|reservation| reservation.node);
    let mut nodes = read_nodes(pass, names.collect(), failures).await;
    // Later than all nodes were read, as it must be.
    let marked = MarkedMachines::default();
    let mut again = None;
    for ((tenant, name), reservations) in by_group {
        if failures.is_exhausted() {
            break;
        }
        let group = NodeGroup { tenant, name };
        let of_group = reserve_for_group(pass, &group, &reservations, &mut nodes, &marked, failures).await;
        again = [again, of_group].into_iter().flatten().min();
    }
    again
}

/// Reads the nodes of all reservations. The plan was made on a view that may lag behind, even behind this control's own last
/// changes.
async fn read_nodes<'a>(pass: &Pass<'_>, names: BTreeSet<&'a str>, failures: &mut StepFailures) -> ReadNodes<'a> {
    let reads: Vec<_> = { names.into_iter() }
        .map(|name| async move { (name, pass.get_node(name).await) })
        .collect();
    let mut reads = stream::iter(reads).buffer_unordered(CONCURRENCY);
    let mut nodes = ReadNodes::new();
    while let Some((name, read)) = reads.next().await {
        match read {
            Ok(node) => nodes.extend(node.map(|node| (name, node))),
            Err(error) => failures.record("read a free node", name, error),
        }
        if failures.is_exhausted() {
            break;
        }
    }
    nodes
}

/// Reserves nodes for one group. All are checked before the first of them is reserved.
async fn reserve_for_group<'a>(
    pass: &mut Pass<'_>,
    group: &NodeGroup<'_>,
    reservations: &[Reservation<'a>],
    nodes: &mut ReadNodes<'a>,
    marked: &MarkedMachines,
    failures: &mut StepFailures,
) -> Option<Duration> {
    let Some(slug) = pass.tenant_slug(group.tenant) else {
        return Some(STALE_POLL);
    };
    let view = &*pass;
    let candidates: Vec<_> = reservations
        .iter()
        .map(|reservation| {
            // A plan reserves a node once.
            let node = nodes.remove(reservation.node);
            let slug = &slug;
            async move {
                match node {
                    Some(node) => check_candidate(view, node, group, slug, marked).await,
                    None => Ok(Candidate::Unavailable),
                }
            }
        })
        .collect();
    let candidates: Vec<_> = stream::iter(candidates).buffered(CONCURRENCY).collect().await;
    let mut checked = Vec::new();
    for (reservation, candidate) in reservations.iter().zip(candidates) {
        checked.push(candidate.unwrap_or_else(|error| {
            failures.record("check a free node", reservation.node, error);
            Candidate::Unavailable
        }));
    }
    if checked
        .iter()
        .any(|candidate| matches!(candidate, Candidate::Unavailable))
    {
        // Nodes whose markers were just created stay free.
        for candidate in &checked {
            if let Candidate::Free(node, Some(created)) = candidate
                && let Err(error) = in_use_markers::delete(&pass.client, created).await
            {
                failures.record("delete an in-use marker", &node.name_any(), error);
            }
        }
        return Some(STALE_POLL);
    }
    let outcomes = reservations.iter().zip(checked).map(|(reservation, candidate)| async {
        match candidate {
            Candidate::Free(node, created) => reserve_node(pass, *node, created, reservation, group).await,
            Candidate::ReservedAlready => update_required_nodes(pass, reservation, group).await,
            Candidate::Unavailable => Ok(Outcome::Stale),
        }
    });
    let outcomes = join_all(outcomes).await;
    keep_all_or_none(pass, reservations, outcomes, failures).await
}

/// Frees nodes that were reserved together with a node whose assignment was rejected.
async fn keep_all_or_none(
    pass: &mut Pass<'_>,
    reservations: &[Reservation<'_>],
    outcomes: Vec<Result<Outcome, ReconcileError>>,
    failures: &mut StepFailures,
) -> Option<Duration> {
    let is_rejected = outcomes.iter().any(|outcome| matches!(outcome, Ok(Outcome::Rejected)));
    let mut again = is_rejected.then_some(RETRY_PAUSE);
    for (reservation, outcome) in reservations.iter().zip(outcomes) {
        match outcome {
            Ok(Outcome::Reserved(node, Some(assignment))) if is_rejected => {
                let why = "the assignment of another node of the same reservation was rejected";
                match pass.free_node(&node, Some(&assignment), why, None).await {
                    Ok(Some(free)) => pass.update_view(free),
                    Ok(None) => {}
                    Err(error) => failures.record("give a reserved node back", reservation.node, error),
                }
            }
            Ok(Outcome::Reserved(node, _)) => pass.update_view(*node),
            Ok(Outcome::Stale) => again = Some(STALE_POLL),
            Ok(Outcome::Rejected) => {}
            Err(error) => failures.record("reserve a node", reservation.node, error),
        }
    }
    again
}

/// Checks a node as it was read, and creates its in-use marker if it can be reserved.
async fn check_candidate(
    pass: &Pass<'_>,
    node: Node,
    group: &NodeGroup<'_>,
    slug: &str,
    marked: &MarkedMachines,
) -> Result<Candidate, ReconcileError> {
    if let Some(assignment) = Assignment::read(&node) {
        let is_same = assignment.state.is_pending() && assignment.uid == group.tenant && assignment.group == group.name;
        return Ok(if is_same {
            Candidate::ReservedAlready
        } else {
            Candidate::Unavailable
        });
    }
    if !is_assignable(&node) || pass.devices.exceed_limits(&node.name_any()) {
        return Ok(Candidate::Unavailable);
    }
    let pods = PodsOnNode::list(&pass.client, &node.name_any()).await;
    let pods = pods.inspect_err(|error| {
        // People must resolve it: meanwhile the group gets other nodes.
        if let ReconcileError::Blocked { message, .. } = error {
            pass.rejected_nodes.add(&node.name_any(), message, pass.now.as_second());
        }
    })?;
    if !pods.of_tenants.is_empty() {
        let reason = format!(
            "its assignment was lost while pods were on it: {}",
            pods.names().join(", ")
        );
        return restore_lost_assignment(pass, &node, AssignmentState::Draining, "", &reason).await;
    }
    if let Some(why) = describe_use(&pods.in_the_way) {
        // They came after the plan was made, or the watch does not take them for the platform's: they say that a syncer made them.
        pass.rejected_nodes.add(&node.name_any(), &why, pass.now.as_second());
        return Ok(Candidate::Unavailable);
    }
    let (previous, reason) = match in_use_markers::mark(&pass.client, &node, Use::Tenant(slug), marked).await? {
        Marker::Created(created) => return Ok(Candidate::Free(Box::new(node), Some(created))),
        Marker::Existing => return Ok(Candidate::Free(Box::new(node), None)),
        Marker::Contended => return Ok(Candidate::Unavailable),
        Marker::OfPreviousUse(PreviousUse::Tenant(previous)) => {
            (previous, "its assignment was lost before it was clean".to_owned())
        }
        Marker::OfPreviousUse(PreviousUse::Shared(pool)) => (String::new(), reason_after_sharing(&pool)),
    };
    restore_lost_assignment(pass, &node, AssignmentState::Scrubbing, &previous, &reason).await
}

/// Gives a node that only seemed free the assignment that it lost, so that it is scrubbed.
async fn restore_lost_assignment(
    pass: &Pass<'_>,
    node: &Node,
    state: AssignmentState,
    previous: &str,
    reason: &str,
) -> Result<Candidate, ReconcileError> {
    let pool = pass.pool_name(node);
    let scrubbing = Assignment::scrub_unowned(node, previous, &pool, pass.now, reason);
    let assignment = match state {
        AssignmentState::Scrubbing => scrubbing,
        state => scrubbing.with_state(state, pass.now, reason),
    };
    if let Err(error) = pass.write_assignment(node, &assignment, &[]).await {
        pause_rejected_node(pass, node, error).await?;
    }
    Ok(Candidate::Unavailable)
}

/// Keeps a node whose assignment the API server rejected from being reserved for a while. Any other error is returned.
async fn pause_rejected_node(pass: &Pass<'_>, node: &Node, error: ReconcileError) -> Result<(), ReconcileError> {
    let Some(why) = error.refusal() else {
        return Err(error);
    };
    pass.rejected_nodes.add(&node.name_any(), why, pass.now.as_second());
    events::publish_reservation_rejected(pass, node, why).await;
    Ok(())
}

/// Reserves one node. A heartbeat may come in between: that is no reason to leave the tenant with a part of its nodes.
async fn reserve_node(
    pass: &Pass<'_>,
    mut node: Node,
    created: Option<MarkerVersion>,
    reservation: &Reservation<'_>,
    group: &NodeGroup<'_>,
) -> Result<Outcome, ReconcileError> {
    loop {
        let pool = pass.pool_name(&node);
        let assignment = Assignment::reserved(
            group.tenant,
            group.name,
            &pool,
            reservation.required_nodes,
            pass.now,
            &reservation.reason,
        );
        match pass.write_assignment(&node, &assignment, &[]).await {
            Ok(Some(patched)) => return Ok(Outcome::Reserved(Box::new(patched), Some(Box::new(assignment)))),
            Ok(None) => {}
            Err(error) => {
                pause_rejected_node(pass, &node, error).await?;
                delete_created_marker(pass, created.as_ref()).await?;
                return Ok(Outcome::Rejected);
            }
        }
        match pass.get_node(reservation.node).await? {
            Some(newer) if Assignment::read(&newer).is_some() => return Ok(Outcome::Stale),
            // Nobody knows what another machine was used for, or this one until it comes back: the marker stays.
            None => return Ok(Outcome::Stale),
            Some(newer) if !in_use_markers::is_same_machine(&node, &newer) => return Ok(Outcome::Stale),
            Some(newer) if is_assignable(&newer) => node = newer,
            Some(_) => {
                delete_created_marker(pass, created.as_ref()).await?;
                return Ok(Outcome::Stale);
            }
        }
    }
}

/// Deletes the marker of a node that is still free. With it left, the node would be scrubbed.
async fn delete_created_marker(pass: &Pass<'_>, created: Option<&MarkerVersion>) -> Result<(), ReconcileError> {
    match created {
        Some(created) => in_use_markers::delete(&pass.client, created).await,
        None => Ok(()),
    }
}

/// Changes how many nodes its group must have before a reserved node joins.
async fn update_required_nodes(
    pass: &Pass<'_>,
    reservation: &Reservation<'_>,
    group: &NodeGroup<'_>,
) -> Result<Outcome, ReconcileError> {
    let Some(node) = pass.get_node(reservation.node).await? else {
        return Ok(Outcome::Stale);
    };
    let reserved = Assignment::read(&node).filter(|assignment| {
        assignment.state == AssignmentState::Reserved
            && assignment.uid == group.tenant
            && assignment.group == group.name
    });
    let Some(assignment) = reserved else {
        return Ok(Outcome::Reserved(Box::new(node), None));
    };
    let assignment = Assignment {
        reserved_with: reservation.required_nodes,
        reason: reservation.reason.clone(),
        ..assignment
    };
    match pass.write_assignment(&node, &assignment, &[]).await {
        Ok(Some(node)) => Ok(Outcome::Reserved(Box::new(node), None)),
        Ok(None) => Ok(Outcome::Stale),
        Err(error) => pause_rejected_node(pass, &node, error)
            .await
            .map(|()| Outcome::Rejected),
    }
}
