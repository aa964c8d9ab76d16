//! Services.
//!
//! | field | rule |
//! |---|---|
//! | labels, annotations | copied but for reserved ones |
//! | `clusterIP(s)`, `ipFamilies`, `ipFamilyPolicy` | copied: one address, inside and out |
//! | `selector` | narrowed to the tenant and the namespace |
//! | `ports` | copied, without node ports |
//! | `type` | ClusterIP and ExternalName; NodePort and LoadBalancer are refused |
//! | `externalIPs` | refused |
//! | `default/kubernetes` | never: it is the tenant's own API server |
//! | status | nothing to report for these types |

use crate::{
    json,
    kinds::{
        Down, Flow, HostNamespace, Kind, Rights, Translated, WRITE, Want,
        fields::{self, Fields, Findings, Rule},
        metadata, origin_name, own_name,
        refusal::Refusal,
    },
    resource::{self, Name, Resource},
    store::{Detail, WatchSpec},
    world::World,
};
use berth_api::labels;
use serde_json::{Value, json};

/// The kind.
pub const KIND: Kind = Kind {
    tenant: Some(WatchSpec {
        resource: resource::SERVICE,
        detail: Detail::Full,
        labels: "",
        name: own_name,
        trim: |_| {},
    }),
    host: Some((
        HostNamespace::Workloads,
        WatchSpec {
            resource: resource::SERVICE,
            detail: Detail::Full,
            labels: "berth.dev/managed-by=syncer",
            name: origin_name,
            trim: |_| {},
        },
    )),
    flow: Flow::Down(&Services),
    rights: Rights {
        tenant: &[],
        host: &[("services", WRITE)],
    },
};

const LOAD_BALANCER: &str = "load balancers are not offered";

const SPEC: Fields = &[
    (
        "allocateLoadBalancerNodePorts",
        Rule::Ignore("says nothing for the types offered"),
    ),
    ("clusterIP", Rule::Copy),
    ("clusterIPs", Rule::Copy),
    ("externalIPs", Rule::Refuse("they could take over foreign addresses")),
    ("externalName", Rule::Copy),
    (
        "externalTrafficPolicy",
        Rule::Ignore("says nothing for the types offered"),
    ),
    ("healthCheckNodePort", Rule::Refuse(LOAD_BALANCER)),
    ("internalTrafficPolicy", Rule::Copy),
    ("ipFamilies", Rule::Copy),
    ("ipFamilyPolicy", Rule::Copy),
    ("loadBalancerClass", Rule::Refuse(LOAD_BALANCER)),
    ("loadBalancerIP", Rule::Refuse(LOAD_BALANCER)),
    ("loadBalancerSourceRanges", Rule::Refuse(LOAD_BALANCER)),
    ("ports", Rule::Rewrite),
    ("publishNotReadyAddresses", Rule::Copy),
    ("selector", Rule::Rewrite),
    ("sessionAffinity", Rule::Copy),
    ("sessionAffinityConfig", Rule::Copy),
    ("trafficDistribution", Rule::Copy),
    ("type", Rule::Rewrite),
];

const PORT: Fields = &[
    ("appProtocol", Rule::Copy),
    ("name", Rule::Copy),
    ("nodePort", Rule::Refuse("ports of the nodes are not offered")),
    ("port", Rule::Copy),
    ("protocol", Rule::Copy),
    ("targetPort", Rule::Copy),
];

struct Services;

impl Down for Services {
    fn resource(&self) -> Resource {
        resource::SERVICE
    }

    fn want(&self, _world: &World, name: &Name, _service: &Value) -> Want {
        if *name == Name::new("default", "kubernetes") {
            Want::Absent
        } else {
            Want::Sync
        }
    }

    fn translate(&self, world: &World, name: &Name, service: &Value) -> Result<Translated, Vec<Refusal>> {
        let mut findings = Findings::default();
        let source = &service["spec"];
        let mut spec = fields::copy(source, "spec", SPEC, &mut findings);
        match json::text(source, &["type"]) {
            Some(kind @ ("NodePort" | "LoadBalancer")) => {
                findings.refuse("spec.type", format!("{kind} is not offered: use ClusterIP"));
            }
            Some(kind) => drop(spec.insert("type".into(), kind.into())),
            None => {}
        }
        let mut selector = json::strings(source, &["selector"]);
        // Without a selector the tenant makes the endpoints itself.
        if !selector.is_empty() {
            selector.insert(labels::TENANT.into(), world.tenant.slug.clone());
            selector.insert(labels::TENANT_OBJECT_NAMESPACE.into(), name.namespace.to_string());
            spec.insert("selector".into(), json!(selector));
        }
        let ports: Vec<Value> = json::items(source, &["ports"])
            .iter()
            .enumerate()
            .map(|(index, port)| fields::copy(port, &format!("spec.ports[{index}]"), PORT, &mut findings).into())
            .collect();
        if !ports.is_empty() {
            spec.insert("ports".into(), ports.into());
        }
        let annotations = metadata::annotations(service, &mut findings.refused);
        let metadata = json!({"labels": metadata::labels(service), "annotations": annotations});
        findings.into_result(json!({"metadata": metadata, "spec": spec}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::test_tenant;

    fn translate(spec: &Value) -> Result<Value, Vec<String>> {
        let world = World::new(test_tenant());
        let service = json!({"metadata": {"name": "web", "namespace": "shop", "labels": {"a": "b"}}, "spec": spec});
        Services
            .translate(&world, &Name::new("shop", "web"), &service)
            .map(|translated| translated.object)
            .map_err(|refused| refused.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_address_stays_and_the_selector_is_narrowed() {
        let spec = json!({"type": "ClusterIP", "clusterIP": "10.96.7.7", "clusterIPs": ["10.96.7.7"], "selector": {"app": "web"},
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": "http"}], "sessionAffinity": "None",
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster"});
        insta::assert_yaml_snapshot!(translate(&spec).unwrap());
    }

    #[test]
    fn what_reaches_beyond_the_tenant_is_refused() {
        let spec = json!({"type": "NodePort", "externalIPs": ["1.2.3.4"], "loadBalancerIP": "1.2.3.4", "ports": [{"port": 1, "nodePort": 30000}]});
        insta::assert_yaml_snapshot!(translate(&spec).unwrap_err());
    }

    #[test]
    fn a_service_without_selector_stays_without() {
        assert_eq!(
            translate(&json!({"type": "ClusterIP", "clusterIP": "None"})).unwrap()["spec"].get("selector"),
            None
        );
    }

    #[test]
    fn the_api_servers_own_service_is_never_synced() {
        let world = World::new(test_tenant());
        assert_eq!(
            Services.want(&world, &Name::new("default", "kubernetes"), &Value::Null),
            Want::Absent
        );
    }
}
