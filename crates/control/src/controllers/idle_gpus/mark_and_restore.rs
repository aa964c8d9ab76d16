//! What a pass does in tenants before anything is reclaimed: warnings on pods and their owners, and what became of stopped owners.
//!
//! Tenants decide how long their API servers take. So all are looked at side by side, within [limits](super::waits), and those that were slow
//! or took long come last. What fails is tried again in the next pass; no step depends on it, and nothing else waits for it.

use super::{
    IdleGpusContext,
    mark::{self, MarkTask},
    owners::{OwnerKey, TenantObjects},
    restore::{self, Reviewed, StoppedOwners},
    tenants::{Memory, ObservedTenant},
    waits::Waits,
};
use berth_api::{StoppedOwner, labels::RESTORE};
use berth_idle_reclaim::{pass::Decision, pod::GpuPod};
use futures::{StreamExt, stream};
use kube::{Client, ResourceExt};
use std::{collections::HashSet, mem, sync::Arc, time::Duration};
use tokio::time::Instant;

/// Tenants that are looked at side by side.
const CONCURRENCY: usize = 16;
/// Longest time for all of them.
const PASS_LIMIT: Duration = Duration::from_secs(70);
/// Time after which no further tenant is begun, so that what is found in those that were begun is not lost.
const BEGIN_LIMIT: Duration = Duration::from_secs(30);

/// A tenant with what was decided about its workloads, or all its pods if its class no longer reclaims GPUs.
pub(super) enum Found<'a> {
    Decisions(&'a [Decision]),
    Off(&'a [Arc<GpuPod>]),
}

/// What is to be done in one tenant.
struct Work<'a> {
    tenant: &'a ObservedTenant,
    client: Client,
    waits: Waits,
    stopped: Vec<StoppedOwner>,
    /// UIDs of those whose kind the tenant did not serve in the pass before.
    not_served: HashSet<String>,
    /// Which owners somebody asked on the host to start.
    request: Option<&'a str>,
    tasks: Vec<MarkTask<'a>>,
}

/// What was done.
struct Done<'a> {
    uid: String,
    waits: Waits,
    /// How long it took.
    took: Duration,
    /// None: the tenant was not looked at.
    found: Option<FoundInside<'a>>,
}

struct FoundInside<'a> {
    reviewed: Reviewed,
    marked: Vec<Marked<'a>>,
    /// What is left of the request.
    request: Option<String>,
}

/// A task that was carried out, as far as that was possible.
struct Marked<'a> {
    task: MarkTask<'a>,
    owners: Vec<OwnerKey>,
    is_complete: bool,
}

/// Looks into all tenants in which there is something to do.
pub(super) async fn update(context: &IdleGpusContext, memory: &mut Memory, found: &[(&ObservedTenant, Found<'_>)]) {
    let started = Instant::now();
    let mut work: Vec<Work<'_>> = found
        .iter()
        .filter_map(|(tenant, found)| plan(context, memory, tenant, found))
        .collect();
    work.sort_by_cached_key(|work| memory.inside(work.tenant).pace.place(work.waits.has_slow()));
    let begin_until = started + BEGIN_LIMIT;
    let work: Vec<_> = work
        .into_iter()
        .map(|work| carry_out(context, work, begin_until))
        .collect();
    let mut all = std::pin::pin!(stream::iter(work).buffer_unordered(CONCURRENCY));
    while let Ok(Some(done)) = tokio::time::timeout_at(started + PASS_LIMIT, all.next()).await {
        remember(memory, started, done);
    }
}

fn plan<'a>(
    context: &IdleGpusContext,
    memory: &mut Memory,
    tenant: &'a ObservedTenant,
    found: &Found<'a>,
) -> Option<Work<'a>> {
    let request = tenant.cluster.annotations().get(RESTORE).map(String::as_str);
    let inside = memory.inside(tenant);
    inside.request = request.map(ToOwned::to_owned);
    inside.waits = mem::take(&mut inside.waits).next_pass();
    inside.pace.begin_pass();
    let tasks = mark::plan(memory, tenant, found);
    let inside = memory.inside(tenant);
    if tasks.is_empty() && inside.stopped.is_empty() && request.is_none() {
        // Nothing else finds out that it is not slow any more.
        inside.pace.is_slow = false;
        return None;
    }
    Some(Work {
        tenant,
        client: context.tenants.client(&tenant.uid)?,
        waits: inside.waits.clone(),
        stopped: inside.stopped.clone(),
        not_served: inside.not_served.clone(),
        request,
        tasks,
    })
}

async fn carry_out<'a>(context: &IdleGpusContext, work: Work<'a>, begin_until: Instant) -> Done<'a> {
    let Work {
        tenant,
        client,
        waits,
        stopped,
        not_served,
        request,
        tasks,
    } = work;
    let uid = tenant.uid.clone();
    let begun = Instant::now();
    if begun > begin_until {
        return Done {
            uid,
            waits,
            took: Duration::ZERO,
            found: None,
        };
    }
    let mut objects = TenantObjects::new(client, waits);
    let mut owners = StoppedOwners::new(&stopped, request);
    let mut marked: Vec<Marked<'_>> = tasks.into_iter().map(Marked::new).collect();
    owners.review(&mut objects).await;
    mark_all(&mut objects, &mut marked, tenant).await;
    // What was too slow before takes the time of nothing else.
    if objects.ask_all() {
        owners.review(&mut objects).await;
        mark_all(&mut objects, &mut marked, tenant).await;
    }
    let reviewed = owners.finish(&not_served, context.clock.now());
    restore::publish(context, tenant, &reviewed).await;
    let request = match request {
        Some(request) => restore::reduce_request(context, tenant, request, reviewed.left.as_deref()).await,
        None => None,
    };
    Done {
        uid,
        waits: objects.into_waits(),
        took: begun.elapsed(),
        found: Some(FoundInside {
            reviewed,
            marked,
            request,
        }),
    }
}

impl<'a> Marked<'a> {
    /// Nothing is done yet.
    fn new(task: MarkTask<'a>) -> Self {
        Self {
            task,
            owners: Vec::new(),
            is_complete: false,
        }
    }
}

/// Carries out the tasks that are not complete. One that fails keeps back no other.
async fn mark_all(objects: &mut TenantObjects, all: &mut [Marked<'_>], tenant: &ObservedTenant) {
    for marked in all {
        if marked.is_complete {
            continue;
        }
        let (owners, result) = mark::carry_out(objects, &marked.task).await;
        marked.owners = owners;
        marked.is_complete = result.is_ok();
        if let Err(error) = result {
            let name = &marked.task.workload.name;
            tracing::debug!(tenant = tenant.id.slug(), workload = name, %error, "cannot warn in a tenant; trying again");
        }
    }
}

/// Remembers what was done in the pass that began then.
fn remember(memory: &mut Memory, pass: Instant, done: Done<'_>) {
    let Done {
        uid,
        waits,
        took,
        found,
    } = done;
    let Memory {
        inside, marked: pods, ..
    } = memory;
    let Some(inside) = inside.get_mut(&uid) else { return };
    if waits.is_server_slow() {
        tracing::debug!(tenant_uid = uid, "the API server of a tenant is too slow; trying again");
        inside.pace.is_slow = true;
    } else if found.is_some() {
        inside.pace.is_slow = false;
    }
    if found.is_some() {
        inside.pace.look(pass, took);
    }
    inside.waits = waits.last_steps();
    let Some(FoundInside {
        reviewed,
        marked,
        request,
    }) = found
    else {
        return;
    };
    inside.stopped = reviewed.kept;
    inside.not_served = reviewed.not_served;
    inside.request = request;
    for Marked {
        task,
        owners,
        is_complete,
    } in marked
    {
        let MarkTask { workload, step, .. } = task;
        if is_complete {
            pods.extend(task.pods.iter().map(|pod| (pod.uid.clone(), step)));
            inside.failed.remove(&workload);
        } else {
            inside.failed.insert(workload.clone());
        }
        if step.is_some() {
            inside.note_owners(workload, step, owners, is_complete);
        } else if is_complete {
            inside.owners.remove(&workload);
        }
    }
}
