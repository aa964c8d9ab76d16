use super::{policy::policy, validate::MAX_BYTES, *};
use crate::control_plane::{ARGO_CD_USER, CONTROL_USER, Change, DNS_USER, EncryptionStep, TENANT_USER};
use berth_api::{AuditLevel, AuditResources, AuditRule, EncryptionPhase, is_reserved_identity};
use jiff::Timestamp;
use serde_json::{Value, json};

const NONE: AuditLevel = AuditLevel::None;
const METADATA: AuditLevel = AuditLevel::Metadata;
const REQUEST: AuditLevel = AuditLevel::Request;

fn audit(value: Value) -> ClassAudit {
    serde_json::from_value(value).unwrap()
}

/// Rules of a policy, by which requests are compared as API servers do.
struct Policy(Vec<AuditRule>);

impl Policy {
    fn of(value: Value) -> Self {
        Self::with_encrypted(value, &[])
    }

    fn with_encrypted(value: Value, encrypted: &[&str]) -> Self {
        let audit = audit(value);
        assert_eq!(find_error(&audit, encrypted), None);
        Self(serde_json::from_value(policy(&audit, encrypted)["rules"].clone()).unwrap())
    }

    /// The level of a request for a resource such as `authentication.k8s.io/tokenreviews`, or `pods` of the core group.
    fn level(&self, user: &str, verb: &str, resource: &str) -> AuditLevel {
        self.find(user, verb, |rule| {
            let is_listed = |one: &AuditResources| {
                let (group, resource) = split_group(resource);
                let is_one = one.resources.is_empty() || one.resources.iter().any(|pattern| matches(pattern, resource));
                one.group == group && is_one
            };
            rule.non_resource_urls.is_empty() && (rule.resources.is_empty() || rule.resources.iter().any(is_listed))
        })
    }

    fn level_of_path(&self, user: &str, path: &str) -> AuditLevel {
        self.find(user, "get", |rule| {
            let is_listed = |pattern: &String| {
                pattern == path || pattern.strip_suffix('*').is_some_and(|start| path.starts_with(start))
            };
            rule.resources.is_empty()
                && (rule.non_resource_urls.is_empty() || rule.non_resource_urls.iter().any(is_listed))
        })
    }

    fn find(&self, user: &str, verb: &str, is_for: impl Fn(&AuditRule) -> bool) -> AuditLevel {
        let lists = |list: &[String], text: &str| list.is_empty() || list.iter().any(|one| one == text);
        let mut matching = self
            .0
            .iter()
            .filter(|rule| lists(&rule.users, user) && lists(&rule.verbs, verb) && is_for(rule));
        matching.next().map_or(NONE, |rule| rule.level)
    }
}

/// The group of `authentication.k8s.io/tokenreviews`: in it there is a dot.
fn split_group(resource: &str) -> (&str, &str) {
    let split = resource.split_once('/').filter(|(group, _)| group.contains('.'));
    split.unwrap_or(("", resource))
}

fn matches(pattern: &str, resource: &str) -> bool {
    let (name, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    pattern == "*"
        || pattern == resource
        || pattern.strip_suffix("/*") == Some(name)
        || (!subresource.is_empty() && pattern.strip_prefix("*/") == Some(subresource))
}

#[test]
fn a_policy_is_one_that_api_servers_read() {
    let written = policy(&audit(json!({"preset": "Metadata"})), &[]);
    assert_eq!(written["apiVersion"], "audit.k8s.io/v1");
    assert_eq!(written["kind"], "Policy");
    assert_eq!(written["omitStages"], json!(["RequestReceived"]));
    assert_eq!(written["omitManagedFields"], true);
    assert_eq!(
        written["rules"].as_array().unwrap().last(),
        Some(&json!({"level": "Metadata"}))
    );
}

#[test]
fn no_preset_logs_content_of_credentials_and_config_maps() {
    for preset in ["Writes", "Metadata", "Request"] {
        let policy = Policy::of(json!({"preset": preset}));
        for resource in [
            "secrets",
            "configmaps",
            "serviceaccounts/token",
            "authentication.k8s.io/tokenreviews",
        ] {
            for verb in [
                "get",
                "list",
                "watch",
                "create",
                "update",
                "patch",
                "delete",
                "deletecollection",
            ] {
                let level = policy.level("ada", verb, resource);
                assert!(
                    [NONE, METADATA].contains(&level),
                    "{preset} {verb} {resource}: {level:?}"
                );
            }
        }
        assert_eq!(policy.level("ada", "create", "secrets"), METADATA, "{preset}");
        assert_eq!(policy.level("ada", "get", "secrets"), METADATA, "{preset}");
        assert_eq!(
            policy.level("ada", "create", "serviceaccounts/token"),
            METADATA,
            "{preset}"
        );
    }
}

#[test]
fn presets_log_what_their_names_say() {
    let expected = [
        ("Writes", METADATA, NONE, NONE),
        ("Metadata", METADATA, METADATA, METADATA),
        ("Request", REQUEST, METADATA, METADATA),
    ];
    for (preset, write, read, path) in expected {
        let policy = Policy::of(json!({"preset": preset}));
        for resource in ["pods", "apps.example.com/things"] {
            assert_eq!(policy.level("ada", "create", resource), write, "{preset} {resource}");
            assert_eq!(policy.level("ada", "list", resource), read, "{preset} {resource}");
        }
        // A WebSocket is a GET.
        for resource in ["pods/exec", "pods/portforward", "nodes/proxy"] {
            assert_eq!(policy.level("ada", "get", resource), METADATA, "{preset} {resource}");
        }
        assert_eq!(policy.level_of_path("ada", "/metrics"), path, "{preset}");
        for noise in ["/livez", "/readyz", "/api", "/apis/apps/v1", "/openapi/v3"] {
            assert_eq!(policy.level_of_path("ada", noise), NONE, "{preset} {noise}");
        }
        assert_eq!(policy.level("ada", "update", "coordination.k8s.io/leases"), NONE);
        assert_eq!(policy.level("ada", "create", "events"), NONE, "{preset}");
        // Who deletes Events may hide something.
        let deletion = policy.level("ada", "deletecollection", "events");
        assert_eq!(deletion, write, "{preset}");
    }
    let writes = Policy::of(json!({"preset": "Writes"}));
    let review = "authorization.k8s.io/selfsubjectaccessreviews";
    assert_eq!(writes.level("ada", "create", review), NONE);
}

#[test]
fn only_users_that_nobody_in_the_tenant_can_be_are_left_out() {
    for preset in ["Writes", "Metadata", "Request"] {
        let policy = Policy::of(json!({"preset": preset}));
        for user in [CONTROL_USER, TENANT_USER, DNS_USER, "system:apiserver"] {
            assert_eq!(policy.level(user, "create", "pods"), NONE, "{preset} {user}");
            assert_eq!(policy.level(user, "list", "secrets"), NONE, "{preset} {user}");
        }
        for user in ["system:kube-controller-manager", "system:kube-scheduler"] {
            assert_eq!(policy.level(user, "list", "secrets"), NONE, "{preset} {user}");
            assert_ne!(policy.level(user, "create", "pods"), NONE, "{preset} {user}");
        }
        // An administrator of the tenant may have a token of such an account, and Argo CD applies what somebody wrote.
        for user in ["system:serviceaccount:kube-system:namespace-controller", ARGO_CD_USER] {
            assert_eq!(policy.level(user, "get", "secrets"), METADATA, "{preset} {user}");
            assert_ne!(policy.level(user, "create", "pods"), NONE, "{preset} {user}");
        }
        for rule in &policy.0 {
            assert!(rule.user_groups.is_empty(), "{rule:?}");
            // No issuer of tokens gives anybody such a name, and no ServiceAccount and no anonymous request has it.
            for user in &rule.users {
                let is_of_tenant = user.starts_with("system:serviceaccount:") || user == "system:anonymous";
                assert!(is_reserved_identity(user) && !is_of_tenant, "{user}");
            }
        }
    }
}

#[test]
fn rules_of_a_class_log_no_credentials_either_and_are_otherwise_as_they_are() {
    let all = Policy::of(json!({"rules": [{"level": "RequestResponse"}]}));
    for resource in ["secrets", "serviceaccounts/token", "authentication.k8s.io/tokenreviews"] {
        assert_eq!(all.level("ada", "create", resource), METADATA, "{resource}");
    }
    for resource in ["configmaps", "serviceaccounts", "pods"] {
        assert_eq!(
            all.level("ada", "create", resource),
            AuditLevel::RequestResponse,
            "{resource}"
        );
    }
    for pattern in ["secrets", "secrets/*", "*"] {
        let rules = json!([{"level": "Request", "verbs": ["create"], "resources": [{"resources": [pattern]}]}]);
        let policy = Policy::of(json!({ "rules": rules }));
        assert_eq!(policy.level("ada", "create", "secrets"), METADATA, "{pattern}");
        assert_eq!(policy.level("ada", "update", "secrets"), NONE, "{pattern}");
    }
    for pattern in ["serviceaccounts/token", "serviceaccounts/*", "*/token"] {
        let policy = Policy::of(json!({"rules": [{"level": "Request", "resources": [{"resources": [pattern]}]}]}));
        assert_eq!(
            policy.level("ada", "create", "serviceaccounts/token"),
            METADATA,
            "{pattern}"
        );
    }
    for resources in [json!(["tokenreviews"]), json!(["*"]), json!([])] {
        let listed = json!([{"group": "authentication.k8s.io", "resources": resources}]);
        let policy = Policy::of(json!({"rules": [{"level": "RequestResponse", "resources": listed}]}));
        let level = policy.level("ada", "create", "authentication.k8s.io/tokenreviews");
        assert_eq!(level, METADATA, "{resources}");
    }
    let of_namespace = Policy::of(json!({"rules": [{"level": "RequestResponse", "namespaces": ["default"]}]}));
    assert_eq!(of_namespace.level("ada", "get", "secrets"), METADATA);
    // What a rule does not name it does not log, and what needs no change gets none.
    for rules in [
        json!([{"level": "Request", "resources": [{"resources": ["pods", "*/scale"]}, {"group": "apps"}]}]),
        json!([{"level": "None", "resources": [{"resources": ["secrets"]}]}, {"level": "Metadata"}]),
        json!([{"level": "RequestResponse", "nonResourceURLs": ["/metrics"]}]),
    ] {
        let written = policy(&audit(json!({"rules": rules.clone()})), &[]);
        assert_eq!(written["rules"], rules);
    }
}

#[test]
fn what_is_added_for_credentials_matches_no_more_requests_than_the_rule() {
    let rule = json!({
        "level": "Request", "users": ["ada"], "userGroups": ["g"], "verbs": ["patch"], "namespaces": ["a"], "omitStages": ["Panic"],
        "resources": [{"resources": ["secrets", "pods"], "resourceNames": ["one"]}],
    });
    let written = policy(&audit(json!({"rules": [rule.clone()]})), &[]);
    let mut added = rule.clone();
    added["level"] = "Metadata".into();
    added["resources"] = json!([{"resources": ["secrets"], "resourceNames": ["one"]}]);
    assert_eq!(written["rules"], json!([added, rule]));
}

#[test]
fn content_of_encrypted_resources_is_in_no_log() {
    const WIDGETS: &str = "example.com/widgets";
    const STATUS: &str = "example.com/widgets/status";
    const ALL: AuditLevel = AuditLevel::RequestResponse;
    let encrypted = ["secrets", "configmaps", "widgets.example.com"];
    for preset in ["Writes", "Metadata", "Request"] {
        let policy = Policy::with_encrypted(json!({"preset": preset}), &encrypted);
        for resource in [WIDGETS, STATUS, "configmaps"] {
            for verb in ["create", "patch", "delete"] {
                assert_eq!(
                    policy.level("ada", verb, resource),
                    METADATA,
                    "{preset} {verb} {resource}"
                );
            }
        }
    }
    let request = Policy::with_encrypted(json!({"preset": "Request"}), &encrypted);
    for other in ["example.com/gadgets", "other.example.com/widgets", "pods"] {
        assert_eq!(request.level("ada", "create", other), REQUEST, "{other}");
    }
    let rule = |resources: Value| {
        let rules = json!([{"level": "RequestResponse", "resources": resources}]);
        Policy::with_encrypted(json!({ "rules": rules }), &encrypted)
    };
    // A rule has what it matches without content, and no more than it matches.
    for (patterns, widgets, status) in [
        (json!([]), METADATA, METADATA),
        (json!(["*"]), METADATA, METADATA),
        (json!(["widgets/*"]), METADATA, METADATA),
        (json!(["widgets"]), METADATA, NONE),
        (json!(["widgets/status"]), NONE, METADATA),
        (json!(["gadgets", "*/status"]), NONE, METADATA),
        (json!(["widgets", "widgets/scale"]), METADATA, NONE),
        (json!(["gadgets", "widgetsets"]), NONE, NONE),
    ] {
        let policy = rule(json!([{"group": "example.com", "resources": patterns}]));
        assert_eq!(policy.level("ada", "update", WIDGETS), widgets, "{patterns}");
        assert_eq!(policy.level("ada", "update", STATUS), status, "{patterns}");
    }
    let of_status = rule(json!([{"group": "example.com", "resources": ["*/status"]}]));
    assert_eq!(of_status.level("ada", "update", "example.com/gadgets/status"), ALL);
    let of_all = rule(json!([]));
    for (resource, level) in [
        (WIDGETS, METADATA),
        (STATUS, METADATA),
        ("configmaps", METADATA),
        ("pods", ALL),
    ] {
        assert_eq!(of_all.level("ada", "update", resource), level, "{resource}");
    }
    let of_core = rule(json!([{"resources": ["configmaps", "pods"]}]));
    assert_eq!(of_core.level("ada", "update", "configmaps"), METADATA);
    assert_eq!(of_core.level("ada", "update", "pods"), ALL);
}

#[test]
fn the_file_follows_the_encryption_of_the_tenant_and_secrets_change_nothing() {
    let written = |resources: &[&str]| {
        let change = Change {
            resources: resources.iter().map(ToString::to_string).collect(),
            requested_at: None,
            begins_with: EncryptionPhase::Distributing,
        };
        let mut stored = BTreeMap::new();
        let begin = EncryptionStep::Begin(change);
        begin.carry_out(&mut stored, Timestamp::UNIX_EPOCH).unwrap();
        let mut files = BTreeMap::new();
        let request = audit(json!({"preset": "Request"}));
        let flags = for_api_server(Some(&request), &Encryption::read(&stored).unwrap(), &mut files);
        assert!(!flags.is_empty());
        files.remove(FILE).unwrap()
    };
    let none = for_api_server(None, &Encryption::default(), &mut BTreeMap::new());
    assert!(none.is_empty());
    let secrets = written(&["secrets"]);
    assert_eq!(secrets, written(&[]));
    assert!(!secrets.contains("widgets"), "{secrets}");
    let widgets = written(&["widgets.example.com"]);
    assert!(
        widgets.contains(r#"{"group":"example.com","resources":["widgets/*"]}"#),
        "{widgets}"
    );
}

#[test]
fn what_no_api_server_would_start_with_is_found() {
    let error = |value: Value| find_error(&audit(value), &[]).unwrap_or_default();
    let rule = |fields: Value| {
        let mut rule = json!({"level": "Metadata"});
        rule.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        error(json!({"rules": [{"level": "None"}, rule]}))
    };
    for neither in [
        json!({}),
        json!({"rules": []}),
        json!({"preset": "Writes", "rules": [{"level": "None"}]}),
    ] {
        assert!(error(neither.clone()).starts_with("preset: "), "{neither}");
    }
    for (fields, expected) in [
        (
            json!({"nonResourceURLs": ["/a"], "namespaces": ["a"]}),
            "nonResourceURLs: a rule is for",
        ),
        (
            json!({"nonResourceURLs": ["/a"], "resources": [{}]}),
            "nonResourceURLs: a rule is for",
        ),
        (json!({"nonResourceURLs": ["metrics"]}), "nonResourceURLs: \"metrics\""),
        (json!({"nonResourceURLs": ["/a*/b"]}), "nonResourceURLs: \"/a*/b\""),
        (json!({"nonResourceURLs": [""]}), "nonResourceURLs: \"\""),
        (json!({"nonResourceURLs": ["**"]}), "nonResourceURLs: \"**\""),
        (json!({"verbs": ["*"]}), "verbs: \"*\""),
        (json!({"verbs": ["GET"]}), "verbs: \"GET\""),
        (json!({"resources": [{"group": "apps/v1"}]}), "resources: \"apps/v1\""),
        (json!({"resources": [{"group": "Apps"}]}), "resources: \"Apps\""),
        (json!({"resources": [{"group": "apps."}]}), "resources: \"apps.\""),
        // In all groups there are Secrets.
        (json!({"resources": [{"group": "*"}]}), "resources: \"*\""),
        (json!({"resources": [{"resources": ["*/*"]}]}), "resources: \"*/*\""),
        (json!({"resources": [{"resources": ["Pods"]}]}), "resources: \"Pods\""),
        (
            json!({"resources": [{"resourceNames": ["a"]}]}),
            "resources: resourceNames needs",
        ),
    ] {
        let message = rule(fields.clone());
        assert!(
            message.starts_with(&format!("rules[1].{expected}")),
            "{fields}: {message}"
        );
    }
    for fine in [
        json!({"nonResourceURLs": ["*", "/", "/a*"], "verbs": ["get"]}),
        json!({"namespaces": ["", "a"], "resources": [{}, {"group": "a.b-c.io", "resources": ["*", "*/scale", "pods/*", "pods/log"]}]}),
    ] {
        assert_eq!(rule(fine.clone()), "", "{fine}");
    }
}

#[test]
fn a_policy_has_a_greatest_size() {
    let names: Vec<String> = (0..32).map(|number| format!("{number:0>256}")).collect();
    let rules = |count: usize| audit(json!({"rules": vec![json!({"level": "Metadata", "users": names}); count]}));
    let most = MAX_BYTES / policy(&rules(1), &[]).to_string().len();
    assert_eq!(find_error(&rules(most), &[]), None);
    let message = find_error(&rules(most + 1), &[]).unwrap_or_default();
    assert!(message.contains("at most 65536 bytes"), "{message}");
    // What is added for what the class encrypts is not the fault of its rules.
    let long: Vec<String> = (0..16)
        .map(|number| format!("w{number:0>60}.{}.{}.example.com", "g".repeat(60), "h".repeat(60)))
        .collect();
    let long: Vec<&str> = long.iter().map(String::as_str).collect();
    let all = audit(json!({"rules": vec![json!({"level": "Request"}); 64]}));
    let bytes = policy(&all, &long).to_string().len();
    assert!(bytes > MAX_BYTES, "{bytes}");
    assert_eq!(find_error(&all, &long), None);
    let group = long[0].split_once('.').unwrap().1;
    let entries = vec![json!({"group": group, "resources": ["*"]}); 300];
    let again = audit(json!({"rules": [{"level": "Request", "resources": entries}]}));
    assert_eq!(find_error(&again, &[]), None);
    let message = find_error(&again, &long).unwrap_or_default();
    assert!(message.contains("at most 393216 bytes"), "{message}");
}
