//! Advances every node that has an assignment, as far as possible in one pass.

use super::{Pass, RETRY_PAUSE, failures::StepFailures, jobs, risks, unused_claims};
use crate::{
    controllers::{
        in_use_markers::{self, Use},
        nodes::jobs::OnNode,
        pods_on_node::{DeletionLimits, PodsOnNode},
    },
    error::{ReconcileError, api},
};
use berth_api::labels;
use berth_node_lifecycle::{
    Assignment, AssignmentState,
    node::was_shared,
    nvidia_labels,
    transitions::{
        JobKind, JobState, Observation, Tenant, Transition, list_client_images, list_paused_pods, next_transition,
        next_transition_after_sharing,
    },
};
use berth_runtime::watched::{Watched, for_each};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// How many nodes are advanced at once.
const CONCURRENCY: usize = 16;
/// Transitions of one node in one pass at most.
const MAX_TRANSITIONS: usize = 8;
/// Pause before checking again what no watch reports.
const POLL: Duration = Duration::from_secs(1);

/// How many nodes each group has that are reserved, being prepared or in use, by (tenant UID, group).
type GroupSizes = BTreeMap<(String, String), u32>;

/// Advances all nodes. Returns when to check again, if something is in progress.
pub(super) async fn advance_nodes(pass: &mut Pass<'_>, failures: &mut StepFailures) -> Option<Duration> {
    if failures.is_exhausted() {
        return None;
    }
    let sizes = complete_group_sizes(pass, failures).await;
    let moving: Vec<Arc<Node>> = pass
        .nodes
        .values()
        .filter(|node| Assignment::read(node).is_some() || was_shared(node) || nvidia_labels::is_changed(node))
        .cloned()
        .collect();
    let (shared_pass, sizes) = (&*pass, &sizes);
    let advanced: Vec<Result<Advanced, ReconcileError>> =
        stream::iter(moving.into_iter().map(|node| advance_node(shared_pass, sizes, node)))
            .buffer_unordered(CONCURRENCY)
            .collect()
            .await;
    let mut soonest: Option<Duration> = None;
    for outcome in advanced {
        let Advanced { node, again } = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                // What cannot be done on one node must not hold up the others. It may fail until people do something about it, and each try is a plan of all nodes.
                tracing::warn!(%error, retry_in = ?RETRY_PAUSE, "cannot advance a node");
                soonest = [soonest, Some(RETRY_PAUSE)].into_iter().flatten().min();
                continue;
            }
        };
        soonest = [soonest, again].into_iter().flatten().min();
        if let Some(node) = node {
            pass.update_view(node);
        }
    }
    soonest
}

/// Counts the nodes of groups whose reserved nodes wait for each other. If the view has enough of them, they are counted
/// again at the API server: a node that was released meanwhile must not be counted.
async fn complete_group_sizes(pass: &Pass<'_>, failures: &mut StepFailures) -> GroupSizes {
    let seen = group_sizes(pass.nodes.values().filter_map(|node| Assignment::read(node)));
    let waiting: BTreeSet<(String, String)> = pass
        .nodes
        .values()
        .filter_map(|node| Assignment::read(node))
        .filter(|assignment| assignment.state == AssignmentState::Reserved)
        .filter_map(|assignment| {
            let group = (assignment.uid, assignment.group);
            (seen.get(&group).copied().unwrap_or_default() >= assignment.reserved_with).then_some(group)
        })
        .collect();
    let mut sizes = GroupSizes::new();
    for group in waiting {
        if failures.is_exhausted() {
            break;
        }
        let params = ListParams::default().labels(&format!("{}={}", labels::NODE_GROUP, group.1));
        let nodes: Api<Watched<Node>> = Api::all(pass.client.clone());
        let mut listed = Vec::new();
        let assignment_of = |node: Watched<Node>| node.readable().as_ref().and_then(Assignment::read);
        match for_each(&nodes, params, |node| listed.extend(assignment_of(node))).await {
            Ok(()) => {
                let size = group_sizes(listed).get(&group).copied().unwrap_or_default();
                sizes.insert(group, size);
            }
            Err(error) => failures.record("count a node group", &group.1, api("list the nodes of a group")(error)),
        }
    }
    sizes
}

fn group_sizes(assignments: impl IntoIterator<Item = Assignment>) -> GroupSizes {
    let mut sizes = GroupSizes::new();
    for assignment in assignments {
        if assignment.state.is_pending() || assignment.state == AssignmentState::Assigned {
            *sizes.entry((assignment.uid, assignment.group)).or_default() += 1;
        }
    }
    sizes
}

struct Advanced {
    /// The node after the last change, if there was one.
    node: Option<Node>,
    /// When to check again.
    again: Option<Duration>,
}

/// Advances one node.
async fn advance_node(pass: &Pass<'_>, sizes: &GroupSizes, start: Arc<Node>) -> Result<Advanced, ReconcileError> {
    let mut node = start;
    let mut changed = false;
    let mut again = None;
    for _ in 0..MAX_TRANSITIONS {
        let applied = match Assignment::read(&node) {
            Some(assignment) => apply_next_transition(pass, sizes, &node, &assignment).await?,
            None => match find_restored_labels(pass, &node) {
                Some(metadata) => Applied::of_patch(pass.restore_labels(&node, metadata).await?),
                None if was_shared(&node) => scrub_formerly_shared_node(pass, &node).await?,
                None => break,
            },
        };
        match applied {
            Applied::Changed(newer) => {
                node = Arc::from(newer);
                changed = true;
            }
            Applied::Waits(pause) => {
                again = pause;
                break;
            }
        }
    }
    Ok(Advanced {
        node: changed.then(|| Arc::unwrap_or_clone(node)),
        again,
    })
}

/// The metadata with which a free node gets back the labels of NVIDIA's software that it had. None if several pools select it: its labels are about to be
/// corrected.
fn find_restored_labels(pass: &Pass<'_>, node: &Node) -> Option<Value> {
    let spec = match pass.pools.pool_of(node.labels()) {
        Ok(Some(pool)) => Some(pass.pool_specs.get(pool)?),
        Ok(None) => None,
        Err(_) => return None,
    };
    nvidia_labels::restored_metadata(node, spec)
}

enum Applied {
    Changed(Box<Node>),
    /// Nothing changed; when to check again.
    Waits(Option<Duration>),
}

impl Applied {
    /// A node that changed meanwhile is checked again when the watch brings it, and soon in any case.
    fn of_patch(patched: Option<Node>) -> Self {
        patched.map_or(Self::Waits(Some(POLL)), |node| Self::Changed(Box::new(node)))
    }
}

/// Scrubs a node that several tenants shared and that is now in a pool of single tenants.
async fn scrub_formerly_shared_node(pass: &Pass<'_>, node: &Node) -> Result<Applied, ReconcileError> {
    let name = node.name_any();
    let pool = pass.pool_name(node);
    let Some(spec) = pass.pool_specs.get(&pool).filter(|spec| !spec.is_shared()) else {
        // No tenant can have it alone.
        return Ok(Applied::Waits(None));
    };
    let pods = PodsOnNode::list(&pass.client, &name).await?.names();
    let patched = match next_transition_after_sharing(pass.now, node, (&pool, spec), &pods) {
        Transition::SetAssignment(assignment, more_labels) => {
            in_use_markers::ensure(&pass.client, node, Use::Tenant("")).await?;
            pass.write_assignment(node, &assignment, &more_labels).await?
        }
        Transition::Free(why) => pass.free_node(node, None, &why, None).await?,
        _ => None,
    };
    Ok(Applied::of_patch(patched))
}

/// Observes what the next transition of a node depends on, and applies it.
async fn apply_next_transition(
    pass: &Pass<'_>,
    sizes: &GroupSizes,
    node: &Node,
    assignment: &Assignment,
) -> Result<Applied, ReconcileError> {
    let name = node.name_any();
    let tenant = match pass.tenant_slug(&assignment.uid) {
        Some(slug) => Tenant::Alive(slug),
        None if pass.is_tenant_gone(&assignment.uid).await? => Tenant::Gone,
        // The view lags: the watch will bring the tenant.
        None => return Ok(Applied::Waits(Some(POLL))),
    };
    let pool = pass.pool_spec(node, assignment);
    let group = (assignment.uid.clone(), assignment.group.clone());
    let is_group_complete = sizes.get(&group).is_some_and(|size| *size >= assignment.reserved_with);
    let depends_on_pods = match assignment.state {
        AssignmentState::Reserved => is_group_complete,
        AssignmentState::Assigned | AssignmentState::Cordoned | AssignmentState::Quarantined => false,
        AssignmentState::Joining
        | AssignmentState::Draining
        | AssignmentState::Scrubbing
        | AssignmentState::Validating => true,
    };
    let pods = if depends_on_pods {
        Some(PodsOnNode::list(&pass.client, &name).await?)
    } else {
        None
    };
    let evicted_pods = match &pods {
        Some(pods) if assignment.state.is_pending() => pods.evicted_names(assignment.since),
        _ => Vec::new(),
    };
    let pod_names = pods.as_ref().map(PodsOnNode::names).unwrap_or_default();
    let held_pods = pods.as_ref().map(|pods| pods.held_names(pass.now)).unwrap_or_default();
    let (gpu_clients, client_images) = match &pods {
        Some(pods) if assignment.state == AssignmentState::Scrubbing => (
            list_paused_pods(node, assignment, &pods.of_daemon_sets),
            list_client_images(node, &pool, &pods.of_daemon_sets),
        ),
        _ => (Vec::new(), BTreeSet::new()),
    };
    let claims = if assignment.state == AssignmentState::Validating {
        pass.devices.find_claims_of_tenants(&name)
    } else {
        Vec::new()
    };
    if pod_names.is_empty() && !claims.is_empty() && has_assignment(pass, &name, assignment).await? {
        unused_claims::delete_unused(&pass.client, &name, &claims).await;
    }
    let job = match assignment.state {
        AssignmentState::Scrubbing => jobs::get_job_state(&pass.client, JobKind::Scrub, &name, assignment).await?,
        AssignmentState::Validating => jobs::get_job_state(&pass.client, JobKind::Validate, &name, assignment).await?,
        _ => JobState::Missing,
    };
    let observation = Observation {
        now: pass.now,
        node,
        assignment,
        pool: &pool,
        tenant,
        is_group_complete,
        evicted_pods: &evicted_pods,
        pods: &pod_names,
        held_pods: &held_pods,
        gpu_clients: &gpu_clients,
        client_images: &client_images,
        claims: &claims,
        job,
    };
    let transition = next_transition(&observation);
    let on = OnNode {
        node: &name,
        assignment,
        pool: &pool,
        platform_pods: pods.as_ref().map(|pods| pods.platform.as_slice()).unwrap_or_default(),
        images: pass.images,
    };
    apply_transition(pass, node, transition, &on, pods.as_ref()).await
}

/// Whether a node still has the assignment that was observed. Neither the deletion of a pod or a claim nor a new Job has a version of the node in it, and a view may
/// lag behind changes of control itself, or of the control that runs in its place: with them another tenant has the node, whose pods would be ended. A Job
/// of an earlier recycling does not exist any more, and nothing would delete it again.
async fn has_assignment(pass: &Pass<'_>, node: &str, assignment: &Assignment) -> Result<bool, ReconcileError> {
    let node = pass.get_node(node).await?;
    Ok(node.as_ref().and_then(Assignment::read).as_ref() == Some(assignment))
}

/// Applies a transition of a node. `pods`: those on the node, if they were listed.
async fn apply_transition(
    pass: &Pass<'_>,
    node: &Node,
    transition: Transition,
    on: &OnNode<'_>,
    pods: Option<&PodsOnNode>,
) -> Result<Applied, ReconcileError> {
    let changes_no_node = matches!(
        transition,
        Transition::EvictPods
            | Transition::EndEvictedPods { .. }
            | Transition::DeletePods { .. }
            | Transition::StartJob(_)
    );
    if changes_no_node && !has_assignment(pass, on.node, on.assignment).await? {
        return Ok(Applied::Waits(Some(POLL)));
    }
    match transition {
        Transition::Wait => return Ok(Applied::Waits(None)),
        Transition::CheckAfter(seconds) => {
            let seconds = u64::try_from(seconds.max(1)).unwrap_or(1);
            return Ok(Applied::Waits(Some(Duration::from_secs(seconds))));
        }
        Transition::SetAssignment(next, more_labels) => {
            return Ok(Applied::of_patch(
                pass.write_assignment(node, &next, &more_labels).await?,
            ));
        }
        Transition::CorrectDrift(corrected) => {
            return Ok(Applied::of_patch(pass.correct_drift(node, &corrected).await?));
        }
        Transition::Free(why) => {
            let risks = risks::get_reported(pass, on).await?;
            return Ok(Applied::of_patch(
                pass.free_node(node, Some(on.assignment), &why, risks.as_deref())
                    .await?,
            ));
        }
        Transition::EvictPods => {
            if let Some(pods) = pods {
                pods.evict(&pass.client).await?;
            }
        }
        Transition::EndEvictedPods {
            max_grace_seconds,
            deletes_running,
        } => {
            let limits = DeletionLimits {
                max_grace_seconds,
                removes_overdue: false,
                now: pass.now,
            };
            if let Some(pods) = pods {
                pods.end_evicted(&pass.client, on.assignment.since, deletes_running, limits)
                    .await?;
            }
        }
        Transition::DeletePods {
            max_grace_seconds,
            removes_overdue,
        } => {
            let limits = DeletionLimits {
                max_grace_seconds,
                removes_overdue,
                now: pass.now,
            };
            if let Some(pods) = pods {
                pods.delete(&pass.client, limits).await?;
            }
        }
        Transition::StartJob(kind) => {
            jobs::start_job(&pass.client, kind, pass.job_settings, on).await?;
        }
    }
    Ok(Applied::Waits(Some(POLL)))
}
