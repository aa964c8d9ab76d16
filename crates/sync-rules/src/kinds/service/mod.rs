//! Services.
//!
//! | field | rule |
//! |---|---|
//! | labels | [`LABELS`] and those that the class lists |
//! | annotations | [`ANNOTATIONS`] and those that the class lists. Settings of load balancers are denied on a Service of type LoadBalancer, and left out with an Event on others |
//! | `clusterIP(s)`, `ipFamilies`, `ipFamilyPolicy` | copied: one address, inside and out |
//! | `selector` | that of the same pods on the host, see [`pod_labels`](crate::translation::pod_labels); narrowed to the tenant and the namespace. Denied for a while, and one of no pod on the host, if the endpoints change too often: see [`endpoint_changes`] |
//! | no `selector` any more | one of no pod on the host: its controllers leave the endpoints of a Service that has none as they are, and the addresses of pods become those of others. The same if it is not on record that the host's never had one: an earlier release took it away |
//! | `ports` | copied; node ports are the same inside and out. Their number is limited, but for headless Services, see [`sizes`]. What is on the host may stay |
//! | `type` | ClusterIP; NodePort and LoadBalancer if the class allows. What it allows no longer becomes ClusterIP |
//! | `externalTrafficPolicy`, `healthCheckNodePort`, `allocateLoadBalancerNodePorts`, `loadBalancerSourceRanges` | copied for the types that have them |
//! | `loadBalancerClass` | copied if the class lists it |
//! | `externalIPs`, `loadBalancerIP` | denied |
//! | `type: ExternalName` | stays in the tenant, whose DNS answers for it |
//! | `default/kubernetes`, `kube-system/kube-dns` | never synced: they stand for the tenant's own API server and its DNS; the same holds for `berth-metrics` |
//! | status | `loadBalancer` comes back; a condition says if something is denied, see [`status`] |
//!
//! What a change takes away from the ways into a Service is gone before it is its turn to be written: see [`narrow`].
//!
//! Addresses and node ports are allocated by the host before the tenant's object is stored: see [`allocation`] and
//! [`crate::admission`]. Until it is stored, the host's Service selects no pod, or the pods that it selected before.

pub mod allocation;
mod narrow;
#[cfg(test)]
mod selector_tests;
mod status;
#[cfg(test)]
mod tests;

use crate::{
    model::{
        Cache, DeniedField, Dependency, DesiredState, Kind, KindId, Observation, TenantWrite, ToHost, Translated,
        WhenDenied, endpoint_changes, json,
        resource::{self, Name, Resource},
        store::Stored,
    },
    translation::{
        fields::{self, FieldIssues, Fields, Rule},
        metadata::{self, AnnotationRules, Without},
        sizes,
    },
    usage,
};
use berth_api::{
    labels, pod_labels,
    sync_policy::{ServicePolicy, allows},
};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

/// The kind.
pub const KIND: Kind = Kind::to_host(resource::SERVICE, &Services)
    .with_tenant_rights(&[("services/status", &["patch"])])
    .essential()
    .acting_without_pods()
    .depends_on(&[
        // What changes endpoints is counted.
        Dependency::on_host(KindId::Service, endpoint_changes::note_written),
        Dependency::on_host(KindId::Pod, endpoint_changes::note_pod),
        Dependency::on_tenant(KindId::Service, |cache, name| {
            let service = cache.stores.tenant(KindId::Service).get(name);
            let addresses = service.map(|service| cluster_addresses(&service.object()));
            cache.egress_index().services.set(name, addresses.unwrap_or_default());
            Vec::new()
        }),
    ]);

/// Services of the tenant that stand for parts of its control plane, as (namespace, name). The platform runs what they
/// lead to; what the tenant writes into them has no effect.
pub const OF_THE_CONTROL_PLANE: [(&str, &str); 3] = [
    ("default", "kubernetes"),
    ("kube-system", "kube-dns"),
    (usage::NAMESPACE, usage::SERVICE),
];

const SPEC: Fields = &[
    ("allocateLoadBalancerNodePorts", Rule::Copy),
    ("clusterIP", Rule::Copy),
    ("clusterIPs", Rule::Copy),
    ("externalIPs", Rule::Deny("they could take over addresses of others")),
    ("externalName", Rule::Ignore("only the tenant's DNS reads it")),
    ("externalTrafficPolicy", Rule::Copy),
    ("healthCheckNodePort", Rule::Copy),
    ("internalTrafficPolicy", Rule::Copy),
    ("ipFamilies", Rule::Copy),
    ("ipFamilyPolicy", Rule::Copy),
    ("loadBalancerClass", Rule::Copy),
    (
        "loadBalancerIP",
        Rule::Deny("this field is deprecated; use the annotations of the load balancer's provider"),
    ),
    ("loadBalancerSourceRanges", Rule::Copy),
    ("ports", Rule::Rewrite),
    ("publishNotReadyAddresses", Rule::Copy),
    ("selector", Rule::Rewrite),
    ("sessionAffinity", Rule::Copy),
    ("sessionAffinityConfig", Rule::Within(AFFINITY)),
    ("trafficDistribution", Rule::Copy),
    ("type", Rule::Rewrite),
];

/// Fields that Services without a way in from outside cannot have.
const OF_EXPOSED: &[&str] = &[
    "allocateLoadBalancerNodePorts",
    "externalTrafficPolicy",
    "healthCheckNodePort",
    "loadBalancerClass",
    "loadBalancerSourceRanges",
];

const PORT: Fields = &[
    ("appProtocol", Rule::Copy),
    ("name", Rule::Copy),
    ("nodePort", Rule::Copy),
    ("port", Rule::Copy),
    ("protocol", Rule::Copy),
    ("targetPort", Rule::Copy),
];

const AFFINITY: Fields = &[("clientIP", Rule::Within(CLIENT_IP))];

const CLIENT_IP: Fields = &[("timeoutSeconds", Rule::Copy)];

/// Annotations that every Service may carry to the host: which of its own endpoints it prefers.
pub const ANNOTATIONS: &[&str] = &[
    "service.kubernetes.io/topology-aware-hints",
    "service.kubernetes.io/topology-mode",
];

/// Labels that every Service may carry to the host: whether the proxies of nodes leave it alone.
pub const LABELS: &[&str] = &[
    "service.kubernetes.io/headless",
    "service.kubernetes.io/service-proxy-name",
];

/// The addresses of a Service in its cluster.
fn cluster_addresses(service: &Value) -> BTreeSet<IpAddr> {
    let listed = json::items(service, &["spec", "clusterIPs"]).iter();
    let texts = listed
        .filter_map(Value::as_str)
        .chain(json::text(service, &["spec", "clusterIP"]));
    texts.filter_map(|text| text.parse().ok()).collect()
}

/// What pods and connections need of a Service. Its annotations can be long, so it is read once and not for each of them.
pub(crate) fn working_part(service: &Stored) -> Value {
    const FIELDS: [&str; 5] = [
        "clusterIP",
        "ipFamilies",
        "ports",
        "publishNotReadyAddresses",
        "selector",
    ];
    service.extract(0, |service| {
        let fields = FIELDS.into_iter().filter_map(|field| {
            let value = json::at(service, &["spec", field])?;
            Some((field.to_owned(), value.clone()))
        });
        json::object([("spec", Value::Object(fields.collect()))])
    })
}

struct Services;

impl ToHost for Services {
    fn resource(&self) -> Resource {
        resource::SERVICE
    }

    fn desired_state(&self, _cache: &Cache, name: &Name, service: &Value) -> DesiredState {
        // The tenant's DNS answers for external names. On the host, other components would take them for names of the host.
        let is_name = json::text(service, &["spec", "type"]) == Some("ExternalName");
        if is_name || OF_THE_CONTROL_PLANE.contains(&(&*name.namespace, &*name.name)) {
            DesiredState::Absent
        } else {
            DesiredState::Sync
        }
    }

    fn translate(&self, cache: &Cache, name: &Name, service: &Value) -> Result<Translated, Vec<DeniedField>> {
        let translated = build(cache, name, service, Selects::ItsPods);
        // Without a selector there is nothing to close, also if there was one when it was closed.
        if !is_closed(cache, name) || json::strings(service, &["spec", "selector"]).is_empty() {
            return translated;
        }
        let mut denied = translated.err().unwrap_or_default();
        denied.push(DeniedField::new("spec.selector", closed_message(cache)));
        Err(denied)
    }

    fn when_denied(&self, cache: &Cache, name: &Name, service: &Value, _host: &Value) -> WhenDenied {
        // One that is only closed keeps its ways in, which lead nowhere. It may have been opened since it was denied.
        build(cache, name, service, selects_now(cache, name)).map_or_else(
            |_| reduce_to_inside(cache, name, service),
            |translated| WhenDenied::Reduce(translated.object),
        )
    }

    fn when_refused(&self, cache: &Cache, name: &Name, service: &Value, _host: &Value) -> WhenDenied {
        reduce_to_inside(cache, name, service)
    }

    fn reduces_at_once(&self, cache: &Cache, name: &Name, reduced: &Value) -> bool {
        let Some(host) = cache.stores.host(KindId::Service).get(name) else {
            return false;
        };
        let host = host.object();
        let is_closed = selects_nothing(reduced) && !selects_nothing(&host);
        is_closed || (allocation::is_exposed(&host) && !allocation::is_exposed(reduced))
    }

    fn exclusive_fields(&self) -> &'static [&'static str] {
        &["ports"]
    }

    fn without_foreign_fields(&self, desired: &Value, written: &Value) -> Option<Value> {
        // They are merged by their numbers. One more would be a way in that the team does not know of.
        let wanted = json::items(desired, &["spec", "ports"]);
        let is_wanted = |port: &&Value| wanted.iter().any(|other| allocation::is_same_port(other, port));
        let ports = json::items(written, &["spec", "ports"]);
        let kept: Vec<&Value> = ports.iter().filter(is_wanted).collect();
        (kept.len() < ports.len()).then(|| json!({"spec": {"ports": kept}}))
    }

    fn narrows_at_once(&self) -> bool {
        true
    }

    fn narrowed(&self, desired: &Value, live: &Value) -> Option<Value> {
        narrow::narrowed(desired, live)
    }

    fn reserved(&self, mut desired: Value, live: Option<&Value>) -> Value {
        // Quotas, policies and webhooks of the tenant are asked later.
        let Some(spec) = desired["spec"].as_object_mut() else {
            return desired;
        };
        match live.map(|live| live["spec"].get("selector")) {
            Some(Some(selector)) => {
                spec.insert("selector".into(), selector.clone());
            }
            Some(None) => {
                spec.remove("selector");
            }
            None => {
                if let Some(selector) = spec.get_mut("selector").and_then(Value::as_object_mut) {
                    selector.insert(labels::ENDPOINTS.into(), labels::ENDPOINTS_NONE.into());
                }
            }
        }
        desired
    }

    fn is_inert(&self, host: &Stored) -> bool {
        selects_nothing(&host.object())
    }

    fn allocated(&self, service: &Value) -> Value {
        allocation::of(service)
    }

    fn record(&self, cache: &Cache, name: &Name, object: &Value) -> Option<(&'static str, &'static str)> {
        let selects = !json::strings(object, &["spec", "selector"]).is_empty();
        // Reservations are made before the host's Services are listed, so one that is not in the store may be there.
        let is_known = cache.stores.host(KindId::Service).is_listed();
        let never_had_one = !selects && is_known && !may_have_endpoints(cache, name);
        never_had_one.then_some((labels::ENDPOINTS, labels::ENDPOINTS_OWN))
    }

    fn must_replace(&self, desired: &Value, live: &Value) -> bool {
        allocation::is_another(desired, live)
    }

    fn denied_status(
        &self,
        _cache: &Cache,
        _name: &Name,
        service: &Value,
        denied: &[DeniedField],
        now: Timestamp,
    ) -> Option<Value> {
        Some(status::denied_status(service, denied, now))
    }

    fn not_synced_status(&self, service: &Value, reason: &str, message: &str, now: Timestamp) -> Option<Value> {
        Some(status::not_synced_status(service, reason, message, now))
    }

    fn sync_status(&self, _cache: &Cache, _name: &Name, observation: &Observation<'_>) -> Vec<TenantWrite> {
        status::sync_status(observation)
    }
}

/// What the host's Service selects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Selects {
    /// The pods that the tenant's selects.
    ItsPods,
    /// No pod at all, with a label that none has. Without a selector, the host's controllers would leave its endpoints as they are.
    Nothing,
}

/// Whether the endpoints of a Service change too often.
fn is_closed(cache: &Cache, name: &Name) -> bool {
    cache.endpoint_changes().is_closed(name)
}

/// Whether a Service of the host selects no pod although the tenant's has a selector.
fn selects_nothing(service: &Value) -> bool {
    json::text(service, &["spec", "selector", labels::ENDPOINTS]) == Some(labels::ENDPOINTS_NONE)
}

/// Whether the host's controllers may have made endpoints for the Service: it has a selector on the host, or may have had one there, because there is no
/// [record](ToHost::record) that it never had. An earlier release wrote none, and took the selector away.
fn may_have_endpoints(cache: &Cache, name: &Name) -> bool {
    let host = cache.stores.host(KindId::Service).get(name);
    host.is_some_and(|host| {
        let host = host.object();
        let record = json::text(&host, &["metadata", "annotations", labels::ENDPOINTS]);
        record != Some(labels::ENDPOINTS_OWN) || !json::strings(&host, &["spec", "selector"]).is_empty()
    })
}

/// What a Service selects on the host now.
fn selects_now(cache: &Cache, name: &Name) -> Selects {
    if is_closed(cache, name) {
        Selects::Nothing
    } else {
        Selects::ItsPods
    }
}

/// The Service without what leads into it from outside, and without annotations: each of them may be what is denied, and inside none is needed.
fn reduce_to_inside(cache: &Cache, name: &Name, service: &Value) -> WhenDenied {
    let mut inside = service.clone();
    close_to_outside(&mut inside);
    build(cache, name, &inside, selects_now(cache, name))
        .map_or(WhenDenied::Withdraw, |translated| WhenDenied::Reduce(translated.object))
}

/// Takes away what leads into a Service from outside, and all annotations.
fn close_to_outside(service: &mut Value) {
    service["metadata"]["annotations"] = json!({});
    if let Some(spec) = service.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("type".into(), "ClusterIP".into());
        spec.retain(|field, _| !OF_EXPOSED.contains(&field.as_str()));
    }
    json::each_mut(service, "spec.ports[]", &mut |port| {
        if let Some(port) = port.as_object_mut() {
            port.remove("nodePort");
        }
    });
}

fn closed_message(cache: &Cache) -> String {
    format!(
        "the endpoints of Services in this cluster change too often, and most often those of this one: on the host it selects no pod for {} \
         minutes at least. In the long run those of {} Services may change in a second. Find out why its pods become ready and unready again and again, \
         or ask the platform team to raise spec.limits.endpointChangesPerSecond of the class",
        endpoint_changes::CLOSED.as_secs() / 60,
        cache.tenant.host_limits.endpoint_changes_per_second
    )
}

/// The host's Service.
fn build(cache: &Cache, name: &Name, service: &Value, selects: Selects) -> Result<Translated, Vec<DeniedField>> {
    let mut issues = FieldIssues::default();
    let source = &service["spec"];
    let mut spec = fields::copy(source, "spec", SPEC, &mut issues);
    exposure(source, &cache.tenant.policy.services, &mut issues);
    if let Some(kind) = source.get("type") {
        spec.insert("type".into(), kind.clone());
    }
    let mut selector: BTreeMap<String, String> = json::strings(source, &["selector"])
        .into_iter()
        .map(|(key, value)| (pod_labels::host_key(&key), value))
        .collect();
    // Without a selector the tenant makes the endpoints itself.
    let nothing = if selector.is_empty() {
        may_have_endpoints(cache, name).then_some(labels::ENDPOINTS_OWN)
    } else {
        (selects == Selects::Nothing).then_some(labels::ENDPOINTS_NONE)
    };
    if !selector.is_empty() || nothing.is_some() {
        selector.insert(labels::TENANT.into(), cache.tenant.slug.clone());
        selector.insert(labels::TENANT_OBJECT_NAMESPACE.into(), name.namespace.to_string());
        if let Some(nothing) = nothing {
            selector.insert(labels::ENDPOINTS.into(), nothing.into());
        }
        spec.insert("selector".into(), json!(selector));
    }
    let ports: Vec<Value> = json::items(source, &["ports"])
        .iter()
        .enumerate()
        .map(|(index, port)| fields::copy(port, &format!("spec.ports[{index}]"), PORT, &mut issues).into())
        .collect();
    if !ports.is_empty() {
        spec.insert("ports".into(), ports.into());
    }
    let annotations = metadata::annotations(service, &annotation_rules(cache, source), &mut issues);
    let labels = metadata::labels(service, LABELS, &cache.tenant.policy.services.labels);
    let metadata = json!({"labels": labels, "annotations": annotations});
    let object = json!({"metadata": metadata, "spec": spec});
    limit_size(cache, name, service, &object, &mut issues);
    check_addresses(cache, name, service, &mut issues);
    issues.into_result(object)
}

/// Denies addresses that the host keeps for its own Services, unless the host's Service has them: the host may have given them.
fn check_addresses(cache: &Cache, name: &Name, service: &Value, issues: &mut FieldIssues) {
    let stored = cache.stores.host(KindId::Service).get(name).map(|host| host.object());
    let live: Vec<&str> = stored.as_deref().into_iter().flat_map(allocation::addresses).collect();
    let reserved = &cache.tenant.reserved_service_addresses;
    let chosen = allocation::addresses(service).filter(|address| !live.contains(address));
    for address in chosen {
        let why = match address.parse::<IpAddr>().map(|address| address.to_canonical()) {
            Ok(parsed) if reserved.iter().any(|network| network.contains(&parsed)) => {
                "is one of the addresses that the host cluster keeps for its own Services; choose another one, or leave the field out to be \
                 given one"
            }
            Ok(_) => continue,
            // Kubernetes may read it as the address of another Service.
            Err(_) => "is not written as an IP address",
        };
        return issues.deny("spec.clusterIP", format!("{address} {why}"));
    }
}

/// Denies what is beyond the limits, unless the host's Service holds as much: it may be older than the limits.
fn limit_size(cache: &Cache, name: &Name, service: &Value, object: &Value, issues: &mut FieldIssues) {
    let stored = cache.stores.host(KindId::Service).get(name).map(|host| host.object());
    let live = stored.as_deref().unwrap_or(&Value::Null);
    sizes::check_growth(sizes::SERVICE, live, service, object, issues);
    if json::text(service, &["spec", "clusterIP"]) != Some("None") {
        sizes::check_growth(sizes::SERVICE_PORTS, live, service, object, issues);
    }
}

fn annotation_rules<'a>(cache: &'a Cache, spec: &Value) -> AnnotationRules<'a> {
    // A load balancer without them could be open to the internet. Services of other types have none.
    let has_load_balancer = json::text(spec, &["type"]) == Some("LoadBalancer");
    AnnotationRules {
        always: ANNOTATIONS,
        listed: &cache.tenant.policy.services.annotations,
        class_field: Some("sync.services.annotations"),
        load_balancers: Some(if has_load_balancer {
            Without::Denied
        } else {
            Without::Ignored
        }),
    }
}

/// Denies access from outside that the class does not allow.
fn exposure(spec: &Value, policy: &ServicePolicy, issues: &mut FieldIssues) {
    let kind = json::text(spec, &["type"]).unwrap_or_default();
    let is_allowed = match kind {
        "NodePort" => policy.node_ports,
        "LoadBalancer" => policy.load_balancers,
        _ => true,
    };
    if !is_allowed {
        issues.deny("spec.type", format!("{kind} is not offered: use ClusterIP"));
    }
    if let Some(class) = json::text(spec, &["loadBalancerClass"])
        && kind == "LoadBalancer"
        && !allows(&policy.load_balancer_classes, class)
    {
        let classes = &policy.load_balancer_classes;
        let offered = if classes.is_empty() {
            "leave it out for the default one".to_owned()
        } else {
            format!("leave it out for the default one, or use one of {}", classes.join(", "))
        };
        issues.deny("spec.loadBalancerClass", format!("{class} is not offered: {offered}"));
    }
}
