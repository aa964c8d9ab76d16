//! What a pass does in tenants before anything is reclaimed: warnings on pods and their owners, and what became of stopped owners.
//!
//! Tenants decide how long their API servers take. So all are looked at side by side, within limits, and those that were slow come last.
//! What fails is tried again in the next pass; no step depends on it.

use super::{
    IdleGpusContext,
    mark::{self, MarkTask},
    owners::{OwnerKey, TenantObjects},
    restore::{self, Reviewed},
    tenants::{Memory, ObservedTenant},
};
use berth_api::{IdleStep, StoppedOwner, labels::RESTORE};
use berth_idle_reclaim::{pass::Decision, pod::GpuPod, workload::WorkloadName};
use futures::{StreamExt, stream};
use kube::{Client, ResourceExt};
use std::{sync::Arc, time::Duration};

/// Tenants that are looked at side by side.
const CONCURRENCY: usize = 16;
/// Longest time for one tenant.
pub(super) const TENANT_LIMIT: Duration = Duration::from_secs(10);
/// Longest time for all of them.
const PASS_LIMIT: Duration = Duration::from_secs(60);

/// A tenant with what was decided about its workloads, or all its pods if its class no longer reclaims GPUs.
pub(super) enum Found<'a> {
    Decisions(&'a [Decision]),
    Off(&'a [Arc<GpuPod>]),
}

/// What is to be done in one tenant.
struct Work<'a> {
    tenant: &'a ObservedTenant,
    client: Client,
    stopped: Vec<StoppedOwner>,
    /// Which owners somebody asked on the host to start.
    request: Option<&'a str>,
    tasks: Vec<MarkTask<'a>>,
}

/// What was done.
struct Done {
    uid: String,
    reviewed: Reviewed,
    marked: Vec<Marked>,
    /// Whether its API server was too slow.
    is_slow: bool,
}

/// A task that was carried out.
struct Marked {
    workload: WorkloadName,
    step: Option<IdleStep>,
    /// UIDs of host pods.
    pods: Vec<String>,
    owners: Vec<OwnerKey>,
}

/// Looks into all tenants in which there is something to do.
pub(super) async fn update(context: &IdleGpusContext, memory: &mut Memory, found: &[(&ObservedTenant, Found<'_>)]) {
    let mut work: Vec<Work<'_>> = found
        .iter()
        .filter_map(|(tenant, found)| plan(context, memory, tenant, found))
        .collect();
    work.sort_by_key(|work| memory.slow.contains(&work.tenant.uid));
    let work: Vec<_> = work.into_iter().map(|work| carry_out(context, work)).collect();
    let mut all = std::pin::pin!(stream::iter(work).buffer_unordered(CONCURRENCY));
    let deadline = tokio::time::Instant::now() + PASS_LIMIT;
    while let Ok(Some(done)) = tokio::time::timeout_at(deadline, all.next()).await {
        remember(memory, done);
    }
}

fn plan<'a>(
    context: &IdleGpusContext,
    memory: &mut Memory,
    tenant: &'a ObservedTenant,
    found: &Found<'a>,
) -> Option<Work<'a>> {
    let request = tenant.cluster.annotations().get(RESTORE).map(String::as_str);
    memory.inside(tenant).is_restore_pending = request.is_some();
    let tasks = mark::plan(memory, tenant, found);
    let stopped = memory.inside(tenant).stopped.clone();
    if tasks.is_empty() && stopped.is_empty() && request.is_none() {
        return None;
    }
    Some(Work {
        tenant,
        client: context.tenants.client(&tenant.uid)?,
        stopped,
        request,
        tasks,
    })
}

async fn carry_out(context: &IdleGpusContext, work: Work<'_>) -> Done {
    let Work {
        tenant,
        client,
        stopped,
        request,
        tasks,
    } = work;
    let mut done = Done {
        uid: tenant.uid.clone(),
        reviewed: Reviewed::unchanged(&stopped),
        marked: Vec::new(),
        is_slow: false,
    };
    let limited = tokio::time::timeout(TENANT_LIMIT, async {
        let mut objects = TenantObjects::new(client);
        done.reviewed = restore::review(&mut objects, &stopped, request, context.clock.now()).await;
        for task in tasks {
            let owners = mark::carry_out(&mut objects, &task).await?;
            done.marked.push(Marked {
                pods: task.pods.iter().map(|pod| pod.uid.clone()).collect(),
                step: task.step,
                workload: task.workload,
                owners,
            });
        }
        Ok::<(), kube::Error>(())
    });
    match limited.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(tenant = tenant.id.slug(), %error, "cannot warn in a tenant; trying again"),
        Err(_) => {
            done.is_slow = true;
            tracing::debug!(
                tenant = tenant.id.slug(),
                "the API server of a tenant is too slow; trying again"
            );
        }
    }
    restore::publish(context, tenant, &done.reviewed.restored).await;
    if let Some(request) = request
        && done.reviewed.is_complete
    {
        done.reviewed.is_request_done = restore::remove_request(context, tenant, request).await;
    }
    done
}

fn remember(memory: &mut Memory, done: Done) {
    let Done {
        uid,
        reviewed,
        marked,
        is_slow,
    } = done;
    if is_slow {
        memory.slow.insert(uid.clone());
    } else {
        memory.slow.remove(&uid);
    }
    let Memory {
        inside, marked: pods, ..
    } = memory;
    let Some(inside) = inside.get_mut(&uid) else { return };
    inside.stopped = reviewed.kept;
    inside.is_restore_pending &= !reviewed.is_request_done;
    for Marked {
        workload,
        step,
        pods: uids,
        owners,
    } in marked
    {
        pods.extend(uids.into_iter().map(|uid| (uid, step)));
        if step.is_some() {
            inside.owners.insert(workload, (step, owners));
        } else {
            inside.owners.remove(&workload);
        }
    }
}
