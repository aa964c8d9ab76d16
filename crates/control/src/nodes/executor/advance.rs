//! Moves every node with a record on, as far as it goes at once.

use super::{Pass, job, marks, pods::PodsOnNode};
use crate::{
    error::{ReconcileError, api},
    nodes::{
        jobs::OnNode,
        record::{NodeRecord, State},
        shared::was_shared,
        step::{Facts, JobKind, JobState, Next, Tenant, after_sharing, next},
    },
};
use berth_api::labels;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt, api::ListParams};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// How many nodes are looked at at once.
const AT_ONCE: usize = 16;
/// Steps that one node goes in one pass at most.
const MOST_STEPS: usize = 8;
/// Pause before looking again at what nobody tells of.
const POLL: Duration = Duration::from_secs(1);

/// How many nodes each group has that are promised, being prepared or in use, by (tenant UID, group).
type Groups = BTreeMap<(String, String), u32>;

/// Moves all nodes on. Returns when to look again, if something is under way.
pub(super) async fn all(pass: &mut Pass<'_>) -> Result<Option<Duration>, ReconcileError> {
    let groups = groups(pass).await?;
    let moving: Vec<Arc<Node>> = pass
        .nodes
        .values()
        .filter(|node| NodeRecord::read(node).is_some() || was_shared(node))
        .cloned()
        .collect();
    let (of_all, groups) = (&*pass, &groups);
    let moved: Vec<Result<Outcome, ReconcileError>> =
        stream::iter(moving.into_iter().map(|node| one(of_all, groups, node)))
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
    let mut soonest: Option<Duration> = None;
    for outcome in moved {
        let Outcome { node, again } = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                // What cannot be done on one node must not hold up the others.
                tracing::warn!(%error, "a node could not be moved on");
                soonest = [soonest, Some(POLL)].into_iter().flatten().min();
                continue;
            }
        };
        soonest = [soonest, again].into_iter().flatten().min();
        if let Some(node) = node {
            pass.saw(node);
        }
    }
    Ok(soonest)
}

/// Counts the nodes of groups that wait for fellows. Where the view has enough of them the API server is asked: a fellow that
/// was given up meanwhile must not be counted.
async fn groups(pass: &Pass<'_>) -> Result<Groups, ReconcileError> {
    let counts = |nodes: &mut dyn Iterator<Item = &Node>| {
        let mut counts = Groups::new();
        for record in nodes.filter_map(NodeRecord::read) {
            if record.state.is_coming() || record.state == State::Assigned {
                *counts.entry((record.uid, record.group)).or_default() += 1;
            }
        }
        counts
    };
    let seen = counts(&mut pass.nodes.values().map(AsRef::as_ref));
    let waiting: BTreeSet<(String, String)> = pass
        .nodes
        .values()
        .filter_map(|node| NodeRecord::read(node))
        .filter(|record| record.state == State::Reserved)
        .filter_map(|record| {
            let key = (record.uid, record.group);
            (seen.get(&key).copied().unwrap_or_default() >= record.reserved_with).then_some(key)
        })
        .collect();
    let mut groups = Groups::new();
    let nodes: Api<Node> = Api::all(pass.context.client.clone());
    for key in waiting {
        let params = ListParams::default().labels(&format!("{}={}", labels::NODE_GROUP, key.1));
        let listed = nodes.list(&params).await.map_err(api("list the nodes of a group"))?;
        let count = counts(&mut listed.items.iter()).get(&key).copied().unwrap_or_default();
        groups.insert(key, count);
    }
    Ok(groups)
}

/// What became of a node.
struct Outcome {
    /// The node after the last change, if there was one.
    node: Option<Node>,
    /// When to look again.
    again: Option<Duration>,
}

/// Moves one node on.
async fn one(pass: &Pass<'_>, groups: &Groups, start: Arc<Node>) -> Result<Outcome, ReconcileError> {
    let mut node = start;
    let mut changed = false;
    let mut again = None;
    for _ in 0..MOST_STEPS {
        let done = match NodeRecord::read(&node) {
            Some(record) => step(pass, groups, &node, &record).await?,
            None if was_shared(&node) => begin_after_sharing(pass, &node).await?,
            None => break,
        };
        match done {
            Done::Changed(newer) => {
                node = Arc::from(newer);
                changed = true;
            }
            Done::Wait(pause) => {
                again = pause;
                break;
            }
        }
    }
    Ok(Outcome {
        node: changed.then(|| Arc::unwrap_or_clone(node)),
        again,
    })
}

enum Done {
    Changed(Box<Node>),
    Wait(Option<Duration>),
}

/// Takes a node that several tenants shared, and that is now in a pool of single tenants, through cleaning.
async fn begin_after_sharing(pass: &Pass<'_>, node: &Node) -> Result<Done, ReconcileError> {
    let name = node.name_any();
    let pool = pass.pool_name(node);
    let Some(spec) = pass.specs.get(&pool).filter(|spec| !spec.is_shared()) else {
        // Nobody can have it alone.
        return Ok(Done::Wait(None));
    };
    let pods = PodsOnNode::list(pass.context, &name).await?.names();
    let changed = match after_sharing(pass.now, node, (&pool, spec), &pods) {
        Next::Become(record, more) => {
            marks::set(pass.context, node, "").await?;
            pass.write(node, &record, &more).await?
        }
        Next::Free(why) => pass.free(node, None, &why).await?,
        _ => None,
    };
    Ok(changed.map_or(Done::Wait(Some(POLL)), |node| Done::Changed(Box::new(node))))
}

/// Does the next step of a node.
async fn step(pass: &Pass<'_>, groups: &Groups, node: &Node, record: &NodeRecord) -> Result<Done, ReconcileError> {
    let name = node.name_any();
    let tenant = match pass.slug(&record.uid) {
        Some(slug) => Tenant::Alive(slug),
        None if pass.is_gone(&record.uid).await? => Tenant::Gone,
        // The view lags: it will tell.
        None => return Ok(Done::Wait(Some(POLL))),
    };
    let pool = pass.pool_spec(node, record);
    let looks_at_pods = matches!(record.state, State::Draining | State::Scrubbing | State::Validating);
    let pods = if looks_at_pods {
        Some(PodsOnNode::list(pass.context, &name).await?)
    } else {
        None
    };
    let names = pods.as_ref().map(PodsOnNode::names).unwrap_or_default();
    let job = match record.state {
        State::Scrubbing => job::state(pass.context, JobKind::Scrub, &name, record).await?,
        State::Validating => job::state(pass.context, JobKind::Validate, &name, record).await?,
        _ => JobState::Missing,
    };
    let group = (record.uid.clone(), record.group.clone());
    let facts = Facts {
        now: pass.now,
        node,
        record,
        pool: &pool,
        tenant,
        is_complete_group: groups.get(&group).is_some_and(|count| *count >= record.reserved_with),
        pods: &names,
        job,
    };
    let changed = match next(&facts) {
        Next::Stay => return Ok(Done::Wait(None)),
        Next::Look(seconds) => return Ok(Done::Wait(Some(pause(seconds)))),
        Next::Become(record, more) => pass.write(node, &record, &more).await?,
        Next::Mend(record) => pass.mend(node, &record).await?,
        Next::Free(why) => pass.free(node, Some(record), &why).await?,
        Next::Evict => {
            if let Some(pods) = &pods {
                pods.evict(pass.context).await?;
            }
            return Ok(Done::Wait(Some(POLL)));
        }
        Next::DeletePods => {
            if let Some(pods) = &pods {
                pods.delete(pass.context).await?;
            }
            return Ok(Done::Wait(Some(POLL)));
        }
        Next::Start(kind) => {
            let on = OnNode {
                node: &name,
                record,
                pool: &pool,
                platform_pods: pods.as_ref().map(|pods| pods.platform.as_slice()).unwrap_or_default(),
            };
            job::start(pass.context, kind, &on).await?;
            return Ok(Done::Wait(Some(POLL)));
        }
    };
    // A node that changed meanwhile is looked at again when the watch brings it, and soon in any case.
    Ok(changed.map_or(Done::Wait(Some(POLL)), |node| Done::Changed(Box::new(node))))
}

fn pause(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds.max(1)).unwrap_or(1))
}
