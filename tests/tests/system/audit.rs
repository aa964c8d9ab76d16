//! Audit logs of the API servers of tenants.

use crate::classes::{class, of_class};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use berth_control::{apply::is_status, control_plane::API_SERVER};
use berth_tests::{
    objects::apply,
    processes,
    tenant::Tenant,
    test_cluster::TestCluster,
    token::of_default_account,
    wait::{SOON, until, until_true},
};
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use kube::{
    Api, Resource,
    api::{ObjectMeta, PostParams},
    core::NamespaceResourceScope,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fmt::Debug, sync::Arc};

/// Name of the class and of the namespace of its tenant.
const CLASS: &str = "audit-log";
/// The content of Secrets, which may be in no log.
const SECRET: &str = "content-of-a-secret-for-the-test-of-audit-logs";
/// The content of another object, which is logged.
const PLAIN: &str = "content-of-a-service-for-the-test-of-audit-logs";

/// A tenant and the log of its API server.
struct Audited {
    host: Arc<TestCluster>,
    tenant: Tenant,
}

impl Audited {
    fn process(&self) -> String {
        format!("{}.{API_SERVER}", self.tenant.id.slug())
    }

    fn pid(&self) -> Option<u32> {
        processes::find(&self.host.tenant_records(), &self.process()).and_then(|status| status.pid)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.host.home().log(&self.process())).unwrap()
    }

    /// The lines of the audit log, which are among those of the API server itself here.
    fn events(&self) -> Vec<Value> {
        let log = self.log();
        let values = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        values
            .filter(|value| value["kind"] == "Event" && value["apiVersion"] == "audit.k8s.io/v1")
            .collect()
    }

    /// Events about an object, whose resource may be a subresource: `serviceaccounts/token`.
    fn events_of(&self, resource: &str, name: &str) -> Vec<Value> {
        let (resource, subresource) = match resource.split_once('/') {
            Some((resource, subresource)) => (resource, json!(subresource)),
            None => (resource, Value::Null),
        };
        let is_wanted = |event: &Value| {
            let object = &event["objectRef"];
            object["resource"] == resource && object["subresource"] == subresource && object["name"] == name
        };
        self.events().into_iter().filter(is_wanted).collect()
    }

    /// Waits for the event of the creation of an object.
    async fn creation(&self, resource: &str, name: &str) -> Value {
        until(
            &format!("the creation of {resource} {name} is logged"),
            SOON,
            async || {
                let mut events = self.events_of(resource, name).into_iter();
                // The syncer may refuse a Service once, while it connects again.
                let is_created = |event: &Value| event["verb"] == "create" && event["responseStatus"]["code"] == 201;
                events.find(is_created).ok_or("it is not")
            },
        )
        .await
    }

    /// Changes the class, and waits until another API server runs.
    async fn change_class(&mut self, spec: &Value) {
        let before = self.pid();
        apply(&self.host.client, "", &class(CLASS, spec)).await.unwrap();
        until_true("another API server runs", SOON, async || {
            let pid = self.pid();
            pid.is_some() && pid != before
        })
        .await;
        self.tenant = Tenant::ready(&self.host, CLASS, &self.tenant.name).await;
    }

    /// Creates an object as the team does. The API server may still be starting.
    async fn create<K>(&self, object: &K)
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let objects: Api<K> = Api::namespaced(self.tenant.client.clone(), "default");
        until("the object is stored", SOON, async || {
            match objects.create(&PostParams::default(), object).await {
                Ok(_) => Ok(()),
                Err(error) if is_status(&error, 409) => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
    }

    /// Creates a Secret, a ConfigMap and a Service of this name.
    async fn create_all(&self, name: &str) {
        let data = BTreeMap::from([("password".to_owned(), SECRET.to_owned())]);
        let metadata = ObjectMeta {
            name: Some(name.into()),
            ..ObjectMeta::default()
        };
        self.create(&Secret {
            metadata: metadata.clone(),
            string_data: Some(data.clone()),
            ..Secret::default()
        })
        .await;
        self.create(&ConfigMap {
            metadata,
            data: Some(data),
            ..ConfigMap::default()
        })
        .await;
        let service = json!({
            "metadata": {"name": name, "annotations": {"example.com/content": PLAIN}},
            "spec": {"ports": [{"port": 80}], "selector": {"app": "a"}},
        });
        self.create(&serde_json::from_value::<Service>(service).unwrap()).await;
    }

    /// Reads from the API server as the tenant's admin, who acts as another user if one is given.
    async fn read(&self, uri: &str, acts_as: Option<&str>) -> kube::Result<Value> {
        let mut request = http::Request::get(uri);
        if let Some(user) = acts_as {
            request = request.header("Impersonate-User", user);
        }
        self.tenant.client.request(request.body(Vec::new()).unwrap()).await
    }

    /// Nobody hides a request by acting as a user that is left out, or by a URL that makes its event too large for the audit log.
    async fn assert_no_request_hides(&self) {
        let path = "/api/v1/namespaces/default/secrets/first";
        let refused = self.read(path, Some("system:apiserver")).await;
        assert!(
            refused.as_ref().is_err_and(|error| is_status(error, 403)),
            "{refused:?}"
        );
        until_true("who acts as another user is logged", SOON, async || {
            let events = self.events_of("secrets", "first");
            events
                .iter()
                .any(|event| event["user"]["username"] == "tenant-admin" && event["responseStatus"]["code"] == 403)
        })
        .await;
        // About the longest URL that this client sends. The API server writes the event as text.
        let uri = format!("{path}?pad={}", "x".repeat(65_200));
        self.read(&uri, None).await.unwrap();
        let logged_uri = format!("uri=\"{uri}\"");
        let parts = ["AUDIT: ", r#"user="tenant-admin""#, &logged_uri, r#"response="200""#];
        until_true("the request with a long URL is logged", SOON, async || {
            let log = self.log();
            log.lines().any(|line| parts.iter().all(|part| line.contains(part)))
        })
        .await;
    }
}

pub(crate) async fn a_class_says_what_api_servers_log_and_no_credential_is_in_it(host: Arc<TestCluster>) {
    apply(&host.client, "", &class(CLASS, &json!({}))).await.unwrap();
    let tenant = Tenant::create(&host, CLASS, &of_class("vision", CLASS)).await;
    let mut audited = Audited { host, tenant };
    audited.create_all("before").await;

    audited.change_class(&json!({"audit": {"preset": "Request"}})).await;
    audited.create_all("first").await;
    let event = audited.creation("secrets", "first").await;
    assert_eq!(event["user"]["username"], "tenant-admin", "{event}");
    assert_eq!(event["level"], "Metadata", "{event}");
    let event = audited.creation("services", "first").await;
    assert_eq!(
        event["requestObject"]["metadata"]["annotations"]["example.com/content"], PLAIN,
        "{event}"
    );
    let event = audited.creation("configmaps", "first").await;
    assert_eq!(event["level"], "Metadata", "{event}");
    audited.assert_no_request_hides().await;
    // What was written without an audit log is not in it, and nothing of the platform's own programs is.
    assert!(audited.events_of("secrets", "before").is_empty());
    for event in audited.events() {
        let user = event["user"]["username"].as_str().unwrap_or_default();
        let is_platform = ["berth:control", "berth:syncer", "berth:coredns", "system:apiserver"].contains(&user);
        assert!(!is_platform, "{event}");
    }

    // All syntax of rules, which a real API server reads.
    let rules = json!([
        {"level": "None", "users": ["berth:control", "berth:syncer", "system:apiserver"], "omitStages": ["ResponseStarted"]},
        {"level": "None", "verbs": ["get", "list", "watch"], "userGroups": ["system:authenticated"]},
        {"level": "None", "resources": [{"resources": ["configmaps"]}, {"group": "apps", "resources": ["*/scale", "deployments/*"]}]},
        {"level": "None", "resources": [{"resources": ["services"], "resourceNames": ["first"]}], "namespaces": ["default", ""]},
        {"level": "None", "nonResourceURLs": ["/livez*", "/metrics"]},
        {"level": "RequestResponse", "omitManagedFields": true},
    ]);
    audited.change_class(&json!({"audit": {"rules": rules}})).await;
    audited.create_all("second").await;
    let token = of_default_account(&audited.tenant.client, 600).await;
    let event = audited.creation("services", "second").await;
    assert_eq!(event["responseObject"]["kind"], "Service", "{event}");
    let event = audited.creation("secrets", "second").await;
    assert_eq!(event["level"], "Metadata", "{event}");
    let event = audited.creation("serviceaccounts/token", "default").await;
    assert_eq!(event["level"], "Metadata", "{event}");
    assert!(audited.events_of("configmaps", "second").is_empty());
    let log = audited.log();
    for credential in [SECRET, &STANDARD.encode(SECRET), &token] {
        assert!(!log.contains(credential), "a credential is in the log");
    }
    audited.tenant.delete(&audited.host).await;
}
