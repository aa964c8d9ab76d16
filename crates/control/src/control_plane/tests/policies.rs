//! The admission policies and the authorizers of a tenant's API server, which are files.

use super::*;

/// Files with the policies of a tenant whose datastore is full.
const POLICIES_OF_A_FULL_TENANT: [&str; 11] = [
    "created-by.yaml",
    "datastore-limit.yaml",
    "flow-control.yaml",
    "mutating/created-by.yaml",
    "mutating/platform-requests.yaml",
    "own-apis.yaml",
    "own-objects.yaml",
    "platform-objects.yaml",
    "platform-requests.yaml",
    "self-calls.yaml",
    "webhooks/writes.yaml",
];

/// Files of the API server that it reads as admission policies, if there are any.
fn policy_files(component: &Component) -> Vec<&String> {
    let is_policy = |name: &&String| [".yaml", ".yml", ".json"].iter().any(|ending| name.ends_with(ending));
    component.files.keys().filter(is_policy).collect()
}

fn render_api_server(fixture: &Fixture, version: &str) -> Component {
    let mut leaves = LeafStore::new(BTreeMap::new(), Timestamp::now());
    let components = fixture.render_version(version, &mut leaves);
    components
        .into_iter()
        .find(|component| component.name == API_SERVER)
        .unwrap()
}

/// The documents of the API server's policy file.
fn policies(usage: DatastoreUsage) -> Vec<serde_json::Value> {
    let mut fixture = Fixture::new();
    fixture.datastore_usage = usage;
    let files = render_api_server(&fixture, "v1.37.1").files_in("/files");
    let documents = files["datastore-limit.yaml"].split("\n---\n");
    documents.map(|text| serde_json::from_str(text).unwrap()).collect()
}

#[test]
fn a_tenant_whose_datastore_is_full_has_a_policy_that_it_cannot_remove() {
    let mut fixture = Fixture::new();
    let render = render_api_server;
    let with_room = render(&fixture, "v1.37.1");
    let always = POLICIES_OF_A_FULL_TENANT.into_iter();
    let always: Vec<&str> = always.filter(|file| *file != "datastore-limit.yaml").collect();
    assert_eq!(policy_files(&with_room), always);
    fixture.datastore_usage.full = true;
    let full = render(&fixture, "v1.37.1");
    assert_eq!(policy_files(&full), POLICIES_OF_A_FULL_TENANT);
    let files = full.files_in("/files");
    assert!(files["admission.conf"].contains(r#""staticManifestsDir":"/files""#));
    insta::assert_snapshot!(files["datastore-limit.yaml"]);
    // Earlier API servers know no such files.
    for earlier in ["v1.36.4", "v1.35.0"] {
        let earlier = render(&fixture, earlier);
        assert!(!earlier.files["admission.conf"].contains("staticManifestsDir"));
        assert!(policy_files(&earlier).is_empty());
    }
}

#[test]
fn a_tenant_above_its_limit_can_delete_and_shrink_but_no_object_can_grow() {
    let documents = policies(DatastoreUsage {
        full: true,
        growth_denied: true,
        ..DatastoreUsage::default()
    });
    let constraints = &documents[0]["spec"]["matchConstraints"];
    let rules = constraints["resourceRules"].as_array().unwrap();
    let operations: Vec<(&str, &str)> = rules
        .iter()
        .map(|rule| {
            (
                rule["operations"][0].as_str().unwrap(),
                rule["resources"][0].as_str().unwrap(),
            )
        })
        .collect();
    // No rule matches DELETE. Every update of a status, a scale or a pod's containers is an update.
    assert_eq!(
        operations,
        [("CREATE", "*"), ("CREATE", "pods/binding"), ("UPDATE", "*/*")]
    );
    // Leases could be created without end.
    assert_eq!(constraints["excludeResourceRules"], serde_json::json!([]));
    insta::assert_yaml_snapshot!(documents);
}

#[test]
fn control_restores_bindings_in_a_tenant_that_is_full() {
    for growth_denied in [false, true] {
        let documents = policies(DatastoreUsage {
            full: true,
            growth_denied,
            ..DatastoreUsage::default()
        });
        let creation = documents[0]["spec"]["validations"][0]["expression"].as_str().unwrap();
        let exempt = " || (request.userInfo.username == 'berth:control' && request.resource.group == 'rbac.authorization.k8s.io' && \
                      request.resource.resource == 'clusterrolebindings' && object.metadata.name.startsWith('berth:'))";
        assert!(creation.contains(exempt), "{creation}");
    }
}

#[test]
fn no_user_of_a_tenant_impersonates_its_api_server_or_control() {
    let mut fixture = Fixture::new();
    for version in ["v1.37.1", "v1.36.4", "v1.35.0"] {
        let component = render_api_server(&fixture, version);
        assert!(
            component
                .args
                .contains(&format!("--authorization-config={FILES}/authorization.conf"))
        );
        assert!(!component.args.iter().any(|arg| arg.starts_with("--authorization-mode")));
        let text = &component.files["authorization.conf"];
        let configuration: serde_json::Value = serde_json::from_str(text).unwrap();
        // It is asked before RBAC, for nothing else, and denies if it does not answer.
        let authorizers = configuration["authorizers"].as_array().unwrap();
        let types: Vec<&str> = authorizers.iter().map(|one| one["type"].as_str().unwrap()).collect();
        assert_eq!(types, ["Webhook", "RBAC"]);
        let webhook = &authorizers[0]["webhook"];
        assert_eq!(webhook["failurePolicy"], "Deny");
        let conditions = webhook["matchConditions"].as_array().unwrap();
        assert_eq!(conditions.len(), 1);
        let expression = conditions[0]["expression"].as_str().unwrap();
        assert!(expression.contains("verb.startsWith('impersonate')"));
        assert!(
            expression.contains("in ['system:apiserver', 'berth:control', "),
            "{expression}"
        );
        for user in [
            "berth:argocd",
            "berth:syncer",
            "berth:coredns",
            "system:kube-controller-manager",
            "system:kube-scheduler",
        ] {
            assert!(expression.contains(&format!("'{user}'")), "{user}: {expression}");
        }
        // Nor a controller whose pods keep the creator that their template names.
        assert!(expression.contains("'replicaset-controller'"), "{expression}");
    }
    // No file of it is read as an admission policy.
    fixture.datastore_usage.full = true;
    assert_eq!(
        policy_files(&render_api_server(&fixture, "v1.37.1")),
        POLICIES_OF_A_FULL_TENANT
    );
}

#[test]
fn only_control_and_the_api_server_change_the_platforms_objects() {
    let files = render_api_server(&Fixture::new(), "v1.37.1").files_in("/files");
    let mut documents = files["platform-objects.yaml"].split("\n---\n");
    let policy: serde_json::Value = serde_json::from_str(documents.next().unwrap()).unwrap();
    let binding: serde_json::Value = serde_json::from_str(documents.next().unwrap()).unwrap();
    assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
    let constraints = &policy["spec"]["matchConstraints"];
    assert_eq!(
        constraints["objectSelector"]["matchLabels"],
        serde_json::json!({"berth.dev/managed-by": "platform"})
    );
    // Each operation on every kind, and updates of every subresource.
    assert_eq!(
        constraints["resourceRules"][0]["operations"],
        serde_json::json!(["CREATE", "DELETE"])
    );
    assert_eq!(constraints["resourceRules"][1]["resources"], serde_json::json!(["*/*"]));
    let expression = policy["spec"]["validations"][0]["expression"].as_str().unwrap();
    for field in ["ownerReferences", "finalizers"] {
        let same = format!("object.metadata.{field} == oldObject.metadata.{field}");
        assert_eq!(
            expression.matches(&same).count(),
            2,
            "of parts, and of roles: {expression}"
        );
    }
    // An update that changes nothing else makes nobody an owner of fields: they would stay when a manifest drops them.
    assert!(!expression.contains("managedFields"), "{expression}");
    insta::assert_snapshot!(policy["spec"]["validations"][0]["expression"].as_str().unwrap());
}

#[test]
fn no_other_server_is_registered_for_a_group_of_the_api_servers_own() {
    let files = render_api_server(&Fixture::new(), "v1.37.1").files_in("/files");
    let document = files["own-apis.yaml"].split("\n---\n").next().unwrap();
    let policy: serde_json::Value = serde_json::from_str(document).unwrap();
    let expression = policy["spec"]["validations"][0]["expression"].as_str().unwrap();
    for group in [
        "''",
        "'networking.k8s.io'",
        "'rbac.authorization.k8s.io'",
        "'admissionregistration.k8s.io'",
    ] {
        assert!(expression.contains(group), "{group}: {expression}");
    }
    // The syncer serves it.
    assert!(!expression.contains("metrics.k8s.io"), "{expression}");
}

#[test]
fn no_webhook_is_called_with_the_api_servers_own_credentials() {
    let files = render_api_server(&Fixture::new(), "v1.37.1").files_in("/files");
    let documents: Vec<serde_json::Value> = files["self-calls.yaml"]
        .split("\n---\n")
        .map(|text| serde_json::from_str(text).unwrap())
        .collect();
    let spec = &documents[0]["spec"];
    let resources: Vec<&str> = spec["matchConstraints"]["resourceRules"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|rule| rule["resources"].as_array().unwrap())
        .map(|resource| resource.as_str().unwrap())
        .collect();
    // All that names a server which the API server calls, apart from what it calls with other credentials.
    assert_eq!(
        resources,
        [
            "mutatingwebhookconfigurations",
            "validatingwebhookconfigurations",
            "customresourcedefinitions",
        ]
    );
    assert_eq!(spec["failurePolicy"], "Fail");
    let expression = spec["validations"][0]["expression"].as_str().unwrap();
    // A user's name makes no difference.
    assert!(!expression.contains("userInfo"), "{expression}");
    for part in [
        "c.service.name != 'kubernetes' || c.service.namespace != 'default'",
        "c.service.path.startsWith('/apis/')",
        "!c.url.matches('(?i)^https://kubernetes[.]default[.]svc(:443)?([/?#]|$)')",
    ] {
        assert!(expression.contains(part), "{part}: {expression}");
    }
    assert_eq!(documents[1]["spec"]["policyName"], documents[0]["metadata"]["name"]);
    assert_eq!(documents[1]["spec"]["validationActions"], serde_json::json!(["Deny"]));
}

/// The expression that says which objects are the API server's own.
fn is_own(policy: &serde_json::Value) -> String {
    let variables = policy["spec"]["variables"].as_array().unwrap();
    let own = variables.iter().find(|variable| variable["name"] == "isOwn").unwrap();
    own["expression"].as_str().unwrap().to_owned()
}

#[test]
fn an_object_of_another_kind_is_not_exempt_for_its_name() {
    let documents = policies(DatastoreUsage {
        full: true,
        growth_denied: true,
        ..DatastoreUsage::default()
    });
    let own = is_own(&documents[0]);
    // The part of the expression that exempts a name.
    let part = |name: &str| {
        let parts: Vec<&str> = own.split(" || ").filter(|part| part.contains(name)).collect();
        assert_eq!(parts.len(), 1, "{name}: {own}");
        parts[0].to_owned()
    };
    assert!(part("'admin'").contains("request.resource.resource in ['clusterroles'] &&"));
    assert!(part("'workload-high'").contains("request.resource.resource in ['prioritylevelconfigurations'] &&"));
    let reader = part("'extension-apiserver-authentication-reader'");
    assert!(
        reader.contains("in ['roles'] && request.namespace == 'kube-system' &&"),
        "{reader}"
    );
    for object in api_server_objects() {
        assert!(own.contains(&format!("'{}'", object.name)), "{object:?}");
    }
}

#[test]
fn own_objects_are_listed_once() {
    let mut objects = api_server_objects();
    let number = objects.len();
    objects.sort();
    objects.dedup();
    assert_eq!(objects.len(), number);
}

#[test]
fn what_an_api_server_creates_at_its_start_is_exempt_and_small() {
    for growth_denied in [false, true] {
        let documents = policies(DatastoreUsage {
            full: true,
            growth_denied,
            ..DatastoreUsage::default()
        });
        let exempt = documents[0]["spec"]["validations"][0]["expression"].as_str().unwrap();
        // Without one of them, a new API server is never ready.
        for kind in [
            "rbac.authorization.k8s.io",
            "flowcontrol.apiserver.k8s.io",
            "apiregistration.k8s.io",
            "networking.k8s.io",
            "scheduling.k8s.io",
            "ipaddresses",
        ] {
            assert!(exempt.contains(&format!("'{kind}'")), "{kind}: {exempt}");
        }
        assert!(is_own(&documents[0]).contains("'kube-node-lease'"));
        // More of them than an API server has of its own could be created without end.
        assert_eq!(exempt.contains("!has(object.spec.service)"), !growth_denied, "{exempt}");
        // Each exemption has a limit of its own, on every part of the object.
        let count = |part: &str| exempt.matches(&format!("variables.object{part} <= ")).count();
        let expected = if growth_denied { 8 } else { 6 };
        for part in ["Content", "Status", "ManagedFields"] {
            assert_eq!(count(part), expected, "{part}: {exempt}");
        }
    }
}

#[test]
fn an_api_server_corrects_its_own_objects_where_nothing_else_may_grow() {
    let documents = policies(DatastoreUsage {
        full: true,
        growth_denied: true,
        ..DatastoreUsage::default()
    });
    // Otherwise a tenant that has made one of them large keeps a new API server from being ready.
    let spec = &documents[0]["spec"];
    let expression = |number: usize| spec["validations"][number]["expression"].as_str().unwrap();
    for (number, part) in [
        (
            2,
            "variables.objectContent <= variables.oldObjectContent + (request.resource.resource in",
        ),
        (2, "'flowcontrol.apiserver.k8s.io'"),
        (2, "'apiregistration.k8s.io'"),
        (
            3,
            "variables.isOwn && request.resource.group == 'apiregistration.k8s.io' && variables.objectStatus <= \
             variables.oldObjectStatus + 1024",
        ),
        (
            4,
            "variables.isOwn && variables.objectManagedFields <= variables.oldObjectManagedFields + 1024",
        ),
    ] {
        assert!(expression(number).contains(part), "{part}: {}", expression(number));
    }
    let own = is_own(&documents[0]);
    for name in ["'system:kube-scheduler'", "'exempt'", "'v1.apps'"] {
        assert!(own.contains(name), "{name}");
    }
}

#[test]
fn every_size_that_a_rule_uses_is_a_variable() {
    for growth_denied in [false, true] {
        let documents = policies(DatastoreUsage {
            full: true,
            growth_denied,
            ..DatastoreUsage::default()
        });
        let spec = &documents[0]["spec"];
        let variables = spec["variables"].as_array().unwrap();
        let names: Vec<&str> = variables
            .iter()
            .map(|variable| variable["name"].as_str().unwrap())
            .collect();
        for validation in spec["validations"].as_array().unwrap() {
            let expression = validation["expression"].as_str().unwrap();
            for part in expression.split("variables.").skip(1) {
                let name = part.split(|letter: char| !letter.is_alphanumeric()).next().unwrap();
                assert!(names.contains(&name), "{name}: {names:?}");
            }
        }
    }
}

#[test]
fn a_tenant_with_too_many_definitions_can_create_anything_else() {
    let documents = policies(DatastoreUsage {
        definitions_full: true,
        ..DatastoreUsage::default()
    });
    assert_eq!(documents.len(), 2);
    let rules = &documents[0]["spec"]["matchConstraints"]["resourceRules"];
    assert_eq!(rules.as_array().map(Vec::len), Some(1));
    assert_eq!(rules[0]["resources"], serde_json::json!(["customresourcedefinitions"]));
    assert_eq!(rules[0]["operations"], serde_json::json!(["CREATE"]));
    assert_eq!(documents[1]["spec"]["policyName"], documents[0]["metadata"]["name"]);
}

#[test]
fn policies_that_change_objects_have_a_folder_of_their_own() {
    let components = Fixture::new().render(&mut LeafStore::new(BTreeMap::new(), Timestamp::now()));
    let server = components
        .iter()
        .find(|component| component.name == API_SERVER)
        .unwrap();
    for (name, text) in &server.files {
        if std::path::Path::new(name)
            .extension()
            .is_none_or(|extension| extension != "yaml")
        {
            continue;
        }
        for document in text.split("\n---\n") {
            let policy: serde_json::Value = serde_json::from_str(document).unwrap();
            let kind = policy["kind"].as_str().unwrap();
            assert_eq!(
                kind.starts_with("Mutating"),
                name.starts_with("mutating/"),
                "{name}: {kind}"
            );
            assert!(policy["metadata"]["name"].as_str().unwrap().ends_with(".static.k8s.io"));
        }
    }
}
