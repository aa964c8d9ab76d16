//! The objects of the metrics API in the tenant: with them its API server sends requests to the syncer, which serves them.

use berth_api::labels;
use berth_sync_rules::usage;
use k8s_openapi::{
    ByteString,
    api::{
        core::v1::{Service, ServiceSpec},
        rbac::v1::{ClusterRole, PolicyRule},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    kube_aggregator::pkg::apis::apiregistration::v1::{APIService, APIServiceSpec, ServiceReference},
};

/// Name of the APIService.
pub const NAME: &str = "v1beta1.metrics.k8s.io";
/// Priorities of the group among others and of the version in the group, as metrics-server has them.
const PRIORITY: i32 = 100;

/// Label value of objects that control created.
pub const OURS: &str = labels::MANAGED_BY_CONTROL;

fn meta(name: &str, namespace: Option<&str>, more: &[(&str, &str)]) -> ObjectMeta {
    let all = more.iter().chain(&[(labels::MANAGED_BY, OURS)]);
    ObjectMeta {
        name: Some(name.into()),
        namespace: namespace.map(Into::into),
        labels: Some(all.map(|(key, value)| ((*key).into(), (*value).into())).collect()),
        ..ObjectMeta::default()
    }
}

/// Lets users who may view a namespace see what its pods use, as metrics-server's own installation does.
pub fn reader() -> ClusterRole {
    let gathered = ["view", "edit", "admin"].map(|role| format!("rbac.authorization.k8s.io/aggregate-to-{role}"));
    let gathered: Vec<(&str, &str)> = gathered.iter().map(|label| (label.as_str(), "true")).collect();
    let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
    ClusterRole {
        metadata: meta("system:aggregated-metrics-reader", None, &gathered),
        rules: Some(vec![PolicyRule {
            api_groups: Some(texts(&["metrics.k8s.io"])),
            resources: Some(texts(&["pods", "nodes"])),
            verbs: texts(&["get", "list", "watch"]),
            ..PolicyRule::default()
        }]),
        aggregation_rule: None,
    }
}

/// The Service that the APIService names. Only the egress broker knows its host name; nothing of it is on the host cluster.
pub fn service() -> Service {
    Service {
        metadata: meta(usage::SERVICE, Some(usage::NAMESPACE), &[]),
        spec: Some(ServiceSpec {
            type_: Some("ExternalName".into()),
            external_name: Some(usage::HOST.into()),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

/// Registers the metrics API in the tenant. `authority`: PEM of the authority that signed the certificate of its server.
pub fn api_service(authority: &str) -> APIService {
    APIService {
        metadata: meta(NAME, None, &[]),
        spec: Some(APIServiceSpec {
            group: Some("metrics.k8s.io".into()),
            version: Some("v1beta1".into()),
            group_priority_minimum: PRIORITY,
            version_priority: PRIORITY,
            ca_bundle: Some(ByteString(authority.as_bytes().to_vec())),
            // Not left out: the team may have set it, and nobody can have both.
            insecure_skip_tls_verify: Some(false),
            service: Some(ServiceReference {
                name: Some(usage::SERVICE.into()),
                namespace: Some(usage::NAMESPACE.into()),
                port: Some(443),
            }),
        }),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_objects_are_as_reviewed() {
        insta::assert_yaml_snapshot!(reader());
        insta::assert_yaml_snapshot!(service());
        insta::assert_yaml_snapshot!(api_service("certificate"));
    }
}
