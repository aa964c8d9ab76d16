//! Ingresses and routes: only classes, Gateways and host names that the tenant's class lists, and no annotations that
//! instruct controllers which tenants share.

use super::{AdmissionPolicy, ResourceRule, Scope, Subjects, Validation, WRITES, cel, validation};
use berth_api::policy_annotations;
use berth_sync_rules::kinds::ingress::annotations;

pub(super) fn build_policies() -> Vec<AdmissionPolicy> {
    vec![build_ingress_policy(), build_route_policy()]
}

fn common_variables() -> Vec<(&'static str, String)> {
    let mut variables = Vec::from(cel::metadata_variables());
    variables.extend([
        cel::allowed_names_variable("hostnames", policy_annotations::HOSTNAMES),
        cel::allowed_names_variable("listed", policy_annotations::INGRESS_ANNOTATIONS),
    ]);
    variables
}

fn build_ingress_policy() -> AdmissionPolicy {
    let mut variables = common_variables();
    variables.push(cel::allowed_names_variable(
        "classes",
        policy_annotations::INGRESS_CLASSES,
    ));
    variables.push(("rules", "object.spec.?rules.orValue([])".into()));
    AdmissionPolicy {
        name: "berth-ingresses",
        description: "Ingresses of a tenant use only IngressClasses and host names that its class lists.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::TenantIdentities,
        resource_rules: vec![ResourceRule {
            group: "networking.k8s.io",
            version: "v1",
            resources: &["ingresses"],
            operations: WRITES,
        }],
        variables,
        validations: vec![
            validation(
                format!(
                    "has(object.spec.ingressClassName) && {}",
                    cel::list_allows("classes", "object.spec.ingressClassName")
                ),
                "spec.ingressClassName must be one that the tenant's class lists",
            ),
            validation(
                format!(
                    "'*' in variables.hostnames || (!has(object.spec.defaultBackend) && \
                     variables.rules.all(r, {}))",
                    is_allowed_hostname("r.?host.orValue('')")
                ),
                "spec.rules[].host must be a name that the tenant's class lists",
            ),
            validation(
                format!(
                    "'*' in variables.hostnames || object.spec.?tls.orValue([]).all(t, t.?hosts.orValue([]).all(h, {}))",
                    is_allowed_hostname("h")
                ),
                "spec.tls[].hosts must be names that the tenant's class lists",
            ),
            validate_controller_annotations(),
        ],
    }
}

fn build_route_policy() -> AdmissionPolicy {
    let mut variables = common_variables();
    variables.push(cel::allowed_names_variable("gateways", policy_annotations::GATEWAYS));
    AdmissionPolicy {
        name: "berth-routes",
        description: "Routes of a tenant attach only to Gateways, and for host names, that its class lists.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::TenantIdentities,
        resource_rules: vec![ResourceRule {
            group: "gateway.networking.k8s.io",
            version: "v1",
            resources: &["httproutes", "grpcroutes", "tlsroutes"],
            operations: WRITES,
        }],
        variables,
        validations: vec![
            validation(
                "object.spec.?parentRefs.orValue([]).all(p, p.?kind.orValue('Gateway') == 'Gateway' && \
                 p.?group.orValue('gateway.networking.k8s.io') == 'gateway.networking.k8s.io' && \
                 (p.?namespace.orValue(request.namespace) + '/' + p.name) in variables.gateways)",
                "spec.parentRefs must be Gateways that the tenant's class lists",
            ),
            validation(
                "!has(object.spec.useDefaultGateways) || object.spec.useDefaultGateways == 'None'",
                "spec.useDefaultGateways may not be set: name the Gateway in parentRefs",
            ),
            validation(
                format!(
                    "'*' in variables.hostnames || (object.spec.?hostnames.orValue([]).size() > 0 && \
                     object.spec.hostnames.all(h, {}))",
                    is_allowed_hostname("h")
                ),
                "spec.hostnames must be names that the tenant's class lists",
            ),
            validate_controller_annotations(),
        ],
    }
}

/// Whether the tenant's class lists a host name, as the syncer's `hostnames::serves` decides it.
fn is_allowed_hostname(host: &str) -> String {
    format!(
        "({host}.lowerAscii() in variables.hostnames || variables.hostnames.exists(p, p.startsWith('*.') && \
         {host}.lowerAscii().endsWith(p.substring(1)) && {host}.size() >= p.size()))"
    )
}

/// Settings that affect one Ingress only are allowed if their values are words, numbers and paths: other values have been
/// used to inject configuration into controllers.
fn validate_controller_annotations() -> Validation {
    let settings = cel::string_list(annotations::SETTINGS.iter().map(|(name, _)| *name));
    let nginx = annotations::NGINX;
    validation(
        format!(
            "variables.annotations.all(k, {} || \
             (k.startsWith('{nginx}') && k.substring({}) in {settings} && \
             variables.annotations[k].matches('^[A-Za-z0-9._:/*, $-]*$')))",
            cel::annotation_allowed("listed"),
            nginx.len()
        ),
        "metadata.annotations may hold only instructions to the controller that the tenant's class lists",
    )
}
