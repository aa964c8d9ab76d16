//! What tenants store is encrypted in etcd, and their teams read it all the same.

use crate::{classes::class, deletion::datastore, sleep::kill_control};
use berth_api::{
    EncryptionPhase, TenantClass,
    conditions::{self, ENCRYPTED_AT_REST},
    labels,
};
use berth_control::control_plane::API_SERVER;
use berth_tests::{
    command_line::CommandLine,
    objects::{apply, dynamic},
    processes::{find, kill, until_replaced},
    sleep::{request, status},
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, api::DeleteParams};
use serde_json::{Value, json};
use std::sync::Arc;

/// Name of the namespace, the class and the tenant.
const NAME: &str = "sys-encryption";
/// What nobody may read in etcd.
const TEXT: &str = "plain-text-of-a-team";
/// Where etcd has the Secret and the custom resource of the tenant.
const STORED: [&str; 2] = ["secrets/default/kept", "example.com/notes/default/kept"];
/// What an encrypted value begins with, before the name of the key.
const SECRETBOX: &str = "k8s:enc:secretbox:v1:";

/// Gives the class these rules of encryption; null: none.
pub(crate) async fn set_rules(host: &TestCluster, name: &str, encryption: &Value) {
    let spec = if encryption.is_null() {
        json!({})
    } else {
        json!({ "encryption": encryption })
    };
    apply(&host.client, "", &class(name, &spec)).await.unwrap();
}

/// Waits until all that the tenant stores is encrypted with another key than `before`; returns the name of that key.
pub(crate) async fn until_encrypted(host: &TestCluster, tenant: &Tenant, before: Option<&str>) -> String {
    until(&format!("{} is encrypted", tenant.name), SOON, async || {
        let status = status(host, tenant).await?;
        let is_met = conditions::is_true(&status.conditions, ENCRYPTED_AT_REST);
        match status.encryption.clone() {
            Some(now) if is_met && now.phase == EncryptionPhase::Completed && now.key_name.as_deref() != before => {
                Ok(now.key_name.unwrap_or_default())
            }
            other => Err(format!("{other:?} {:?}", status.conditions)),
        }
    })
    .await
}

/// The text of the Secret `kept`, as the team reads it.
pub(crate) async fn read_secret(tenant: &Tenant) -> Result<String, String> {
    let secrets: Api<Secret> = Api::namespaced(tenant.client.clone(), "default");
    let secret = secrets.get("kept").await.map_err(|error| error.to_string())?;
    let text = secret.data.and_then(|mut data| data.remove("token"));
    let text = text.ok_or("the Secret has no token")?;
    String::from_utf8(text.0).map_err(|error| error.to_string())
}

/// Creates the Secret `kept` with a text, as soon as an API server that is being replaced answers again.
pub(crate) async fn create_secret(tenant: &Tenant, text: &str) {
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "kept"}, "stringData": {"token": text}});
    until("the Secret is applied", SOON, async || {
        let applied = apply(&tenant.client, "default", &secret).await;
        applied.map(drop).map_err(|error| error.to_string())
    })
    .await;
}

async fn create_note(tenant: &Tenant) {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "notes.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "notes", "singular": "note", "kind": "Note", "listKind": "NoteList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]},
    });
    apply(&tenant.client, "", &definition).await.unwrap();
    let note = json!({"apiVersion": "example.com/v1", "kind": "Note", "metadata": {"name": "kept"}, "text": TEXT});
    until("the API server serves notes", SOON, async || {
        apply(&tenant.client, "default", &note).await
    })
    .await;
}

/// What etcd has of the Secret and the note.
async fn stored(host: &TestCluster, tenant: &Tenant) -> [String; 2] {
    let datastore = datastore(host);
    let mut values = [String::new(), String::new()];
    for (value, path) in values.iter_mut().zip(STORED) {
        let bytes = datastore.read_key(&tenant.id, path).await.unwrap().unwrap();
        *value = String::from_utf8_lossy(&bytes).into_owned();
    }
    values
}

/// Both are encrypted with this key.
async fn assert_encrypted(host: &TestCluster, tenant: &Tenant, key: &str) {
    for value in stored(host, tenant).await {
        assert!(value.starts_with(&format!("{SECRETBOX}{key}:")), "{value}");
        assert!(!value.contains(TEXT), "{value}");
    }
}

/// Both are read in the tenant. Its API server starts again when a key is no longer needed.
async fn until_readable(tenant: &Tenant) {
    let text = until("the Secret is read", SOON, async || read_secret(tenant).await).await;
    assert_eq!(text, TEXT);
    let notes = dynamic(&tenant.client, "example.com", "v1", "Note", "default");
    let note = until("the note is read", SOON, async || notes.get("kept").await).await;
    assert_eq!(note.data["text"], TEXT);
}

pub(crate) async fn secrets_are_encrypted_in_etcd_and_read_after_a_restart_and_a_rotation(host: Arc<TestCluster>) {
    set_rules(&host, NAME, &Value::Null).await;
    let mut wanted = cluster(NAME, &[]);
    wanted.spec.class_name = Some(NAME.into());
    let tenant = Tenant::create(&host, NAME, &wanted).await;
    create_secret(&tenant, TEXT).await;
    create_note(&tenant).await;
    for value in stored(&host, &tenant).await {
        assert!(value.contains(TEXT), "{value}");
    }

    // What was stored before is rewritten, although control is killed.
    let resources = json!({"resources": ["secrets", "notes.example.com"]});
    set_rules(&host, NAME, &resources).await;
    kill_control(&host, &[300, 1500]).await;
    let key = until_encrypted(&host, &tenant, None).await;
    assert_encrypted(&host, &tenant, &key).await;
    until_readable(&tenant).await;

    let server = find(&host.tenant_records(), &format!("{}.{API_SERVER}", tenant.id.slug())).unwrap();
    kill(&server);
    until_replaced(&host.tenant_records(), &server).await;
    until_readable(&tenant).await;

    request(&host, &tenant, labels::ENCRYPTION_KEY_ROTATION_REQUESTED_AT).await;
    kill_control(&host, &[150, 600, 1500]).await;
    let rotated = until_encrypted(&host, &tenant, Some(&key)).await;
    assert_encrypted(&host, &tenant, &rotated).await;
    until_readable(&tenant).await;
    let secrets: Api<Secret> = Api::namespaced(host.client.clone(), &tenant.id.control_plane_namespace());
    let pki = secrets.get("pki").await.unwrap().data.unwrap();
    assert!(
        pki.contains_key(&rotated) && !pki.contains_key(&key),
        "{:?}",
        pki.keys()
    );

    // The command line does the same, waits for it, and says which key it is.
    let berth = CommandLine::of_administrator(&host);
    let name = format!("{NAME}/{}", tenant.name);
    let (printed, _) = berth.run(&["encryption", "rotate", &name, "--wait"], 0).await;
    let (shown, _) = berth.run(&["encryption", "status", &name, "-o", "json"], 0).await;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let shown = &shown["tenants"][0];
    assert_eq!(
        (&shown["tenant"], &shown["isEncrypted"]),
        (&json!(name), &json!(true)),
        "{shown}"
    );
    let last = shown["encryption"]["keyName"].as_str().unwrap();
    assert!(printed.contains(last) && last != rotated, "{printed}");
    assert_encrypted(&host, &tenant, last).await;

    set_rules(&host, NAME, &Value::Null).await;
    until_true("nothing is encrypted any more", SOON, async || {
        status(&host, &tenant)
            .await
            .is_ok_and(|status| status.encryption.is_none())
    })
    .await;
    for value in stored(&host, &tenant).await {
        assert!(value.contains(TEXT), "{value}");
    }
    until_readable(&tenant).await;
    tenant.delete(&host).await;
    let classes: Api<TenantClass> = Api::all(host.client.clone());
    classes.delete(NAME, &DeleteParams::default()).await.unwrap();
}
