//! FlowSchemas in the tenant. One exempts the requests of Berth's own programs from the limits of the API server: however many requests users
//! send, the syncer goes on, whose own requests at the same time are few. The others, by which the API server counts requests that are use apart from
//! all others, change no priority: each names the priority level that the requests have without it; see [`berth_sleep::activity`].
//!
//! All are the platform's: nobody in the tenant changes or deletes them.

use crate::control_plane::{ARGO_CD_USER, DNS_USER, TENANT_USER};
use berth_api::labels;
use berth_sleep::activity::{
    ACCOUNT_WATCHES_SCHEMA, ANONYMOUS_SCHEMA, ARGO_CD_READS_SCHEMA, PLATFORM_SCHEMA, WATCHES_SCHEMA,
};
use k8s_openapi::{
    api::flowcontrol::v1::{
        FlowDistinguisherMethod, FlowSchema, FlowSchemaSpec, GroupSubject, NonResourcePolicyRule,
        PolicyRulesWithSubjects, PriorityLevelConfigurationReference, ResourcePolicyRule, Subject, UserSubject,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

/// Of Berth's own programs: before all but `exempt` (1) and `probes` (2), so that no FlowSchema of the tenant matches their requests first.
const PLATFORM_PRECEDENCE: i32 = 10;
/// Before the FlowSchemas `service-accounts` (9000) and `global-default` (9900) of Kubernetes, and after all for its components, of
/// which the last is `kube-system-service-accounts` (900).
const PRECEDENCE: i32 = 8000;
/// Priority level of requests that never wait.
const EXEMPT_LEVEL: &str = "exempt";
/// Priority level of service accounts.
const ACCOUNTS_LEVEL: &str = "workload-low";
/// Priority level of all other users.
const DEFAULT_LEVEL: &str = "global-default";

/// Berth's own requests.
pub fn platform_schema() -> FlowSchema {
    let platform = [TENANT_USER, DNS_USER].map(user).to_vec();
    flow_schema(PLATFORM_SCHEMA, PLATFORM_PRECEDENCE, EXEMPT_LEVEL, platform, &["*"])
}

/// Requests that are no use: what Argo CD reads, watches of service accounts and of all other users, and whatever nobody has authenticated.
/// Kubernetes' FlowSchema for probes comes before them.
pub fn no_use_schemas() -> [FlowSchema; 4] {
    let argo_cd = vec![user(ARGO_CD_USER)];
    let accounts = vec![group("system:serviceaccounts")];
    let users = vec![group("system:authenticated")];
    let anonymous = vec![group("system:unauthenticated")];
    let (reads, watch) = (["get", "list", "watch"], ["watch"]);
    [
        flow_schema(ARGO_CD_READS_SCHEMA, PRECEDENCE, DEFAULT_LEVEL, argo_cd, &reads),
        flow_schema(ACCOUNT_WATCHES_SCHEMA, PRECEDENCE + 1, ACCOUNTS_LEVEL, accounts, &watch),
        flow_schema(WATCHES_SCHEMA, PRECEDENCE + 2, DEFAULT_LEVEL, users, &watch),
        flow_schema(ANONYMOUS_SCHEMA, PRECEDENCE + 3, DEFAULT_LEVEL, anonymous, &["*"]),
    ]
}

fn flow_schema(name: &str, precedence: i32, level: &str, subjects: Vec<Subject>, verbs: &[&str]) -> FlowSchema {
    let any = || vec!["*".to_owned()];
    let verbs: Vec<String> = verbs.iter().map(ToString::to_string).collect();
    let resources = ResourcePolicyRule {
        api_groups: any(),
        cluster_scope: Some(true),
        namespaces: Some(any()),
        resources: any(),
        verbs: verbs.clone(),
    };
    // Paths without resources have no watches.
    let paths = (verbs != ["watch"]).then(|| {
        vec![NonResourcePolicyRule {
            non_resource_urls: any(),
            verbs,
        }]
    });
    FlowSchema {
        metadata: ObjectMeta {
            name: Some(name.into()),
            labels: Some([(labels::MANAGED_BY.into(), labels::MANAGED_BY_PLATFORM.into())].into()),
            ..ObjectMeta::default()
        },
        spec: FlowSchemaSpec {
            distinguisher_method: Some(FlowDistinguisherMethod { type_: "ByUser".into() }),
            matching_precedence: Some(precedence),
            priority_level_configuration: PriorityLevelConfigurationReference { name: level.into() },
            rules: Some(vec![PolicyRulesWithSubjects {
                subjects,
                resource_rules: Some(vec![resources]),
                non_resource_rules: paths,
            }]),
        },
        status: None,
    }
}

fn user(name: &str) -> Subject {
    Subject {
        kind: "User".into(),
        user: Some(UserSubject { name: name.into() }),
        group: None,
        service_account: None,
    }
}

fn group(name: &str) -> Subject {
    Subject {
        kind: "Group".into(),
        group: Some(GroupSubject { name: name.into() }),
        user: None,
        service_account: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn berth_never_waits_and_of_users_only_watches_and_reads_of_argo_cd_are_left_out() {
        let [reads, watches_of_accounts, watches, anonymous] = no_use_schemas();
        let schemas = [platform_schema(), watches_of_accounts, watches, reads, anonymous];
        let schemas = schemas.map(|schema| serde_json::to_value(schema).unwrap());
        let values = |path: &str| schemas.each_ref().map(|schema| schema.pointer(path).unwrap().clone());
        assert_eq!(
            values("/spec/matchingPrecedence"),
            [json!(10), json!(8001), json!(8002), json!(8000), json!(8003)]
        );
        assert_eq!(
            values("/spec/priorityLevelConfiguration/name"),
            [
                "exempt",
                "workload-low",
                "global-default",
                "global-default",
                "global-default"
            ]
            .map(|level| json!(level))
        );
        assert_eq!(
            values("/metadata/labels/berth.dev~1managed-by"),
            [0; 5].map(|_| json!("platform"))
        );
        let rules = |index: usize| &schemas[index]["spec"]["rules"][0];
        let users = |index: usize| -> Vec<_> {
            let subjects = rules(index)["subjects"].as_array().unwrap().iter();
            subjects.map(|subject| &subject["user"]["name"]).collect()
        };
        assert_eq!(users(0), [TENANT_USER, DNS_USER]);
        assert_eq!(users(3), [ARGO_CD_USER]);
        for kind in ["resourceRules", "nonResourceRules"] {
            assert_eq!(rules(3)[kind][0]["verbs"], json!(["get", "list", "watch"]));
        }
        for all in [0, 4] {
            assert_eq!(rules(all)["resourceRules"][0]["verbs"], json!(["*"]));
            assert_eq!(rules(all)["nonResourceRules"][0]["verbs"], json!(["*"]));
            assert_eq!(rules(all)["nonResourceRules"][0]["nonResourceURLs"], json!(["*"]));
        }
        let groups = |index: usize| -> Vec<_> {
            let subjects = rules(index)["subjects"].as_array().unwrap().iter();
            subjects.map(|subject| &subject["group"]["name"]).collect()
        };
        assert_eq!(groups(2), ["system:authenticated"]);
        assert_eq!(groups(4), ["system:unauthenticated"]);
        for watches in [1, 2] {
            assert_eq!(rules(watches)["resourceRules"][0]["verbs"], json!(["watch"]));
            assert_eq!(rules(watches)["nonResourceRules"], json!(null));
        }
    }
}
