mod too_many;

use super::*;
use crate::{
    model::{
        Cache, DesiredState, Direction, KindId, Observation, TenantWrite, ToHost, Translated,
        resource::{Name, Side, host_name},
        store::Stored,
        tenant::test_tenant,
    },
    registry::{self, kind},
    translation::backend::nowhere_at_all,
};
use berth_api::sync_policy::GatewayReference;
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc};

fn cache() -> Cache {
    let mut tenant = test_tenant();
    let policy = Arc::make_mut(&mut tenant.policy);
    policy.ingress.hostnames = vec!["*.team.example.com".into()];
    policy.ingress.gateway_classes = vec!["shared".into()];
    policy.ingress.gateways = [("infra", "public"), ("edge", "public"), ("infra", "internal")]
        .map(|(namespace, name)| GatewayReference {
            namespace: namespace.into(),
            name: name.into(),
        })
        .into();
    let cache = registry::new_cache(tenant);
    let put = |id: KindId, namespace: &str, name: &str, spec: Value| {
        let object = json!({"metadata": {"name": name, "namespace": namespace, "resourceVersion": "1"}, "spec": spec});
        cache
            .stores
            .tenant(id)
            .written(Name::new(namespace, name), Stored::new(&object));
    };
    put(KindId::Gateway, "shop", "own", json!({}));
    put(
        KindId::ReferenceGrant,
        "lab",
        "shop",
        json!({"from": [{"group": GROUP, "kind": "HTTPRoute", "namespace": "shop"}], "to": [{"group": "", "kind": "Service", "name": "models"}]}),
    );
    put(
        KindId::Service,
        "shop",
        "outside",
        json!({"type": "ExternalName", "externalName": "a.example.com"}),
    );
    cache
}

fn name() -> Name {
    Name::new("shop", "web")
}

fn rules(id: KindId) -> &'static dyn ToHost {
    kind(id).rules_to_host().unwrap()
}

fn route() -> Value {
    json!({"metadata": {"name": "web", "namespace": "shop", "generation": 4, "labels": {"app": "web"}}, "spec": {
        "parentRefs": [{"name": "public", "namespace": "gateways", "sectionName": "https"}, {"name": "own"},
            {"group": "", "kind": "Service", "name": "web"}],
        "hostnames": ["app.team.example.com"],
        "rules": [{
            "name": "all", "matches": [{"path": {"type": "PathPrefix", "value": "/"}}], "timeouts": {"request": "10s"},
            "filters": [
                {"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "x", "value": "y"}]}},
                {"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "shadow", "port": 80}, "percent": 10}}],
            "backendRefs": [
                {"name": "web", "port": 80, "weight": 9, "group": "", "kind": "Service"},
                {"name": "models", "namespace": "lab", "port": 8080, "weight": 1,
                 "filters": [{"type": "URLRewrite", "urlRewrite": {"hostname": "models.internal"}}]}]}]}})
}

fn translate(id: KindId, route: &Value) -> Result<Translated, Vec<String>> {
    rules(id)
        .translate(&cache(), &name(), route)
        .map_err(|denied| denied.iter().map(ToString::to_string).collect())
}

#[test]
fn names_become_the_hosts() {
    let translated = translate(KindId::HttpRoute, &route()).unwrap();
    assert!(translated.ignored.is_empty(), "{:?}", translated.ignored);
    insta::assert_yaml_snapshot!(translated.object);
}

#[test]
fn other_namespaces_are_reached_by_grants_only() {
    let cache = cache();
    for (kind, namespace, service, granted) in [
        ("HTTPRoute", "shop", ("lab", "models"), true),
        ("GRPCRoute", "shop", ("lab", "models"), false),
        ("HTTPRoute", "lab2", ("lab", "models"), false),
        ("HTTPRoute", "shop", ("lab", "data"), false),
        ("TLSRoute", "lab", ("lab", "data"), true),
    ] {
        let service = Name::new(service.0, service.1);
        assert_eq!(
            grants::Grants::new(&cache, (kind, namespace)).permit(&service),
            granted,
            "{kind} {namespace} {service}"
        );
    }
    let mut route = route();
    route["spec"]["rules"][0]["backendRefs"][1]["name"] = "data".into();
    route["spec"]["rules"][0]["backendRefs"][0]["name"] = "outside".into();
    let translated = translate(KindId::HttpRoute, &route).unwrap();
    let backends = &translated.object["spec"]["rules"][0]["backendRefs"];
    assert_ne!(
        backends[0]["name"],
        host_name(KindId::Service, &Name::new("shop", "outside"))
    );
    assert_ne!(
        backends[1]["name"],
        host_name(KindId::Service, &Name::new("lab", "data"))
    );
    let ignored: Vec<_> = translated.ignored.iter().map(ToString::to_string).collect();
    insta::assert_yaml_snapshot!(ignored);
}

#[test]
fn a_backend_that_is_no_longer_permitted_is_lost_at_once() {
    let (cache, rules) = (cache(), rules(KindId::HttpRoute));
    let mut before = route();
    let mirror = json!({"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "models", "namespace": "lab", "port": 8080}}});
    before["spec"]["rules"][0]["filters"][1] = mirror;
    let translate = |route: &Value| rules.translate(&cache, &name(), route).unwrap().object;
    let mut live = translate(&before);
    live["metadata"]["annotations"] = json!({"berth.dev/applied-hash": "a", "example.com/auth": "true"});
    let mut after = before.clone();
    // It grows, so that it may have no room.
    let mut more = before["spec"]["rules"][0].clone();
    more["name"] = "more".into();
    after["spec"]["rules"].as_array_mut().unwrap().push(more);
    assert_eq!(rules.narrowed(&translate(&after), &live), None, "nothing is lost");
    cache
        .stores
        .tenant(KindId::ReferenceGrant)
        .forget(&Name::new("lab", "shop"));
    let narrowed = rules.narrowed(&translate(&after), &live).unwrap();
    let [models, web] = [("lab", "models"), ("shop", "web")]
        .map(|(namespace, name)| json!(host_name(KindId::Service, &Name::new(namespace, name))));
    let mut expected = live.clone();
    let rule = &mut expected["spec"]["rules"][0];
    for backend in ["/backendRefs/1", "/filters/1/requestMirror/backendRef"] {
        let backend = rule.pointer_mut(backend).unwrap();
        assert_eq!(backend["name"], models);
        backend["name"] = nowhere_at_all().into();
    }
    assert_eq!(rule["backendRefs"][0]["name"], web);
    assert_eq!(narrowed["spec"], expected["spec"]);
    assert_eq!(
        narrowed["metadata"]["annotations"],
        json!({"example.com/auth": "true"}),
        "it may be what closes it"
    );
    assert_eq!(rules.narrowed(&translate(&after), &narrowed), None);
}

#[test]
fn all_fields_that_reach_too_far_are_denied_at_once() {
    let mut route = route();
    let spec = &mut route["spec"];
    spec["parentRefs"] = json!([{"name": "secret-gateway"}]);
    spec["useDefaultGateways"] = "All".into();
    spec["hostnames"] = json!(["app.team.example.com", "*.example.com"]);
    spec["somethingNew"] = true.into();
    let rule = &mut spec["rules"][0];
    rule["backendRefs"][0]["kind"] = "Bucket".into();
    rule["filters"] = json!([{"type": "ExtensionRef", "extensionRef": {"group": "a", "kind": "B", "name": "c"}},
        {"type": "ExternalAuth", "externalAuth": {"protocol": "HTTP"}}, {"type": "New", "new": {"a": "b"}}]);
    insta::assert_yaml_snapshot!(translate(KindId::HttpRoute, &route).unwrap_err());
    let mut everyone = self::route();
    everyone["spec"].as_object_mut().unwrap().remove("hostnames");
    assert_eq!(translate(KindId::HttpRoute, &everyone).unwrap_err().len(), 1);
}

#[test]
fn routes_without_a_parent_on_the_host_stay_in_the_tenant() {
    let cache = cache();
    let mut route = route();
    assert_eq!(
        rules(KindId::HttpRoute).desired_state(&cache, &name(), &route),
        DesiredState::Sync
    );
    route["spec"]["parentRefs"].as_array_mut().unwrap().remove(0);
    assert_eq!(
        rules(KindId::HttpRoute).desired_state(&cache, &name(), &route),
        DesiredState::Absent
    );
    route["spec"]["parentRefs"] = json!([{"name": "typo"}]);
    assert_eq!(
        rules(KindId::HttpRoute).desired_state(&cache, &name(), &route),
        DesiredState::Sync,
        "so that the denial is reported"
    );
}

#[test]
fn a_gateway_concerns_the_routes_that_name_it() {
    let cache = cache();
    let routes = cache.stores.tenant(KindId::HttpRoute);
    let mut other = route();
    other["metadata"]["resourceVersion"] = "1".into();
    routes.written(name(), Stored::new(&other));
    other["metadata"]["name"] = "other".into();
    other["spec"]["parentRefs"] = json!([{"name": "internal"}]);
    routes.written(Name::new("shop", "other"), Stored::new(&other));
    for route in [name(), Name::new("shop", "other")] {
        cache.update_dependents(Side::Tenant, KindId::HttpRoute, &route);
    }
    let concerned = |namespace, gateway| {
        let keys = cache.update_dependents(Side::Tenant, KindId::Gateway, &Name::new(namespace, gateway));
        let names: BTreeSet<String> = keys.iter().map(|key| key.name.name.to_string()).collect();
        names.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(concerned("shop", "own"), ["web"], "it exists");
    assert_eq!(
        concerned("gateways", "public"),
        ["web"],
        "it would take the place of the host's"
    );
    assert_eq!(concerned("shop", "internal"), ["other"]);
    for (namespace, gateway) in [("shop", "public"), ("lab", "own"), ("shop", "web")] {
        assert_eq!(
            concerned(namespace, gateway),
            Vec::<String>::new(),
            "{namespace}/{gateway}"
        );
    }
}

#[test]
fn the_namespace_decides_between_gateways_of_one_name() {
    let mut route = route();
    route["spec"]["parentRefs"] = json!([{"name": "public", "namespace": "edge"}, {"name": "internal", "port": 443}]);
    let translated = translate(KindId::GrpcRoute, &route).unwrap();
    let parents = &translated.object["spec"]["parentRefs"];
    assert_eq!(
        (&parents[0]["namespace"], &parents[1]["namespace"]),
        (&json!("edge"), &json!("infra"))
    );
    assert_eq!(parents[1]["port"], 443);
}

#[test]
fn a_tls_route_has_backends_only() {
    let route = json!({"metadata": {"name": "web"}, "spec": {"parentRefs": [{"name": "internal"}], "hostnames": ["db.team.example.com"],
        "rules": [{"backendRefs": [{"name": "db", "port": 5432}]}]}});
    insta::assert_yaml_snapshot!(translate(KindId::TlsRoute, &route).unwrap().object["spec"]);
}

fn host_status(reason: &str, status: &str) -> Value {
    json!({"metadata": {}, "status": {"parents": [
        {"controllerName": "example.com/gateway", "parentRef": {"group": GROUP, "kind": "Gateway", "namespace": "infra", "name": "public", "sectionName": "https"},
         "conditions": [
            {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "attached to infra/public", "observedGeneration": 1, "lastTransitionTime": "2026-11-21T00:00:00Z"},
            {"type": "ResolvedRefs", "status": status, "reason": reason, "message": "", "observedGeneration": 1, "lastTransitionTime": "2026-11-21T00:00:00Z"}]},
        {"controllerName": "example.com/other", "parentRef": {"namespace": "elsewhere", "name": "foreign"}, "conditions": []}]}})
}

fn sync_status(tenant: &Value, host: &Value) -> Vec<TenantWrite> {
    let observation = Observation {
        tenant,
        host,
        in_sync: true,
        denied: &[],
        now: jiff::Timestamp::UNIX_EPOCH,
    };
    rules(KindId::HttpRoute).sync_status(&cache(), &name(), &observation)
}

#[test]
fn status_comes_back_beside_that_of_the_tenants_own_controllers() {
    let mut tenant = route();
    tenant["status"] = json!({"parents": [
        {"controllerName": "mine", "parentRef": {"name": "own"}, "conditions": []},
        {"controllerName": "example.com/gateway", "parentRef": {"name": "public", "namespace": "gateways", "sectionName": "https"}, "conditions": []}]});
    let [TenantWrite::Status(status)] = &sync_status(&tenant, &host_status("ResolvedRefs", "True"))[..] else {
        panic!()
    };
    insta::assert_yaml_snapshot!(status);
    assert_eq!(sync_status(&route(), &json!({"metadata": {}, "status": null})), []);
}

#[test]
fn denied_backends_are_reported_as_the_gateway_api_defines() {
    let mut tenant = route();
    tenant["spec"]["rules"][0]["backendRefs"][1]["name"] = "data".into();
    let [TenantWrite::Status(status)] = &sync_status(&tenant, &host_status("BackendNotFound", "False"))[..] else {
        panic!()
    };
    let condition = &status["parents"][0]["conditions"][1];
    assert_eq!(condition["reason"], "RefNotPermitted");
    assert!(condition["message"].as_str().unwrap().contains("namespace lab"));
}

#[test]
fn listed_classes_are_mirrored_without_the_fields_of_the_host() {
    let cache = cache();
    for name in ["shared", "private"] {
        let class = json!({"metadata": {"name": name, "resourceVersion": "1", "labels": {"a": "b"}}, "spec": {"controllerName": "example.com/gateway",
            "description": "for all", "parametersRef": {"group": "a", "kind": "B", "name": "c", "namespace": "infra"}},
            "status": {"conditions": [{"type": "Accepted", "status": "True", "observedGeneration": 7}]}});
        cache
            .stores
            .host(KindId::GatewayClass)
            .written(Name::new("", name), Stored::new(&class));
    }
    let Direction::Mirror(view) = kind(KindId::GatewayClass).direction else {
        panic!()
    };
    assert_eq!(view.mirrored_object(&cache, &Name::new("", "private")), None);
    insta::assert_yaml_snapshot!(view.mirrored_object(&cache, &Name::new("", "shared")));
}
