//! The pod's spec: the table, and what is made anew.

use super::{claims, container, environment, scheduling, security, volumes};
use crate::{
    json,
    kinds::fields::{self, Fields, Findings, Rule},
    resource::{KindId, Name, host_name},
    world::World,
};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

const NODE_ISOLATION: &str = "it would reach the node, which belongs to the platform";
const NOT_YET: &str = "not supported yet";

/// The rules of `PodSpec`.
pub const SPEC: Fields = &[
    ("activeDeadlineSeconds", Rule::Copy),
    ("affinity", Rule::Rewrite),
    (
        "automountServiceAccountToken",
        Rule::Ignore("the tenant's API server has made a volume of it"),
    ),
    ("containers", Rule::Rewrite),
    ("dnsConfig", Rule::Rewrite),
    ("dnsPolicy", Rule::Rewrite),
    ("enableServiceLinks", Rule::Rewrite),
    ("ephemeralContainers", Rule::Rewrite),
    ("hostAliases", Rule::Rewrite),
    ("hostIPC", Rule::Refuse(NODE_ISOLATION)),
    ("hostNetwork", Rule::Refuse(NODE_ISOLATION)),
    ("hostPID", Rule::Refuse(NODE_ISOLATION)),
    ("hostUsers", Rule::Rewrite),
    ("hostname", Rule::Rewrite),
    ("hostnameOverride", Rule::Refuse(NOT_YET)),
    ("imagePullSecrets", Rule::Rewrite),
    ("initContainers", Rule::Rewrite),
    (
        "nodeName",
        Rule::Ignore("the host's scheduler decides; one set by hand is refused before translation"),
    ),
    ("nodeSelector", Rule::Rewrite),
    ("os", Rule::Copy),
    (
        "overhead",
        Rule::Refuse("it comes with runtime classes, of which none is offered"),
    ),
    ("preemptionPolicy", Rule::Ignore("follows from the priority class")),
    ("priority", Rule::Ignore("follows from the priority class")),
    ("priorityClassName", Rule::Rewrite),
    ("readinessGates", Rule::Copy),
    ("resourceClaims", Rule::Rewrite),
    ("resources", Rule::Rewrite),
    ("restartPolicy", Rule::Copy),
    ("runtimeClassName", Rule::Refuse("no runtime class is offered")),
    ("schedulerName", Rule::Rewrite),
    ("schedulingGates", Rule::Copy),
    ("schedulingGroup", Rule::Refuse(NOT_YET)),
    ("securityContext", Rule::Rewrite),
    (
        "serviceAccount",
        Rule::Ignore("the deprecated name of serviceAccountName"),
    ),
    (
        "serviceAccountName",
        Rule::Ignore("tokens of the account are minted in the tenant"),
    ),
    ("setHostnameAsFQDN", Rule::Refuse(NOT_YET)),
    ("shareProcessNamespace", Rule::Copy),
    ("subdomain", Rule::Copy),
    ("terminationGracePeriodSeconds", Rule::Copy),
    ("tolerations", Rule::Rewrite),
    ("topologySpreadConstraints", Rule::Rewrite),
    ("volumes", Rule::Rewrite),
    ("workloadRef", Rule::Refuse(NOT_YET)),
];

/// What translating a pod's spec gives.
pub struct Spec {
    /// The host pod's spec.
    pub spec: Map<String, Value>,
    /// Paths of metadata (`metadata.labels['a']`) that downward API volumes read.
    pub downward: BTreeSet<String>,
}

/// The host pod's spec.
pub fn translate(world: &World, name: &Name, pod: &Value, findings: &mut Findings) -> Spec {
    let source = &pod["spec"];
    let mut spec = fields::copy(source, "spec", SPEC, findings);
    let mut downward = BTreeSet::new();

    let environment = environment::Environment::new(world, name, pod);
    for (field, ephemeral) in [
        ("initContainers", false),
        ("containers", false),
        ("ephemeralContainers", true),
    ] {
        let containers: Vec<Value> = json::items(source, &[field])
            .iter()
            .enumerate()
            .map(|(index, item)| {
                let path = format!("spec.{field}[{index}]");
                container::translate(&environment, item, &path, ephemeral, findings)
            })
            .collect();
        if !containers.is_empty() {
            spec.insert(field.into(), containers.into());
        }
    }
    let claims = claims::translate(world, name, pod, findings);
    if !claims.is_empty() {
        spec.insert("resourceClaims".into(), claims.into());
    }
    let volumes = volumes::translate(world, name, pod, &mut downward, findings);
    if !volumes.is_empty() {
        spec.insert("volumes".into(), volumes.into());
    }
    if let Some(context) = source.get("securityContext") {
        spec.insert(
            "securityContext".into(),
            security::pod(context, "spec.securityContext", findings).into(),
        );
    }
    if let Some(resources) = source.get("resources") {
        spec.insert(
            "resources".into(),
            container::resources(resources, "spec.resources", findings).into(),
        );
    }
    scheduling::translate(world, name, source, &mut spec, findings);
    network(world, name, source, &mut spec);

    // The tenant's account means nothing on the host: its tokens arrive in a volume. The host pod runs under the
    // workload namespace's own account, which may do nothing and whose token is not mounted.
    spec.insert("automountServiceAccountToken".into(), false.into());
    // Variables for services are the tenant's services', made from its objects.
    spec.insert("enableServiceLinks".into(), false.into());
    if source.get("hostUsers") == Some(&Value::Bool(false)) {
        spec.insert("hostUsers".into(), false.into());
    }
    let mut secrets = BTreeSet::new();
    for secret in json::items(source, &["imagePullSecrets"]) {
        if let Some(secret) = json::text(secret, &["name"]).filter(|secret| !secret.is_empty()) {
            secrets.insert(host_name(KindId::Secret, &Name::new(&name.namespace, secret)));
        }
    }
    if !secrets.is_empty() {
        let secrets: Vec<_> = secrets.into_iter().map(|secret| json!({"name": secret})).collect();
        spec.insert("imagePullSecrets".into(), secrets.into());
    }
    Spec { spec, downward }
}

/// Host name, aliases and DNS: what a pod of that name would have on a cluster of its own.
fn network(world: &World, name: &Name, source: &Value, spec: &mut Map<String, Value>) {
    let own = json::text(source, &["hostname"])
        .filter(|text| !text.is_empty())
        .unwrap_or(&name.name);
    spec.insert("hostname".into(), hostname(own).into());
    // Server-side apply wants each address once; a pod may list it several times.
    let mut aliases: Vec<(String, Vec<Value>)> = Vec::new();
    for alias in json::items(source, &["hostAliases"]) {
        let ip = json::text(alias, &["ip"]).unwrap_or_default();
        let names = json::items(alias, &["hostnames"]).to_vec();
        match aliases.iter_mut().find(|(known, _)| known == ip) {
            Some((_, all)) => all.extend(names),
            None => aliases.push((ip.to_owned(), names)),
        }
    }
    if !aliases.is_empty() {
        let aliases: Vec<_> = aliases
            .into_iter()
            .map(|(ip, hostnames)| json!({"ip": ip, "hostnames": hostnames}))
            .collect();
        spec.insert("hostAliases".into(), aliases.into());
    }
    dns(world, name, source, spec);
}

/// Cluster DNS means the tenant's DNS. Without one, names of services do not resolve, but external ones do, through
/// the node's resolver; never does a tenant's pod ask the host's cluster DNS.
fn dns(world: &World, name: &Name, source: &Value, spec: &mut Map<String, Value>) {
    let own = source.get("dnsConfig").filter(|config| !json::is_unset(config));
    let policy = json::text(source, &["dnsPolicy"]).unwrap_or("ClusterFirst");
    let cluster_dns = world
        .tenant
        .dns_address
        .as_ref()
        .filter(|_| policy.starts_with("ClusterFirst"));
    let Some(address) = cluster_dns else {
        spec.insert(
            "dnsPolicy".into(),
            if policy == "None" { "None" } else { "Default" }.into(),
        );
        if let Some(own) = own {
            spec.insert("dnsConfig".into(), own.clone());
        }
        return;
    };
    let domain = &world.tenant.cluster_domain;
    let mut nameservers = vec![Value::from(address.clone())];
    let mut searches: Vec<Value> = [
        format!("{}.svc.{domain}", name.namespace),
        format!("svc.{domain}"),
        domain.clone(),
    ]
    .map(Value::from)
    .into();
    let mut options = vec![json!({"name": "ndots", "value": "5"})];
    if let Some(own) = own {
        // As the kubelet merges: lists are joined, options of the same name replaced.
        for (list, field) in [(&mut nameservers, "nameservers"), (&mut searches, "searches")] {
            for item in json::items(own, &[field]) {
                if !list.contains(item) {
                    list.push(item.clone());
                }
            }
        }
        for option in json::items(own, &["options"]) {
            options.retain(|known| known.get("name") != option.get("name"));
            options.push(option.clone());
        }
    }
    spec.insert("dnsPolicy".into(), "None".into());
    let config = json!({"nameservers": nameservers, "searches": searches, "options": options});
    spec.insert("dnsConfig".into(), config);
}

/// The host name that a kubelet gives a pod: its name, cut to 63 characters. Dots, which only names of pods may have,
/// become dashes.
pub fn hostname(name: &str) -> String {
    let mut text: String = name.chars().take(63).map(|c| if c == '.' { '-' } else { c }).collect();
    text.truncate(text.trim_end_matches('-').len());
    text
}

#[cfg(test)]
mod tests {
    use super::hostname;

    #[test]
    fn hostnames_are_dns_labels() {
        assert_eq!(hostname("web-0"), "web-0");
        assert_eq!(hostname("a.b.c"), "a-b-c");
        assert_eq!(hostname(&format!("{}-x", "a".repeat(62))), "a".repeat(62));
    }
}
