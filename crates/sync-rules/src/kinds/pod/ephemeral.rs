//! Ephemeral containers.
//!
//! Kubernetes removes none of them from a pod. So one that is denied is left out of the host pod, and nothing else of the pod waits for it:
//!
//! | the container | on the host | in the tenant |
//! |---|---|---|
//! | allowed | added | its status comes from the host |
//! | denied | left out | an Event; its status says that it waits, and why |
//! | allowed later | added then: they may come in any order | its status comes from the host |
//! | denied later, in a pod that has a node | stays as it is | an Event |
//! | denied later, in a pod that waits for a node | the pod is made again without it | as one that is denied |

use super::{
    container,
    environment::{Environment, fields_that_change},
    images, placement, status_changes,
};
use crate::{
    model::{Cache, DeniedField, KindId, denied_field, json, own_containers, resource::Name},
    translation::{
        fields::FieldIssues,
        sizes::{self, MAX_POD_SPEC_BYTES, MOST_EPHEMERAL_CONTAINERS, count_bytes},
    },
};
use berth_api::text::printable_start;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The list in the spec of a pod.
pub const LIST: &str = "ephemeralContainers";
/// The list in its status.
pub const STATUSES: &str = "ephemeralContainerStatuses";
/// The statuses of other containers. The tenant's own have other names.
const OTHER_STATUSES: [&str; 2] = ["containerStatuses", "initContainerStatuses"];
/// Why a container is denied whose name another one has on the host. An API server there takes none of those that are added with it.
const NAME_TAKEN: &str = "the platform has a container of this name in the pod: choose another name";
/// Why a container waits that is left out.
const REASON: &str = "FieldDenied";
/// Containers that are left out whose statuses say so. A pod has few, and the status of a large pod must have room for them.
const MOST_REPORTED: usize = 50;
/// Bytes of the message in such a status.
const MAX_MESSAGE: usize = 512;
/// Bytes of the name of an image in it: a tenant may write any text there.
const MAX_IMAGE: usize = 512;

/// The host's ephemeral containers for those of a tenant's pod. What their variables read of the pod's metadata is added to `downward`. For one that is left
/// out, nothing is: nobody can remove it, and labels and annotations of the pod would have less room on the host.
pub fn translate(
    cache: &Cache,
    name: &Name,
    environment: &Environment<'_>,
    pod: &Value,
    downward: &mut BTreeSet<String>,
    issues: &mut FieldIssues,
) -> Vec<Value> {
    let mut translated = Vec::new();
    match json::items(pod, &["spec", LIST]).len() {
        // As most pods have.
        0 => return translated,
        1..=MOST_EPHEMERAL_CONTAINERS => {}
        count => {
            let why = format!(
                "there are {count}, and a pod may have at most {MOST_EPHEMERAL_CONTAINERS}: no more are added. They stay until the pod goes"
            );
            let field = format!("spec.{LIST}");
            if waits_with_some(cache, name) {
                issues.deny(field, why);
            } else {
                issues.leave_out(vec![DeniedField::new(field, why)]);
            }
            return translated;
        }
    }
    for Checked {
        container,
        host,
        issues: own,
        is_on_host,
    } in check(cache, name, environment, pod)
    {
        let FieldIssues { denied, ignored, .. } = own;
        if denied.is_empty() {
            // What is left out of all containers is said once.
            for one in ignored {
                if !issues.ignored.contains(&one) {
                    issues.ignore(one.field, one.why);
                }
            }
        } else if is_on_host {
            // As everything else that is denied: a pod that has a node keeps it, and one that waits would start with it.
            for one in denied {
                issues.deny(one.field, one.why);
            }
        } else {
            issues.leave_out(denied);
            continue;
        }
        downward.extend(fields_that_change([container]));
        translated.push(host);
    }
    translated
}

/// Whether a host pod that waits for a node has some. It would start with them, whatever is denied of them by then.
fn waits_with_some(cache: &Cache, name: &Name) -> bool {
    let host = cache.stores.host(KindId::Pod).get(name);
    host.is_some_and(|host| placement::waits(&host) && !json::items(&host.object(), &["spec", LIST]).is_empty())
}

/// Adds statuses of the containers that are left out to the status of the tenant's pod: they wait. `status` has those of the host.
pub fn report_left_out(cache: &Cache, name: &Name, tenant: &Value, status: &mut Value) {
    let containers = json::items(tenant, &["spec", LIST]);
    let of_host = json::items(status, &[STATUSES]);
    let is_reported = |container: &Value| find(of_host, container).is_some();
    // If there are too many, an Event says so.
    if containers.len() > MOST_EPHEMERAL_CONTAINERS || containers.iter().all(is_reported) {
        return;
    }
    let environment = Environment::new(cache, name, tenant);
    let (mut statuses, on_host) = (of_host.to_vec(), of_host.len());
    let left_out = check(cache, name, &environment, tenant).filter(Checked::is_left_out);
    for Checked { container, issues, .. } in left_out.take(MOST_REPORTED) {
        // The host may report it before its pod is read.
        if find(&statuses, container).is_none() {
            let known = find(json::items(tenant, &["status", STATUSES]), container);
            statuses.push(waiting(known, container, &issues.denied));
        }
    }
    if statuses.len() > on_host {
        status[STATUSES] = statuses.into();
    }
}

/// An ephemeral container of a tenant's pod.
struct Checked<'a> {
    container: &'a Value,
    /// What becomes of it on the host.
    host: Value,
    issues: FieldIssues,
    /// Whether the host pod has one of its name.
    is_on_host: bool,
}

impl Checked<'_> {
    fn is_left_out(&self) -> bool {
        !self.issues.denied.is_empty() && !self.is_on_host
    }
}

/// The ephemeral containers of a pod, one after the other.
fn check<'a>(
    cache: &'a Cache,
    name: &'a Name,
    environment: &'a Environment<'a>,
    pod: &'a Value,
) -> impl Iterator<Item = Checked<'a>> {
    let host = cache.stores.host(KindId::Pod).get(name);
    let host_pod = host.map(|host| host.object());
    let is_taken = {
        let host_pod = host_pod.clone();
        move |container: &Value| {
            let name = json::text(container, &["name"]).unwrap_or_default();
            let host_pod = host_pod.as_ref();
            host_pod.is_some_and(|pod| own_containers::has_foreign(pod, name))
        }
    };
    let is_in = move |list: [&str; 2], container: &Value| {
        let host_pod = host_pod.as_ref();
        let other = host_pod.and_then(|pod| find(json::items(pod, &list), container));
        other.is_some_and(|other| other.get(own_containers::FOREIGN).is_none())
    };
    let containers = json::items(pod, &["spec", LIST]).iter();
    let translate = move |container: &Value, path: &str, issues: &mut FieldIssues| {
        // The pod may run on a shared node, so it gets no capability of the class.
        container::translate(environment, &[], container, path, true, issues)
    };
    // Variables of Services do not come to a pod that is on the host.
    let of_services = environment.count_service_bytes();
    let bytes_on_host = move |container: &Value, host: &Value| {
        let bytes = count_bytes(host).saturating_sub(of_services);
        bytes.max(count_bytes(container))
    };
    let mut size = Size::of(without(pod).as_ref().unwrap_or(pod));
    // First: a team can change the order, and what is on the host stays there.
    for container in containers.clone().filter(|container| is_in(["spec", LIST], container)) {
        let host = translate(container, LIST, &mut FieldIssues::default());
        size = size.with(container, bytes_on_host(container, &host));
    }
    containers.enumerate().map(move |(index, container)| {
        let (path, mut issues) = (format!("spec.{LIST}[{index}]"), FieldIssues::default());
        let host = translate(container, &path, &mut issues);
        images::check_container(cache, container, format_args!("{path}"), &mut issues);
        let is_on_host = is_in(["spec", LIST], container);
        if !is_on_host {
            let mut statuses = OTHER_STATUSES.into_iter();
            if is_taken(container) || statuses.any(|list| is_in(["status", list], container)) {
                issues.deny(format!("{path}.name"), NAME_TAKEN);
            }
            let with_it = size.with(container, bytes_on_host(container, &host));
            if let Some(why) = with_it.excess_over(&size) {
                issues.deny(path, why);
            }
            if issues.denied.is_empty() {
                size = with_it;
            }
        }
        Checked {
            container,
            host,
            issues,
            is_on_host,
        }
    })
}

/// The pod without its ephemeral containers, if it has any.
pub fn without(pod: &Value) -> Option<Value> {
    pod["spec"].get(LIST)?;
    let mut pod = pod.clone();
    pod["spec"].as_object_mut()?.remove(LIST);
    Some(pod)
}

/// Entries of a pod, for each limit in [`sizes::POD`].
fn count_entries(pod: &Value) -> Vec<usize> {
    sizes::POD.iter().map(|limit| limit.measure.count(pod)).collect()
}

/// How much a pod holds of what is limited.
struct Size {
    /// Bytes of its spec.
    bytes: usize,
    /// Entries, for each limit in [`sizes::POD`].
    entries: Vec<usize>,
    /// Bytes that ephemeral containers may still have on the host, because the status of the pod can change often.
    left_for_changes: usize,
}

impl Size {
    /// That of a pod without ephemeral containers.
    fn of(pod: &Value) -> Self {
        Self {
            bytes: count_bytes(&pod["spec"]),
            entries: count_entries(pod),
            left_for_changes: status_changes::most_ephemeral_bytes(pod),
        }
    }

    /// The size with one more ephemeral container, which has so many bytes on the host: there each has the variables of the API server.
    fn with(&self, container: &Value, bytes_on_host: usize) -> Self {
        let more = json!({"spec": {LIST: [container]}});
        let bytes = count_bytes(&more["spec"]);
        let entries = self.entries.iter().zip(count_entries(&more));
        Self {
            bytes: self.bytes + bytes,
            entries: entries.map(|(known, more)| known + more).collect(),
            left_for_changes: self.left_for_changes.saturating_sub(bytes_on_host),
        }
    }

    /// Which limit it exceeds, and why there is one, of those of which it has more than `before`.
    fn excess_over(&self, before: &Self) -> Option<String> {
        if self.bytes > MAX_POD_SPEC_BYTES {
            let bytes = self.bytes;
            return Some(format!(
                "with it the spec of the pod has {bytes} bytes, and it may have at most {MAX_POD_SPEC_BYTES}: schedulers and nodes keep it in memory"
            ));
        }
        if self.left_for_changes == 0 {
            return Some(
                "with it the ephemeral containers of the pod have too many bytes for how often its status can change, by readiness probes and by containers \
                 that start again: each time the host stores the whole pod"
                    .to_owned(),
            );
        }
        let mut entries = sizes::POD.iter().zip(self.entries.iter().zip(&before.entries));
        entries.find_map(|(limit, (&now, &before))| {
            let most = limit.in_tenant;
            (now > before && now > most).then(|| {
                let (field, why) = (limit.field, limit.why);
                format!("with it there are {now} of {field}, and one object may have at most {most}: {why}")
            })
        })
    }
}

/// The entry of a list with the name of a container.
fn find<'a>(list: &'a [Value], container: &Value) -> Option<&'a Value> {
    list.iter().find(|other| other.get("name") == container.get("name"))
}

/// The status of a container that is not on the host. `known` is what the tenant's pod says of it.
fn waiting(known: Option<&Value>, container: &Value, denied: &[DeniedField]) -> Value {
    let message = printable_start(&denied_field::message(denied), MAX_MESSAGE);
    let says_so = |known: &&Value| {
        let text = |field: &str| json::text(known, &["state", "waiting", field]);
        text("reason") == Some(REASON) && text("message") == Some(message.as_str())
    };
    // An API server takes no other state of one that has ended.
    let has_ended = |known: &&Value| json::at(known, &["state", "terminated"]).is_some_and(|state| !state.is_null());
    // As the API server has it, which adds fields: otherwise it would differ again and again.
    if let Some(known) = known.filter(|known| says_so(known) || has_ended(known)) {
        return known.clone();
    }
    let image = printable_start(json::text(container, &["image"]).unwrap_or_default(), MAX_IMAGE);
    json!({
        "name": container.get("name"),
        "image": image,
        "imageID": "",
        "lastState": {},
        "ready": false,
        "restartCount": 0,
        "state": {"waiting": {"reason": REASON, "message": message}},
    })
}
