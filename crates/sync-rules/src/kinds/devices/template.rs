//! ResourceClaimTemplates. The host's controller manager makes a claim of a template for each pod that names it.
//!
//! | field | rule |
//! |---|---|
//! | labels, also those for the claims | not passed on. Claims have those of the template in the tenant, see `generated` |
//! | annotations, also those for the claims | not passed on: see `metadata` |
//! | `spec.spec` | as of a claim, see `spec`; it cannot change |
//!
//! A controller of the host may create a template itself, under the name that the tenant's template would have there.
//! Pods that name it then use that one.
//!
//! The host's template stays until the pods there that name it have their claims: see `claims_of_pods`.

use super::{claim, claims_of_pods, resource, spec};
use crate::{
    model::{
        Cache, DeniedField, DesiredState, HostNamespace, HostWrite, Kind, KindId, ToHost, Translated, WhenDenied,
        resource::{Name, Resource},
        store::WatchSpec,
    },
    translation::{
        fields::{self, FieldIssues, Fields, Rule},
        metadata::{self, AnnotationRules},
        sizes,
    },
};
use serde_json::{Value, json};

const TEMPLATE: Resource = resource("ResourceClaimTemplate", "resourceclaimtemplates");

/// The kind.
pub const KIND: Kind = Kind::to_host(TEMPLATE, &Templates)
    .watch_host(HostNamespace::Workloads, WatchSpec::synced(TEMPLATE).trimmed(trim_host));

fn trim_host(template: &mut Value) {
    if let Some(fields) = template.as_object_mut() {
        fields.remove("spec");
    }
}

pub(super) const SPEC: Fields = &[("metadata", Rule::Rewrite), ("spec", Rule::Rewrite)];
/// What a template may say about the claims' metadata.
const METADATA: Fields = &[
    ("annotations", Rule::Rewrite),
    ("creationTimestamp", Rule::Ignore("always null")),
    ("labels", Rule::Rewrite),
];

struct Templates;

impl ToHost for Templates {
    fn resource(&self) -> Resource {
        TEMPLATE
    }

    fn desired_state(&self, _cache: &Cache, _name: &Name, _template: &Value) -> DesiredState {
        DesiredState::Sync
    }

    fn translate(&self, cache: &Cache, _name: &Name, template: &Value) -> Result<Translated, Vec<DeniedField>> {
        let mut issues = FieldIssues::default();
        let source = &template["spec"];
        let mut copied = fields::copy(source, "spec", SPEC, &mut issues);
        copied.insert(
            "spec".into(),
            spec::translate(cache, &source["spec"], "spec.spec", &mut issues),
        );
        fields::copy(&source["metadata"], "spec.metadata", METADATA, &mut issues);
        let mut of = |object: &Value| {
            let annotations = metadata::annotations(object, &AnnotationRules::default(), &mut issues);
            json!({"annotations": annotations})
        };
        copied.insert("metadata".into(), of(source));
        let object = json!({"metadata": of(template), "spec": copied});
        sizes::check(sizes::RESOURCE_CLAIM_TEMPLATE, template, &object, &mut issues);
        issues.into_result(object)
    }

    fn controller_requests(&self, desired: &Value, is_new: bool) -> u64 {
        // The spec does not change later.
        if is_new {
            sizes::compilation_requests(sizes::RESOURCE_CLAIM_TEMPLATE, desired)
        } else {
            0
        }
    }

    fn when_denied(&self, _cache: &Cache, _name: &Name, _template: &Value, _host: &Value) -> WhenDenied {
        // Claims that were made from it stay; those that are not allocated go with their pods, which are denied as well.
        WhenDenied::Withdraw
    }

    fn mutable_part(&self, desired: &Value) -> Value {
        desired["metadata"].clone()
    }

    fn is_needed_on_host(&self, cache: &Cache, name: &Name) -> bool {
        let pods = cache.keys_that_reference(KindId::Pod, &KindId::ResourceClaimTemplate.key(name.clone()));
        pods.iter()
            .any(|pod| claims_of_pods::lacks_claim(cache, &pod.name, name))
    }

    fn update_needs_live(&self) -> bool {
        true
    }

    fn update(&self, desired: Value, live: &Value) -> Vec<HostWrite> {
        claim::update(desired, live)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tenant::test_tenant;
    use crate::registry;
    use berth_api::SyncPolicy;
    use std::sync::Arc;

    fn translate(template: &Value) -> Result<Value, Vec<String>> {
        let mut tenant = test_tenant();
        let mut policy = SyncPolicy::default();
        policy.devices.classes = vec!["*".into()];
        tenant.policy = Arc::new(policy);
        Templates
            .translate(&registry::new_cache(tenant), &Name::new("research", "t"), template)
            .map(|translated| translated.object)
            .map_err(|denied| denied.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn claims_of_a_template_get_its_labels_but_not_those_of_its_origin() {
        let template = json!({"metadata": {"name": "t", "labels": {"a": "b"}}, "spec": {
            "metadata": {"creationTimestamp": null, "labels": {"team": "vision", "berth.dev/managed-by": "syncer"},
                "annotations": {"note": "n", "resource.kubernetes.io/pod-claim-name": "other"}},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]}}}});
        insta::assert_yaml_snapshot!(translate(&template).unwrap());
    }

    #[test]
    fn the_claim_of_a_template_is_as_small_as_any_and_its_expressions_cost_requests() {
        let template = |requests: usize| {
            let cel = json!({"cel": {"expression": "true"}});
            let asked = json!({"deviceClassName": "gpu.example.com", "selectors": [cel, cel, cel]});
            let requests: Vec<Value> = (0..requests)
                .map(|name| json!({"name": name.to_string(), "exactly": asked}))
                .collect();
            json!({"metadata": {}, "spec": {"spec": {"devices": {"requests": requests}}}})
        };
        let desired = translate(&template(21)).unwrap();
        assert_eq!(
            [true, false].map(|is_new| Templates.controller_requests(&desired, is_new)),
            [8, 0]
        );
        let denied = translate(&template(22)).unwrap_err();
        assert_eq!(denied.len(), 1);
        assert!(
            denied[0].starts_with("spec.spec.devices.requests: expressions: there are 66"),
            "{denied:?}"
        );
    }

    #[test]
    fn denied_fields_name_the_field_of_the_template() {
        let template = json!({"metadata": {}, "spec": {"metadata": {"finalizers": ["f"]}, "novelty": 1,
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com", "adminAccess": true}}]}}}});
        let denied = translate(&template).unwrap_err();
        let fields: Vec<_> = denied.iter().filter_map(|text| text.split(':').next()).collect();
        assert_eq!(
            fields,
            [
                "spec.novelty",
                "spec.spec.devices.requests[0].exactly.adminAccess",
                "spec.metadata.finalizers"
            ]
        );
    }
}
