//! Checks of the fields of routes that are copied. A gateway makes one configuration of the routes of all tenants, and some
//! load none of it if one value is wrong: an expression that cannot be compiled, a port beyond 65535, a line break in a header.
//! The CRDs check some of that, but not every host has them in the version that does.
//!
//! | field | rule |
//! |---|---|
//! | lists | as long as the Gateway API allows. Of one that is longer nothing else is read |
//! | ports, weights, percentages, status codes | numbers within their range |
//! | `matches` | texts by [`edge_text`]: of the type `RegularExpression` only what every engine reads in the same way |
//! | header filters, redirects, rewrites, CORS | names, values, host names and paths by [`edge_text`], without line breaks; no header by which messages end |
//! | `timeouts`, `retry`, `sessionPersistence` | durations of the Gateway API |

use crate::{
    model::DeniedField,
    translation::{
        edge_text::{
            self, CORS, DURATION, EXPRESSION, GRPC_NAME, HEADER_VALUE, HOSTNAME, NAME, NEW_PATH, PATH, PATH_EXPRESSION,
            REQUEST_HEADER, RESPONSE_HEADER, SCHEME,
        },
        field_checks::{self, Check, FieldChecks},
        fields::FieldIssues,
    },
};
use serde_json::Value;

const PORT: Check = Check::Number(edge_text::PORTS.0, edge_text::PORTS.1);
/// Most parents of a route, and most entries in its status.
pub const MAX_PARENTS: usize = 32;
/// Kind of the routes whose matches name a method of a service.
const GRPC_ROUTE: &str = "GRPCRoute";

/// Sizes and numbers. A list comes before those within it.
pub static NUMBERS: FieldChecks = &[
    ("hostnames", Check::Items(16)),
    ("parentRefs", Check::Items(MAX_PARENTS)),
    ("parentRefs[].port", PORT),
    ("rules", Check::Items(16)),
    ("rules[].matches", Check::Items(64)),
    ("rules[].matches[].headers", Check::Items(16)),
    ("rules[].matches[].queryParams", Check::Items(16)),
    ("rules[].filters", Check::Items(16)),
    ("rules[].backendRefs", Check::Items(16)),
    ("rules[].backendRefs[].filters", Check::Items(16)),
    ("rules[].backendRefs[].port", PORT),
    ("rules[].backendRefs[].weight", Check::Number(0, 1_000_000)),
    ("rules[].retry.attempts", Check::Number(0, 100)),
    ("rules[].retry.codes", Check::Items(200)),
    ("rules[].retry.codes[]", Check::Number(400, 599)),
];

/// What decides whether a route is for a request, and times.
pub static MATCHES: FieldChecks = &[
    ("hostnames[]", Check::Text(&HOSTNAME)),
    (
        "rules[].matches[].path",
        Check::Match {
            fields: &["value"],
            plain: &PATH,
            expression: &PATH_EXPRESSION,
        },
    ),
    ("rules[].matches[].headers[].name", Check::Text(&NAME)),
    (
        "rules[].matches[].headers[]",
        Check::Match {
            fields: &["value"],
            plain: &HEADER_VALUE,
            expression: &EXPRESSION,
        },
    ),
    ("rules[].matches[].queryParams[].name", Check::Text(&NAME)),
    (
        "rules[].matches[].queryParams[]",
        Check::Match {
            fields: &["value"],
            plain: &HEADER_VALUE,
            expression: &EXPRESSION,
        },
    ),
    ("rules[].timeouts.request", Check::Text(&DURATION)),
    ("rules[].timeouts.backendRequest", Check::Text(&DURATION)),
    ("rules[].retry.backoff", Check::Text(&DURATION)),
    ("rules[].sessionPersistence.sessionName", Check::Text(&NAME)),
    ("rules[].sessionPersistence.absoluteTimeout", Check::Text(&DURATION)),
    ("rules[].sessionPersistence.idleTimeout", Check::Text(&DURATION)),
];

/// The same for calls of methods.
pub static GRPC_MATCHES: FieldChecks = &[(
    "rules[].matches[].method",
    Check::Match {
        fields: &["service", "method"],
        plain: &GRPC_NAME,
        expression: &EXPRESSION,
    },
)];

/// Lists of filters.
pub const FILTER_LISTS: &[&str] = &["rules[].filters[].", "rules[].backendRefs[].filters[]."];

/// Filters that change requests and responses, below one of [`FILTER_LISTS`].
pub static FILTERS: FieldChecks = &[
    ("requestHeaderModifier.set", Check::Items(16)),
    ("requestHeaderModifier.set[].name", Check::Text(&REQUEST_HEADER)),
    ("requestHeaderModifier.set[].value", Check::Text(&HEADER_VALUE)),
    ("requestHeaderModifier.add", Check::Items(16)),
    ("requestHeaderModifier.add[].name", Check::Text(&REQUEST_HEADER)),
    ("requestHeaderModifier.add[].value", Check::Text(&HEADER_VALUE)),
    ("requestHeaderModifier.remove", Check::Items(16)),
    ("requestHeaderModifier.remove[]", Check::Text(&REQUEST_HEADER)),
    ("responseHeaderModifier.set", Check::Items(16)),
    ("responseHeaderModifier.set[].name", Check::Text(&RESPONSE_HEADER)),
    ("responseHeaderModifier.set[].value", Check::Text(&HEADER_VALUE)),
    ("responseHeaderModifier.add", Check::Items(16)),
    ("responseHeaderModifier.add[].name", Check::Text(&RESPONSE_HEADER)),
    ("responseHeaderModifier.add[].value", Check::Text(&HEADER_VALUE)),
    ("responseHeaderModifier.remove", Check::Items(16)),
    ("responseHeaderModifier.remove[]", Check::Text(&RESPONSE_HEADER)),
];

/// Filters that lead requests elsewhere, below one of [`FILTER_LISTS`].
pub static REDIRECTS: FieldChecks = &[
    ("requestRedirect.scheme", Check::Text(&SCHEME)),
    ("requestRedirect.hostname", Check::Text(&HOSTNAME)),
    ("requestRedirect.port", PORT),
    ("requestRedirect.statusCode", Check::Number(301, 308)),
    ("requestRedirect.path.replaceFullPath", Check::Text(&NEW_PATH)),
    ("requestRedirect.path.replacePrefixMatch", Check::Text(&NEW_PATH)),
    ("urlRewrite.hostname", Check::Text(&HOSTNAME)),
    ("urlRewrite.path.replaceFullPath", Check::Text(&NEW_PATH)),
    ("urlRewrite.path.replacePrefixMatch", Check::Text(&NEW_PATH)),
    ("requestMirror.backendRef.port", PORT),
    ("requestMirror.percent", Check::Number(0, 100)),
    ("requestMirror.fraction.numerator", Check::Number(0, 1_000_000)),
    ("requestMirror.fraction.denominator", Check::Number(1, 1_000_000)),
    ("cors.allowOrigins", Check::Items(64)),
    ("cors.allowOrigins[]", Check::Text(&CORS)),
    ("cors.allowMethods", Check::Items(16)),
    ("cors.allowMethods[]", Check::Text(&CORS)),
    ("cors.allowHeaders", Check::Items(64)),
    ("cors.allowHeaders[]", Check::Text(&CORS)),
    ("cors.exposeHeaders", Check::Items(64)),
    ("cors.exposeHeaders[]", Check::Text(&CORS)),
    ("cors.maxAge", Check::Number(0, 999_999_999)),
];

/// Checks how long the lists of a route are, before anything is made of their entries. A definition of the tenant's own need not set any limit.
///
/// # Errors
/// Those that are too long.
pub fn check_lists(spec: &Value) -> Result<(), Vec<DeniedField>> {
    let mut issues = FieldIssues::default();
    let mut run = |prefix: &str, checks| field_checks::check_lists(spec, "spec", prefix, checks, &mut issues);
    run("", NUMBERS);
    for prefix in FILTER_LISTS {
        run(prefix, FILTERS);
        run(prefix, REDIRECTS);
    }
    if issues.denied.is_empty() {
        Ok(())
    } else {
        Err(issues.denied)
    }
}

/// Denies fields of a route of this kind that a gateway may not be able to load.
pub fn check(kind: &str, spec: &Value, issues: &mut FieldIssues) {
    let mut run = |prefix: &str, checks| field_checks::check(spec, "spec", prefix, checks, issues);
    run("", NUMBERS);
    run("", MATCHES);
    if kind == GRPC_ROUTE {
        run("", GRPC_MATCHES);
    }
    for prefix in FILTER_LISTS {
        run(prefix, FILTERS);
        run(prefix, REDIRECTS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn denied(kind: &str, spec: &Value) -> Vec<String> {
        let mut issues = FieldIssues::default();
        check(kind, spec, &mut issues);
        let denied = issues.denied.into_iter();
        denied
            .map(|denied| denied.field.trim_start_matches("spec.").to_owned())
            .collect()
    }

    fn in_rule(rule: &Value) -> Vec<String> {
        denied("HTTPRoute", &json!({ "rules": [rule] }))
    }

    #[test]
    fn routes_as_teams_write_them_pass() {
        let spec = json!({"hostnames": ["*.example.com"], "parentRefs": [{"name": "public", "port": 443}], "rules": [{
            "matches": [
                {"path": {"type": "PathPrefix", "value": "/api"}, "method": "GET"},
                {"path": {"type": "RegularExpression", "value": "/users/[0-9]+"},
                 "headers": [{"name": "X-Version", "value": "v1; q=1"}, {"type": "RegularExpression", "name": "a", "value": "^v[0-9]+$"}],
                 "queryParams": [{"name": "page", "value": "1"}]}],
            "timeouts": {"request": "10s", "backendRequest": "500ms"},
            "retry": {"codes": [503], "attempts": 2, "backoff": "100ms"},
            "sessionPersistence": {"sessionName": "s", "absoluteTimeout": "1h"},
            "filters": [
                {"type": "ResponseHeaderModifier", "responseHeaderModifier": {
                    "set": [{"name": "Strict-Transport-Security", "value": "max-age=31536000; includeSubDomains"}], "remove": ["Server"]}},
                {"type": "RequestRedirect", "requestRedirect": {"scheme": "https", "port": 443, "statusCode": 301}},
                {"type": "URLRewrite", "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": ""}}},
                {"type": "CORS", "cors": {"allowOrigins": ["https://*.example.com"], "allowMethods": ["GET", "*"], "maxAge": 600}}],
            "backendRefs": [{"name": "a", "port": 80, "weight": 0}]}]});
        assert_eq!(denied("HTTPRoute", &spec), Vec::<String>::new());
        let call = json!({"rules": [{"matches": [{"method": {"service": "shop.v1.Cart", "method": "Add"}}]}]});
        assert_eq!(denied(GRPC_ROUTE, &call), Vec::<String>::new());
    }

    #[test]
    fn matches_that_could_break_a_gateway_are_denied() {
        for (entry, field) in [
            (
                json!({"path": {"type": "RegularExpression", "value": "/(a"}}),
                "path.value",
            ),
            (
                json!({"path": {"type": "RegularExpression", "value": "/(a+)+"}}),
                "path.value",
            ),
            (json!({"path": {"type": "PathPrefix", "value": "/a\nb"}}), "path.value"),
            (json!({"headers": [{"name": "a b", "value": "v"}]}), "headers[0].name"),
            (
                json!({"headers": [{"name": "a", "value": "v\r\nb: c"}]}),
                "headers[0].value",
            ),
            (
                json!({"headers": [{"type": "RegularExpression", "name": "a", "value": "["}]}),
                "headers[0].value",
            ),
            (
                json!({"queryParams": [{"type": "RegularExpression", "name": "a", "value": "("}]}),
                "queryParams[0].value",
            ),
        ] {
            let denied = in_rule(&json!({ "matches": [entry] }));
            assert_eq!(denied, [format!("rules[0].matches[0].{field}")], "{entry}");
        }
        let call =
            json!({"rules": [{"matches": [{"method": {"type": "RegularExpression", "service": "(", "method": "a"}}]}]});
        assert_eq!(denied(GRPC_ROUTE, &call), ["rules[0].matches[0].method.service"]);
    }

    #[test]
    fn filters_that_could_break_a_gateway_are_denied() {
        for (filter, field) in [
            (
                json!({"requestHeaderModifier": {"set": [{"name": "a\r", "value": "b"}]}}),
                "requestHeaderModifier.set[0].name",
            ),
            (
                json!({"requestHeaderModifier": {"add": [{"name": "a", "value": "b\r\nc: d"}]}}),
                "requestHeaderModifier.add[0].value",
            ),
            (
                json!({"responseHeaderModifier": {"set": [{"name": "a", "value": "100%"}]}}),
                "responseHeaderModifier.set[0].value",
            ),
            (
                json!({"responseHeaderModifier": {"remove": [""]}}),
                "responseHeaderModifier.remove[0]",
            ),
            (
                json!({"requestHeaderModifier": {"set": [{"name": "Content-Length", "value": "0"}]}}),
                "requestHeaderModifier.set[0].name",
            ),
            (
                json!({"requestHeaderModifier": {"add": [{"name": "transfer-encoding", "value": "chunked"}]}}),
                "requestHeaderModifier.add[0].name",
            ),
            (
                json!({"requestHeaderModifier": {"remove": ["HOST"]}}),
                "requestHeaderModifier.remove[0]",
            ),
            (
                json!({"responseHeaderModifier": {"add": [{"name": "content-length", "value": "0"}]}}),
                "responseHeaderModifier.add[0].name",
            ),
            (
                json!({"responseHeaderModifier": {"remove": ["Connection"]}}),
                "responseHeaderModifier.remove[0]",
            ),
            (json!({"requestRedirect": {"port": 70_000}}), "requestRedirect.port"),
            (
                json!({"requestRedirect": {"hostname": "a b"}}),
                "requestRedirect.hostname",
            ),
            (
                json!({"requestRedirect": {"scheme": "javascript"}}),
                "requestRedirect.scheme",
            ),
            (
                json!({"requestRedirect": {"path": {"replaceFullPath": "/a\nb"}}}),
                "requestRedirect.path.replaceFullPath",
            ),
            (
                json!({"urlRewrite": {"path": {"replacePrefixMatch": "/$1"}}}),
                "urlRewrite.path.replacePrefixMatch",
            ),
            (json!({"requestMirror": {"percent": 101}}), "requestMirror.percent"),
            (
                json!({"requestMirror": {"fraction": {"numerator": 1, "denominator": 0}}}),
                "requestMirror.fraction.denominator",
            ),
            (
                json!({"cors": {"allowOrigins": ["https://a\r\nb"]}}),
                "cors.allowOrigins[0]",
            ),
        ] {
            assert_eq!(
                in_rule(&json!({ "filters": [filter] })),
                [format!("rules[0].filters[0].{field}")]
            );
            let of_backend = in_rule(&json!({"backendRefs": [{ "filters": [filter] }]}));
            assert_eq!(of_backend, [format!("rules[0].backendRefs[0].filters[0].{field}")]);
        }
    }

    #[test]
    fn numbers_and_sizes_out_of_range_are_denied() {
        for (rule, field) in [
            (json!({"backendRefs": [{"port": 0}]}), "backendRefs[0].port"),
            (json!({"backendRefs": [{"port": 65_536}]}), "backendRefs[0].port"),
            (json!({"backendRefs": [{"weight": -1}]}), "backendRefs[0].weight"),
            (json!({"backendRefs": vec![json!({}); 17]}), "backendRefs"),
            (json!({"matches": vec![json!({}); 65]}), "matches"),
            (json!({"timeouts": {"request": "10"}}), "timeouts.request"),
            (
                json!({"timeouts": {"backendRequest": "-1s"}}),
                "timeouts.backendRequest",
            ),
            (json!({"retry": {"attempts": 1_000_000}}), "retry.attempts"),
            (json!({"retry": {"codes": [200]}}), "retry.codes[0]"),
        ] {
            assert_eq!(in_rule(&rule), [format!("rules[0].{field}")]);
        }
        assert_eq!(denied("TLSRoute", &json!({"rules": vec![json!({}); 17]})), ["rules"]);
        assert_eq!(
            denied("HTTPRoute", &json!({"parentRefs": [{"port": 0}]})),
            ["parentRefs[0].port"]
        );
    }
}
