//! Ingresses and routes: classes, Gateways and host names that are offered, and no instructions to shared controllers.

use super::{Place, Requests, Rule, WRITES, Wall, Who, cel, rule};
use berth_api::policy_annotations;
use berth_sync_rules::kinds::ingress::annotations;

pub(super) fn walls() -> Vec<Wall> {
    vec![ingresses(), routes()]
}

fn variables() -> Vec<(&'static str, String)> {
    vec![
        cel::allowed("hostnames", policy_annotations::HOSTNAMES),
        cel::allowed("annotations", policy_annotations::INGRESS_ANNOTATIONS),
    ]
}

fn ingresses() -> Wall {
    let mut variables = variables();
    variables.push(cel::allowed("classes", policy_annotations::INGRESS_CLASSES));
    variables.push(("rules", "object.spec.?rules.orValue([])".into()));
    Wall {
        name: "berth-ingresses",
        about: "Ingresses of a tenant serve host names that it was given, by classes that are offered to it.",
        place: Place::Workloads,
        who: Who::Tenant,
        requests: vec![Requests {
            group: "networking.k8s.io",
            version: "v1",
            resources: &["ingresses"],
            operations: WRITES,
        }],
        variables,
        rules: vec![
            rule(
                format!(
                    "has(object.spec.ingressClassName) && {}",
                    cel::contains("classes", "object.spec.ingressClassName")
                ),
                "spec.ingressClassName must be one that the tenant's class lists",
            ),
            rule(
                format!(
                    "'*' in variables.hostnames || (!has(object.spec.defaultBackend) && \
                     variables.rules.all(r, {}))",
                    is_served("r.?host.orValue('')")
                ),
                "spec.rules[].host must be a name that the tenant's class lists",
            ),
            rule(
                format!(
                    "'*' in variables.hostnames || object.spec.?tls.orValue([]).all(t, t.?hosts.orValue([]).all(h, {}))",
                    is_served("h")
                ),
                "spec.tls[].hosts must be names that the tenant's class lists",
            ),
            instructions(),
        ],
    }
}

fn routes() -> Wall {
    let mut variables = variables();
    variables.push(cel::allowed("gateways", policy_annotations::GATEWAYS));
    Wall {
        name: "berth-routes",
        about: "Routes of a tenant are attached to Gateways that are offered to it, for host names that it was given.",
        place: Place::Workloads,
        who: Who::Tenant,
        requests: vec![Requests {
            group: "gateway.networking.k8s.io",
            version: "v1",
            resources: &["httproutes", "grpcroutes", "tlsroutes"],
            operations: WRITES,
        }],
        variables,
        rules: vec![
            rule(
                "object.spec.?parentRefs.orValue([]).all(p, p.?kind.orValue('Gateway') == 'Gateway' && \
                 p.?group.orValue('gateway.networking.k8s.io') == 'gateway.networking.k8s.io' && \
                 (p.?namespace.orValue(request.namespace) + '/' + p.name) in variables.gateways)",
                "spec.parentRefs must be Gateways that the tenant's class lists",
            ),
            rule(
                "!has(object.spec.useDefaultGateways) || object.spec.useDefaultGateways == 'None'",
                "spec.useDefaultGateways may not be set: name the Gateway in parentRefs",
            ),
            rule(
                format!(
                    "'*' in variables.hostnames || (object.spec.?hostnames.orValue([]).size() > 0 && \
                     object.spec.hostnames.all(h, {}))",
                    is_served("h")
                ),
                "spec.hostnames must be names that the tenant's class lists",
            ),
            instructions(),
        ],
    }
}

/// Whether a host name is one of the tenant's, as the syncer's `hostnames::serves`.
fn is_served(host: &str) -> String {
    format!(
        "({host}.lowerAscii() in variables.hostnames || variables.hostnames.exists(p, p.startsWith('*.') && \
         {host}.lowerAscii().endsWith(p.substring(1)) && {host}.size() >= p.size()))"
    )
}

/// Settings of an Ingress alone pass if they are words, numbers and paths: controllers have been made to read anything else
/// as configuration.
fn instructions() -> Rule {
    let controllers = cel::in_domains(annotations::CONTROLLERS.iter().copied());
    let settings = cel::list(annotations::SETTINGS.iter().map(|(name, _)| *name));
    let nginx = annotations::NGINX;
    rule(
        format!(
            "object.metadata.?annotations.orValue({{}}).all(k, \
             !(k.matches('{controllers}') || k.startsWith('kubernetes.io/ingress.')) || \
             k in variables.annotations || (k.split('/')[0] + '/*') in variables.annotations || \
             (k.startsWith('{nginx}') && k.substring({}) in {settings} && \
             object.metadata.annotations[k].matches('^[A-Za-z0-9._:/*, $-]*$')))",
            nginx.len()
        ),
        "metadata.annotations may hold no instructions to the controller that the tenant's class does not list",
    )
}
