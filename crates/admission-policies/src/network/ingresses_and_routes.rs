//! Ingresses and routes: only classes, Gateways and host names that the tenant's class lists, no annotations that instruct
//! controllers which tenants share, and no values that such a controller may not be able to load. The checks of values are
//! those of translation.

use crate::{AdmissionPolicy, ResourceRule, Scope, Subjects, Validation, WRITES, cel, field_checks, validation};
use berth_api::policy_annotations;
use berth_sync_rules::{
    kinds::{
        gateway::{checks, filters},
        ingress::{paths, settings},
    },
    translation::{edge_text, pattern::Pattern},
};
use std::collections::BTreeMap;

pub(crate) fn build_policies() -> Vec<AdmissionPolicy> {
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
    variables.push((
        "paths",
        "variables.rules.map(r, r.?http.?paths.orValue([]).size()).sum()".into(),
    ));
    variables.push((
        "hasExpressions",
        format!(
            "variables.annotations[?'{}'].orValue('') == 'true' || '{}' in variables.annotations",
            settings::USE_REGEX,
            settings::REWRITE_TARGET
        ),
    ));
    AdmissionPolicy {
        name: "berth-ingresses",
        description: "Ingresses of a tenant use only IngressClasses and host names that its class lists, and paths that every controller can load.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::TenantIdentities,
        parameters: None,
        conditions: Vec::new(),
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
                    "'*' in variables.hostnames || object.spec.?tls.orValue([]).all(t, t.?hosts.orValue([]).size() > 0 && t.hosts.all(h, {}))",
                    is_allowed_hostname("h")
                ),
                "spec.tls[].hosts must be names that the tenant's class lists: without names, a certificate would be for every name",
            ),
            validation(
                "(!has(object.spec.defaultBackend) || !has(object.spec.defaultBackend.resource)) && \
                 variables.rules.all(r, r.?http.?paths.orValue([]).all(p, !has(p.backend.resource)))",
                "backends must be Services: spec.defaultBackend.resource and backend.resource of paths may not be set",
            ),
            validate_sizes(),
            validate_paths(),
            validate_controller_annotations(),
        ],
    }
}

fn validate_sizes() -> Validation {
    validation(
        format!(
            "variables.paths <= {} && {}",
            paths::MAX_ENTRIES,
            field_checks::all_pass("object.spec", &[""], paths::CHECKS)
        ),
        "spec may hold at most 100 rules, 100 paths in all rules, 100 entries of tls, and ports from 1 to 65535",
    )
}

/// Too many paths are rejected by [`validate_sizes`]: here they could only cost too much.
fn validate_paths() -> Validation {
    validation(
        format!(
            "variables.paths > {} || variables.rules.all(r, r.?http.?paths.orValue([]).all(p, p.?path.orValue('') == '' || \
             (p.?pathType.orValue('') == '{}' && variables.hasExpressions ? {} : {})))",
            paths::MAX_ENTRIES,
            paths::EXPRESSION_TYPE,
            field_checks::matches("p.path", &edge_text::PATH_EXPRESSION),
            field_checks::matches("p.path", &edge_text::PATH)
        ),
        "spec.rules[].http.paths[].path must be a plain path, or a plain regular expression if an annotation makes it one",
    )
}

fn build_route_policy() -> AdmissionPolicy {
    let mut variables = common_variables();
    variables.push(cel::allowed_names_variable("gateways", policy_annotations::GATEWAYS));
    AdmissionPolicy {
        name: "berth-routes",
        description: "Routes of a tenant attach only to Gateways, and for host names, that its class lists, and hold only values that every gateway can load.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::TenantIdentities,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: "gateway.networking.k8s.io",
            // Hosts with an older Gateway API serve TLSRoutes in alpha versions only. What is validated is the same in all versions.
            version: "*",
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
            validate_filters(),
            validate_backends(),
            validation(
                field_checks::all_pass("object.spec", &[""], checks::NUMBERS),
                "numbers of a route (entries of lists, ports, weights, status codes) must be in the ranges of the Gateway API",
            ),
            validation(
                format!(
                    "{} && (request.resource.resource != 'grpcroutes' || {})",
                    field_checks::all_pass("object.spec", &[""], checks::MATCHES),
                    field_checks::all_pass("object.spec", &[""], checks::GRPC_MATCHES)
                ),
                "matches, hostnames and times of a route must be plain texts and plain regular expressions",
            ),
            validation(
                field_checks::all_pass("object.spec", checks::FILTER_LISTS, checks::FILTERS),
                "header filters of a route must be names and printable values, without line breaks and variables; headers that say where a \
                 message ends or what becomes of its connection are the gateway's",
            ),
            validation(
                field_checks::all_pass("object.spec", checks::FILTER_LISTS, checks::REDIRECTS),
                "redirects, rewrites, mirrors and CORS of a route must be plain paths and names, with numbers within their ranges",
            ),
            validate_controller_annotations(),
        ],
    }
}

/// What `of` says about each filter `f` of the rules and backends of a route.
fn of_filters(of: &str) -> String {
    let all = |parent: &str| format!("{}.all(f, {of})", cel::list(parent, "filters"));
    format!(
        "{}.all(r, {} && {}.all(b, {}))",
        cel::list("object.spec", "rules"),
        all("r"),
        cel::list("r", "backendRefs"),
        all("b")
    )
}

/// Of filters, only those that translation copies: others make the gateway, which is shared with others, call what they name, or instruct it.
fn validate_filters() -> Validation {
    let known = cel::string_list(filters::allowed());
    validation(
        of_filters(&format!("dyn(f).all(k, k in {known})")),
        "filters of a route may be header modifiers, redirects, rewrites, mirrors and CORS: others instruct a gateway that tenants share",
    )
}

/// Backends are Services of this namespace.
fn validate_backends() -> Validation {
    let is_service = |backend: &str| {
        format!(
            "({backend}.?kind.orValue('Service') == 'Service' && {backend}.?group.orValue('') == '' && \
             {backend}.?namespace.orValue(request.namespace) == request.namespace)"
        )
    };
    validation(
        format!(
            "{}.all(r, {}.all(b, {})) && {}",
            cel::list("object.spec", "rules"),
            cel::list("r", "backendRefs"),
            is_service("b"),
            of_filters(&format!(
                "!has(f.requestMirror) || {}",
                is_service("f.requestMirror.?backendRef")
            ))
        ),
        "backends of a route must be Services in the same namespace: kind, group and namespace may not say otherwise",
    )
}

/// Whether the tenant's class lists a host name, as the syncer's `hostnames::serves` decides it.
fn is_allowed_hostname(host: &str) -> String {
    format!(
        "({host}.lowerAscii() in variables.hostnames || variables.hostnames.exists(p, p.startsWith('*.') && \
         {host}.lowerAscii().endsWith(p.substring(1)) && {host}.size() >= p.size()))"
    )
}

/// Settings that affect one Ingress only are allowed with the values that translation allows: others have been used to inject
/// configuration into controllers, or to stop them from loading any.
fn validate_controller_annotations() -> Validation {
    let mut by_values: BTreeMap<&str, (&Pattern, Vec<&str>)> = BTreeMap::new();
    for &(name, pattern) in settings::SETTINGS {
        let (_, names) = by_values
            .entry(pattern.expression)
            .or_insert_with(|| (pattern, Vec::new()));
        names.push(name);
    }
    let allowed = by_values.into_values().map(|(pattern, names)| {
        let names = cel::string_list(names);
        format!(
            "(k.substring({}) in {names} && {})",
            settings::NGINX.len(),
            field_checks::matches("variables.annotations[k]", pattern)
        )
    });
    validation(
        format!(
            "variables.annotations.all(k, {} || (k.startsWith('{}') && ({})))",
            cel::entry_allowed(("annotations", "oldAnnotations"), "listed"),
            settings::NGINX,
            allowed.collect::<Vec<_>>().join(" || ")
        ),
        "metadata.annotations may hold only instructions to the controller that the tenant's class lists, with values that it can load",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_allowed_with_the_values_of_translation() {
        let annotations = validate_controller_annotations().expression;
        for (name, pattern) in settings::SETTINGS {
            assert!(annotations.contains(&format!("'{name}'")), "{name}");
            assert!(annotations.contains(&format!("r'{}'", pattern.expression)), "{name}");
        }
    }

    #[test]
    fn filters_and_backends_of_routes_are_those_of_translation() {
        let filters = validate_filters().expression;
        for known in [
            "requestHeaderModifier",
            "requestMirror",
            "requestRedirect",
            "urlRewrite",
            "cors",
            "type",
        ] {
            assert!(filters.contains(&format!("'{known}'")), "{filters}");
        }
        for denied in ["externalAuth", "extensionRef"] {
            assert!(!filters.contains(denied), "{filters}");
        }
        let backends = validate_backends().expression;
        for backend in [
            "b.?kind",
            "b.?namespace",
            "f.requestMirror.?backendRef.?kind",
            "f.requestMirror.?backendRef.?namespace",
        ] {
            assert!(backends.contains(backend), "{backends}");
        }
        let validations = build_route_policy().validations;
        assert!(validations.contains(&validate_filters()) && validations.contains(&validate_backends()));
    }

    #[test]
    fn headers_of_filters_are_those_of_translation() {
        let validations = build_route_policy().validations;
        for pattern in [&edge_text::REQUEST_HEADER, &edge_text::RESPONSE_HEADER] {
            for excluded in pattern.excluded {
                assert!(excluded.contains("[Cc][Oo][Nn][Tt][Ee][Nn][Tt]-[Ll][Ee][Nn][Gg][Tt][Hh]"));
                let denies = |validation: &Validation| validation.expression.contains(&format!("r'{excluded}'"));
                assert!(validations.iter().any(denies), "{excluded}");
            }
        }
    }

    #[test]
    fn names_that_mean_every_name_are_not_those_of_an_empty_list() {
        let (_, hostnames) = cel::allowed_names_variable("hostnames", policy_annotations::HOSTNAMES);
        assert!(hostnames.ends_with(".split(',').filter(n, n != '')"), "{hostnames}");
        let validations = build_ingress_policy().validations;
        assert!(
            validations
                .iter()
                .any(|validation| validation.expression.contains("t.?hosts.orValue([]).size() > 0"))
        );
    }

    #[test]
    fn routes_of_every_version_are_validated() {
        let versions: Vec<&str> = build_route_policy()
            .resource_rules
            .iter()
            .map(|rule| rule.version)
            .collect();
        assert_eq!(versions, ["*"]);
    }

    #[test]
    fn messages_name_the_limits_of_translation() {
        let limit = format!("at most {} rules", paths::MAX_ENTRIES);
        assert!(validate_sizes().message.contains(&limit));
    }

    #[test]
    fn paths_and_matches_are_validated_as_translation_does() {
        let paths = validate_paths().expression;
        for pattern in [&edge_text::PATH, &edge_text::PATH_EXPRESSION] {
            assert!(paths.contains(&field_checks::matches("p.path", pattern)));
        }
        let routes = build_route_policy().validations;
        for (steps, _) in checks::NUMBERS
            .iter()
            .chain(checks::MATCHES)
            .chain(checks::GRPC_MATCHES)
        {
            let last = steps.rsplit('.').next().unwrap().trim_end_matches("[]");
            assert!(
                routes
                    .iter()
                    .any(|validation| validation.expression.contains(&format!(".?{last}"))),
                "{steps}"
            );
        }
    }
}
