//! The pod's spec: the table, and the fields that are translated.

use super::{
    claims, container, environment, ephemeral, grace, images, scheduling, security, shared,
    tables::{DNS_CONFIG, HOST_ALIAS, OS, READINESS_GATE, SCHEDULING_GATE},
    volumes,
};
use crate::{
    model::{
        Cache, KindId, json,
        resource::{Name, host_name},
    },
    translation::fields::{self, FieldIssues, Fields, Rule},
};
use berth_api::sync_policy::allows;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

const NODE_ISOLATION: &str = "it would reach the node, which belongs to the platform";

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
    (
        "evictionResponders",
        Rule::Ignore("evictions that are asked for in the tenant are answered there"),
    ),
    ("hostAliases", Rule::Rewrite),
    ("hostIPC", Rule::Deny(NODE_ISOLATION)),
    ("hostNetwork", Rule::Deny(NODE_ISOLATION)),
    ("hostPID", Rule::Deny(NODE_ISOLATION)),
    ("hostUsers", Rule::Rewrite),
    ("hostname", Rule::Rewrite),
    ("hostnameOverride", Rule::Rewrite),
    ("imagePullSecrets", Rule::Rewrite),
    ("initContainers", Rule::Rewrite),
    (
        "nodeName",
        Rule::Ignore("whoever places the host pod sets it; see `scheduling`"),
    ),
    ("nodeSelector", Rule::Rewrite),
    ("os", Rule::Within(OS)),
    ("overhead", Rule::Ignore("the host adds that of the runtime class")),
    ("preemptionPolicy", Rule::Ignore("follows from the priority class")),
    ("priority", Rule::Ignore("follows from the priority class")),
    ("priorityClassName", Rule::Rewrite),
    ("readinessGates", Rule::Within(READINESS_GATE)),
    ("resourceClaims", Rule::Rewrite),
    ("resources", Rule::Rewrite),
    ("restartPolicy", Rule::Copy),
    ("runtimeClassName", Rule::Rewrite),
    ("schedulerName", Rule::Rewrite),
    ("schedulingGates", Rule::Within(SCHEDULING_GATE)),
    ("schedulingGroup", Rule::Rewrite),
    ("securityContext", Rule::Rewrite),
    (
        "serviceAccount",
        Rule::Ignore("the deprecated name of serviceAccountName"),
    ),
    ("serviceAccountName", Rule::Rewrite),
    ("setHostnameAsFQDN", Rule::Rewrite),
    ("shareProcessNamespace", Rule::Copy),
    ("subdomain", Rule::Copy),
    ("terminationGracePeriodSeconds", Rule::Copy),
    ("tolerations", Rule::Rewrite),
    ("topologySpreadConstraints", Rule::Rewrite),
    ("volumes", Rule::Rewrite),
];

/// The translation of a pod's spec.
pub struct HostSpec {
    /// The host pod's spec.
    pub spec: Map<String, Value>,
    /// Paths of metadata (`metadata.labels['a']`) that downward API volumes and variables read.
    pub downward: BTreeSet<String>,
    /// Shared pools on whose nodes the pod may run, besides the tenant's own nodes.
    pub shared_pools: Vec<String>,
}

/// The host pod's spec.
pub fn translate(cache: &Cache, name: &Name, pod: &Value, issues: &mut FieldIssues) -> HostSpec {
    let source = &pod["spec"];
    let mut spec = fields::copy(source, "spec", SPEC, issues);
    let mut downward = BTreeSet::new();
    let environment = environment::Environment::new(cache, name, pod);
    let capabilities = &cache.tenant.policy.pods.capabilities;
    for field in ["initContainers", "containers"] {
        let containers = json::items(source, &[field]);
        downward.extend(environment::fields_that_change(containers));
        let containers: Vec<Value> = { containers.iter().enumerate() }
            .map(|(index, item)| {
                let path = format!("spec.{field}[{index}]");
                container::translate(&environment, capabilities, item, &path, false, issues)
            })
            .collect();
        if !containers.is_empty() {
            spec.insert(field.into(), containers.into());
        }
    }
    let ephemeral = ephemeral::translate(cache, name, &environment, pod, &mut downward, issues);
    if !ephemeral.is_empty() {
        spec.insert(ephemeral::LIST.into(), ephemeral.into());
    }
    images::check(cache, name, source, issues);
    let claims = claims::translate(cache, name, pod, issues);
    if !claims.is_empty() {
        spec.insert("resourceClaims".into(), claims.into());
    }
    let volumes = volumes::translate(cache, name, pod, &mut downward, issues);
    if !volumes.is_empty() {
        spec.insert("volumes".into(), volumes.into());
    }
    if let Some(context) = source.get("securityContext") {
        let context = security::pod(context, "spec.securityContext", issues);
        spec.insert("securityContext".into(), context.into());
    }
    if cache.tenant.policy.pods.seccomp_default() {
        security::default_seccomp_profile(&mut spec);
    }
    if let Some(resources) = source.get("resources") {
        spec.insert(
            "resources".into(),
            container::resources(resources, "spec.resources", issues).into(),
        );
    }
    scheduling::translate(cache, name, source, &mut spec, issues);
    network(cache, name, source, &mut spec, issues);
    runtime_class(cache, source, &mut spec, issues);
    account(cache, name, source, &mut spec);
    // The variables are made from the tenant's Services instead.
    spec.insert("enableServiceLinks".into(), false.into());
    if source.get("hostUsers") == Some(&Value::Bool(false)) {
        spec.insert("hostUsers".into(), false.into());
    }
    let mut secrets = BTreeSet::new();
    for secret in json::items(source, &["imagePullSecrets"]) {
        if let Some(secret) = json::filled(secret, &["name"]) {
            secrets.insert(host_name(KindId::Secret, &Name::new(&name.namespace, secret)));
        }
    }
    if !secrets.is_empty() {
        let secrets: Vec<_> = secrets.into_iter().map(|secret| json!({"name": secret})).collect();
        spec.insert("imagePullSecrets".into(), secrets.into());
    }
    let max_seconds = cache.tenant.policy.pods.max_termination_grace_period_seconds();
    grace::limit(max_seconds, &mut spec, issues);
    let shared_pools = shared::open(cache, name, source, &mut spec);
    HostSpec {
        spec,
        downward,
        shared_pools,
    }
}

/// The tenant's service account does not exist on the host: its tokens are mounted from a Secret. The host pod runs
/// under the workload namespace's own account, which has no rights, or under one that the class has for this account
/// and that clouds recognize. The token of neither is mounted.
fn account(cache: &Cache, name: &Name, source: &Value, spec: &mut Map<String, Value>) {
    let account = json::filled(source, &["serviceAccountName"]).unwrap_or("default");
    let mappings = &cache.tenant.policy.service_accounts;
    if let Some(mapping) = mappings
        .iter()
        .find(|mapping| mapping.namespace == *name.namespace && mapping.name == account)
    {
        spec.insert("serviceAccountName".into(), mapping.host_name.clone().into());
    }
    spec.insert("automountServiceAccountToken".into(), false.into());
}

fn runtime_class(cache: &Cache, source: &Value, spec: &mut Map<String, Value>, issues: &mut FieldIssues) {
    let Some(class) = json::filled(source, &["runtimeClassName"]) else {
        return;
    };
    if allows(&cache.tenant.policy.pods.runtime_classes, class) {
        spec.insert("runtimeClassName".into(), class.into());
        return;
    }
    let own = cache.stores.tenant(KindId::RuntimeClass).get(&Name::new("", class));
    let Some(handler) = own.and_then(|own| json::text(&own.object(), &["handler"]).map(ToOwned::to_owned)) else {
        issues.deny("spec.runtimeClassName", format!("{class} is not offered here"));
        return;
    };
    match offered_with_handler(cache, &handler) {
        Some(offered) => drop(spec.insert("runtimeClassName".into(), offered.into())),
        None => issues.deny(
            "spec.runtimeClassName",
            format!("{class} has the handler {handler}, which no RuntimeClass that is offered here has"),
        ),
    }
}

/// The RuntimeClass of the host with a handler, among those that the tenant's class lists: the first by name.
fn offered_with_handler(cache: &Cache, handler: &str) -> Option<String> {
    let listed = &cache.tenant.policy.pods.runtime_classes;
    let classes = cache.stores.host(KindId::RuntimeClass).all().into_iter();
    let names = classes
        .filter(|(name, class)| {
            allows(listed, &name.name) && json::text(&class.object(), &["handler"]) == Some(handler)
        })
        .map(|(name, _)| name.name.to_string());
    names.min()
}

/// Host name, aliases and DNS: what a pod of that name would have on a cluster of its own.
fn network(cache: &Cache, name: &Name, source: &Value, spec: &mut Map<String, Value>, issues: &mut FieldIssues) {
    hostnames(cache, name, source, spec, issues);
    // Server-side apply wants each address once; a pod may list it several times.
    let mut aliases: Vec<(String, Vec<Value>)> = Vec::new();
    for (index, alias) in json::items(source, &["hostAliases"]).iter().enumerate() {
        fields::copy(alias, &format!("spec.hostAliases[{index}]"), HOST_ALIAS, issues);
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
    dns(cache, name, source, spec, issues);
}

/// Cluster DNS means the tenant's DNS. Without one, names of Services do not resolve, but external names do, through
/// the node's resolver. A tenant's pod never uses the host's cluster DNS.
fn dns(cache: &Cache, name: &Name, source: &Value, spec: &mut Map<String, Value>, issues: &mut FieldIssues) {
    let own = source.get("dnsConfig").filter(|config| !json::is_unset(config));
    let own = own.map(|config| fields::within(config, "spec.dnsConfig", DNS_CONFIG, issues));
    let policy = json::text(source, &["dnsPolicy"]).unwrap_or("ClusterFirst");
    let cluster_dns = cache
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
            spec.insert("dnsConfig".into(), own);
        }
        return;
    };
    let domain = &cache.tenant.cluster_domain;
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
            for item in json::items(&own, &[field]) {
                if !list.contains(item) {
                    list.push(item.clone());
                }
            }
        }
        for option in json::items(&own, &["options"]) {
            options.retain(|known| known.get("name") != option.get("name"));
            options.push(option.clone());
        }
        limit_dns(&mut nameservers, &mut searches, issues);
    }
    spec.insert("dnsPolicy".into(), "None".into());
    let config = json!({"nameservers": nameservers, "searches": searches, "options": options});
    spec.insert("dnsConfig".into(), config);
}

/// Most DNS servers and search domains of a pod, and most characters of all its search domains with the blanks between them.
const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARACTERS: usize = 2048;

/// Leaves out what a kubelet leaves out of merged lists: API servers reject a pod that names more. What the tenant's cluster adds comes first.
fn limit_dns(nameservers: &mut Vec<Value>, searches: &mut Vec<Value>, issues: &mut FieldIssues) {
    let mut characters = 0;
    let is_fitting = |search: &&Value| {
        characters += search.as_str().map_or(0, str::len) + 1;
        // After the last one there is no blank.
        characters <= MAX_SEARCH_CHARACTERS + 1
    };
    let fitting = searches.iter().take(MAX_SEARCHES).take_while(is_fitting).count();
    for (list, most, field) in [
        (nameservers, MAX_NAMESERVERS, "nameservers"),
        (searches, fitting, "searches"),
    ] {
        if list.len() > most {
            list.truncate(most);
            let why = format!(
                "with those of the cluster's DNS, which come first, there are too many: only {most} have an effect, as in any cluster"
            );
            issues.ignore(format!("spec.dnsConfig.{field}"), why);
        }
    }
}

/// The longest host name that a kubelet gives a pod.
const MAX_HOSTNAME: usize = 63;

/// The host name in the pod. The kubelet would make a full name from the host's namespace and domain, so a pod that
/// asks for its full name gets it as the host name; the same holds for a name with dots.
fn hostnames(cache: &Cache, name: &Name, source: &Value, spec: &mut Map<String, Value>, issues: &mut FieldIssues) {
    let text = |field: &str| json::filled(source, &[field]);
    let own = kernel_name(text("hostname").unwrap_or(&name.name));
    spec.insert("hostname".into(), own.replace('.', "-").into());
    let whole = match (text("hostnameOverride"), text("subdomain")) {
        (Some(whole), _) => whole.to_owned(),
        (None, Some(subdomain)) if source.get("setHostnameAsFQDN") == Some(&Value::Bool(true)) => {
            let domain = &cache.tenant.cluster_domain;
            format!("{own}.{subdomain}.{}.svc.{domain}", name.namespace)
        }
        (None, _) if own.contains('.') => own.to_owned(),
        _ => return,
    };
    if whole.len() > MAX_HOSTNAME && text("hostnameOverride").is_none() {
        let why = format!("{whole} has more than {MAX_HOSTNAME} characters, which is too long for a host name");
        issues.deny("spec.setHostnameAsFQDN", why);
    }
    spec.insert("hostnameOverride".into(), whole.into());
}

/// The host name that a kubelet makes of a name: its first 63 characters, without a dash or dot at the end.
fn kernel_name(name: &str) -> &str {
    let cut = name.floor_char_boundary(MAX_HOSTNAME);
    if cut < name.len() {
        name[..cut].trim_end_matches(['-', '.'])
    } else {
        name
    }
}

#[cfg(test)]
mod tests {
    use super::{FieldIssues, Value, kernel_name, limit_dns};

    #[test]
    fn host_names_are_the_kubelets() {
        assert_eq!(kernel_name("web-0"), "web-0");
        assert_eq!(kernel_name("a.b.c"), "a.b.c");
        assert_eq!(kernel_name(&format!("{}-x", "a".repeat(62))), "a".repeat(62));
    }

    #[test]
    fn of_too_many_dns_servers_and_search_domains_the_first_stay() {
        let texts = |count: usize, length: usize| -> Vec<Value> {
            (0..count).map(|number| format!("{number:0length$}").into()).collect()
        };
        let limited = |mut servers: Vec<Value>, mut domains: Vec<Value>| {
            let mut issues = FieldIssues::default();
            limit_dns(&mut servers, &mut domains, &mut issues);
            (servers.len(), domains.len(), issues.ignored.len())
        };
        assert_eq!(limited(texts(3, 7), texts(32, 63)), (3, 32, 0));
        assert_eq!(limited(texts(4, 7), texts(33, 7)), (3, 32, 2));
        assert_eq!(limited(texts(1, 7), texts(32, 64)), (1, 31, 1), "too many characters");
    }
}
